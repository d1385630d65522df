"""The command line: each verb parses, calls one plain function, and shows what it returned."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import threading
from typing import Any, NoReturn

import click

from hpcstack import OWN_VARIABLES, __version__
from hpcstack.core.errors import HpcstackError, sanitize_for_terminal

# What one wants to do -> verb -> what it is for. The module cli/VERB_.py is loaded only when the
# verb is used.
GROUPS = {
    "Recipes and locks": {
        "list": "List the stacks that can be built, and which are.",
        "show": "Show one stack's spec, or the site with the origin of each value.",
        "lint": "Check recipes; all problems at once.",
        "schema": "Print the JSON Schema of a recipe or of site.yaml, for editors.",
        "lock": "Write down what names mean: base, packages and sources, by digest.",
        "diff": "Show what differs between two locks or two stacks.",
        "outdated": "Look for newer tags of the same base, and what would change.",
        "render": "Write the definitions, the modulefile and the launchers.",
    },
    "Images": {
        "import": (
            "Make one squashfs that Pyxis, Enroot and Apptainer run of an image from anywhere."
        ),
        "adopt": "Take over an image that hpcstack did not build, as a release of its own.",
        "build": "Build the image of a stack into the store.",
        "images": "List the images in the store.",
        "inspect": "Show what an image is: its stack, base, packages, releases.",
        "verify": "Check that images are intact, alike, reproducible or signed.",
        "sbom": "Print what an image is made of, as CycloneDX.",
        "sign": "Sign an image; `verify --signature` checks it.",
        "bundle": "Pack a stack for machines without a network (bundle create, apply).",
        "gc": "Remove images and caches that nobody needs.",
        "cache": "Share one import of any image over the cluster (cache get, serve, list, gc).",
    },
    "What users load": {
        "publish": "Make a built image a release with a module.",
        "promote": "Make a testing release a production one, proven by a report.",
        "rollback": "Return a version to its earlier release.",
        "default": "Choose the version that `module load NAME` means.",
        "retire": "Warn the users of a version, and refuse it from a day on.",
        "remove": "Take a release, a version or a name out of the module tree.",
        "undo": "Take back the last change of what is published under a name.",
        "status": "Show what is published, as users see it, and what is wrong with it.",
        "repair": "Put back what is published as it was written, and name what cannot be.",
        "history": "Show what was done to what is published: when, by whom and why.",
        "catalog": "Write a site of plain pages about everything that is published.",
    },
    "Running": {
        "launch": "Run a command in a stack's image, under srun where there is Slurm.",
        "shell": "Open a shell in a stack's image, on a node.",
        "python": "Run Python in a stack's image, on a node.",
        "jobs": "List past launches: what ran, where, and how it ended.",
        "logs": "Show what a job wrote.",
        "cancel": "Cancel jobs of yours.",
        "test": "Run the smoke suite in a stack's image and report.",
        "report": "Show a report again, as text, JSON or JUnit.",
        "plan": "Say how much memory training takes on each GPU, and which strategy fits.",
    },
    "Trouble": {
        "doctor": (
            "Say what is wrong with this machine, this cluster, these nodes, and what to type."
        ),
        "explain": "Say what went wrong in a log or a job, and what to type next.",
        "hang": "Say where the ranks of a running job are, and which one stands out.",
        "why": "Say where a variable of a launch came from.",
    },
    "This machine": {
        "site": "Ask this cluster what it has, and write a commented site.yaml (site init).",
        "completion": "Print the completion script of a shell.",
    },
}
VERBS = {verb: about for group in GROUPS.values() for verb, about in group.items()}


class Verbs(click.Group):
    """Loads a verb's module when it is called; `--help` loads none."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        module = importlib.import_module(f"hpcstack.cli.{name}_")
        command: click.Command = module.command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from hpcstack.core.errors import did_you_mean

            raise click.UsageError(
                f"there is no verb {args[0]!r}{did_you_mean(args[0], VERBS)}", ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(verb.ljust(width), about) for verb, about in verbs.items()])


@click.group(
    cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="hpcstack")
@click.option("--site", default="", metavar="FILE", help="A site.yaml, above all other layers.")
@click.option(
    "--recipes", multiple=True, metavar="DIR", help="A folder of recipes, before all others."
)
@click.option(
    "--arch",
    default="",
    type=click.Choice(["", "x86_64", "aarch64"]),
    show_choices=False,
    metavar="MACHINE",
    help="x86_64 or aarch64: the module tree of those nodes; by default of this machine's kind.",
)
@click.pass_context
def group(ctx: click.Context, site: str, recipes: tuple[str, ...], arch: str) -> None:
    """Containers and environments for HPC AI stacks: a YAML spec becomes a lock, an image, a
    module, a launcher and a proof.

    A first stack:  hpcstack build pytorch-24.11 && hpcstack test pytorch-24.11
    """
    from hpcstack.cli.session import Session

    ctx.obj = Session(site, recipes, arch)


def main(arguments: list[str] | None = None) -> NoReturn:
    """The one boundary between errors and exit codes."""
    gc.set_threshold(
        50_000
    )  # models are built once, at the start: looking for garbage among them takes 10 ms
    if (
        "PYDANTIC_DISABLE_PLUGINS" not in os.environ
    ):  # it would look for some in all that is installed: 15 ms a start
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
        OWN_VARIABLES.add("PYDANTIC_DISABLE_PLUGINS")
    for stream in (sys.stdout, sys.stderr):  # a path may hold bytes that are no text
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    program = arguments is None  # else a caller goes on after us
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        status = group.main(args=arguments, prog_name="hpcstack", standalone_mode=False)
        _leave(status if isinstance(status, int) else 0, program)
    except HpcstackError as error:
        _refuse(error.message, error.hint)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        _leave(error.exit_code, program)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        _refuse(
            error.format_message(),
            f"{context.command_path} --help" if context else "hpcstack --help",
        )
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        _refuse("interrupted", "")
        sys.exit(130)
    except OSError as error:
        _refuse(
            f"{error.strerror or error}: {error.filename or 'a file of hpcstack'}",
            "is the disk full, or the path not yours?",
        )
        sys.exit(7)
    except Exception as error:
        import traceback

        traceback.print_exc()
        _refuse(
            f"this is a bug in hpcstack {__version__}: {type(error).__name__}: {error}",
            "please report it with the lines above",
        )
        sys.exit(70)


def _leave(status: int, program: bool) -> NoReturn:
    """End without taking all modules apart first, which takes 20 ms, where nothing but us runs any
    more.
    """
    if program and threading.active_count() == 1:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)


def _refuse(message: str, hint: str) -> None:
    message, hint = sanitize_for_terminal(message), sanitize_for_terminal(hint)
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(f"{click.style('ERROR:', fg='red')} {message}", err=True, color=color)
    if hint:
        click.echo(f"  {click.style('TIP:', fg='yellow')} {hint}", err=True, color=color)
