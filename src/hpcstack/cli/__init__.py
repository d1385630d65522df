"""The command line: a verb parses its options, calls one plain function, and shows the result.

Tested in tests/unit/cli/test_verbs.py and tests/unit/cli/test_bug_report.py.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import threading
import time
from typing import Any, NoReturn

import click

from hpcstack import OWN_VARIABLES, __version__
from hpcstack.cli.choices import OptionalChoice
from hpcstack.core.errors import HpcstackError, sanitize_for_terminal

# Group of verbs -> verb -> its description in `hpcstack --help`. Each description is also the first
# paragraph of the verb's own help, which is its docstring in cli/VERB_.py. They are repeated here
# since importing every verb's module for `--help` is slow. tests/unit/cli/test_verbs.py holds the
# two equal.
GROUPS = {
    "Recipes and locks": {
        "list": "List the stacks that can be built, what is proven of each, and which are built.",
        "show": "Show a stack's spec or the site's configuration, with the origin of each value.",
        "lint": "Check recipes, and report all problems at once.",
        "draft": "Write a recipe of a Dockerfile, a definition, an environment or a list of packages.",
        "schema": "Print the JSON Schema of a recipe, of site.yaml or of declared releases, for editors.",
        "lock": "Pin a stack's base image, packages and sources to exact versions and digests.",
        "diff": "Show what differs between two stacks or two locks.",
        "outdated": "Look for newer tags of a base image, and show what the newest would change.",
        "bump": "Move stacks to a newer base: edit their recipes, lock them, and show what changes.",
        "render": "Render a stack's image definitions, modulefiles and launchers.",
    },
    "Images": {
        "import": "Import any image as one squashfs file that Pyxis, Enroot and Apptainer can run.",
        "adopt": "Take over an image that hpcstack did not build, as a release of its own.",
        "build": "Build the images of stacks into the store.",
        "images": "List the images in the store.",
        "inspect": "Show what an image is: its stack, base, packages and releases.",
        "verify": "Check that images are intact, equivalent, reproducible or signed.",
        "find": "Find which images, releases and locks have a package or a file.",
        "audit": "Check images against a database of known vulnerabilities.",
        "sbom": "Print an image's software bill of materials, as CycloneDX JSON.",
        "sign": "Sign an image; `hpcstack verify --signature` checks the signature.",
        "push": "Push an image to a registry, with its SBOM, lock, reports and provenance.",
        "pull": "Bring an image that `push` put into a registry into the store, with its evidence.",
        "bundle": "Take a locked stack to machines without a network (bundle create, apply).",
        "gc": "Remove images, caches and old releases that nobody needs.",
        "cache": "Share one import of each image among nodes and users (cache get, serve, ...).",
    },
    "What users load": {
        "sync": "Publish what a folder declares.",
        "publish": "Publish a built image as a release with a module.",
        "promote": "Promote a testing release to production, with a report that proves it.",
        "rollback": "Return a version to an earlier release.",
        "default": "Choose the version that `module load NAME` loads.",
        "retire": "Warn the users of a version, and refuse to load it from a given day on.",
        "remove": "Remove a release, a version or a whole name from the module tree.",
        "undo": "Undo the last change to what is published under a name.",
        "status": "Show what is published, as users see it, and what is wrong with it.",
        "repair": "Restore published files that were damaged or lost, and name what is left.",
        "history": "Show every change to what is published under a name: when, by whom and why.",
        "usage": "Show who loads and launches what, and what nobody uses.",
        "catalog": "Write a static website about everything that is published.",
    },
    "Running": {
        "launch": "Run a command in a stack's image, under srun where there is Slurm.",
        "shell": "Open a shell in a stack's image, on a compute node where there is Slurm.",
        "python": "Run Python in a stack's image, on a compute node where there is Slurm.",
        "jupyter": "Start JupyterLab in a stack's image, as a job, and say how to reach it.",
        "kernel": "Run Jupyter kernels in a stack's image, from JupyterHub, Open OnDemand or VS Code.",
        "tensorboard": "Show the TensorBoard logs in FOLDER, by a job, and say how to reach it.",
        "tunnel": "Reach JupyterLab or TensorBoard of a job, and print its address for a browser.",
        "project": "Put your own packages on top of a stack (project lock, build, list).",
        "pack": "Pack a folder of data into one file that launches mount.",
        "enter": "Open a shell in the container of a running job, or run a command there.",
        "jobs": "List past launches: what ran, where, and how it ended.",
        "logs": "Show what a job wrote.",
        "cancel": "Cancel your own jobs.",
        "rerun": "Submit again what failed of a batch job: of an array, its failed tasks.",
        "test": "Run the smoke suite in a stack's image, and report each check.",
        "report": "Show a test report again, or write it in another format.",
        "plan": "Estimate the GPU memory that training takes, and say which strategy fits.",
    },
    "Trouble": {
        "doctor": "Say what is wrong with this machine, the cluster and its nodes, and what to do.",
        "explain": "Explain what went wrong in a log or a job, and say what to type next.",
        "requeue": "Start a running batch job again, without the nodes that its failure is blamed on.",
        "hang": "Show where the ranks of a running job are, and which one stands out.",
        "help": "Print a how-to page, or list them.",
        "why": "Show where a variable of a launch got its value.",
    },
    "This machine": {
        "site": "Write site.yaml for this cluster (site init), and the files that its nodes need.",
        "completion": "Print the completion script of a shell.",
    },
}
WORDS = "hpcstack.words"  # the key of a context's verb and the words after it
VERBS = {verb: about for group in GROUPS.values() for verb, about in group.items()}


class Verbs(click.Group):
    """The group of all verbs.

    A verb's module, cli/VERB_.py, is imported when the verb is called. `--help` imports none.
    """

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None

        module = importlib.import_module(f"hpcstack.cli.{name}_")
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, and tell syslog of it where the site wants that."""
        began = time.monotonic()
        try:
            return super().invoke(ctx)
        finally:
            error = sys.exc_info()[1]
            status = _find_status(error) if error else 0
            words = ctx.meta.get(WORDS, ())
            if ctx.obj and words:
                from hpcstack.cli.verb_log import log_verb

                log_verb(ctx.obj, words, status, time.monotonic() - began)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        ctx.meta[WORDS] = tuple(args)
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from hpcstack.core.errors import did_you_mean

            raise click.UsageError(
                f"there is no verb {args[0]!r}{did_you_mean(args[0], VERBS)}", ctx
            )

        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # padded to one width, so that the descriptions of all groups begin in the same column
        width = max(map(len, VERBS))

        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(verb.ljust(width), about) for verb, about in verbs.items()])


@click.group(
    cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="hpcstack")
@click.option(
    "--site", default="", metavar="FILE", help="Read this site.yaml on top of all other layers."
)
@click.option(
    "--recipes",
    multiple=True,
    metavar="DIR",
    help="Look for recipes in this folder before all others.",
)
@click.option(
    "--arch",
    default="",
    type=OptionalChoice(["x86_64", "aarch64"]),
    show_default="this machine's",
    help="Use the module tree for nodes of this architecture.",
)
@click.pass_context
def group(ctx: click.Context, site: str, recipes: tuple[str, ...], arch: str) -> None:
    """Build containers and environments for HPC AI stacks.

    A stack is a YAML spec. It becomes a lock, an image, a module, a launcher and a test report.

    A first stack:  hpcstack build pytorch-24.11 && hpcstack test pytorch-24.11
    """
    from hpcstack.cli.session import Session

    ctx.obj = Session(site, recipes, arch)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line, and end with the exit code that its result or its error calls for.

    This is the only place that turns errors into messages and exit codes. ARGUMENTS are those of
    the process by default.
    """
    # Collect garbage less often: while the models are built, at the start, it would take 10 ms.
    gc.set_threshold(50_000)

    # Pydantic would look for plugins in every installed package, which takes 15 ms a start.
    if "PYDANTIC_DISABLE_PLUGINS" not in os.environ:
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
        OWN_VARIABLES.add("PYDANTIC_DISABLE_PLUGINS")

    # A path may hold bytes that cannot be decoded: print them escaped, do not fail on them.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    is_program = arguments is None  # otherwise the caller goes on after us
    words = sys.argv[1:] if arguments is None else arguments
    try:
        status = group.main(args=words or ["--help"], prog_name="hpcstack", standalone_mode=False)
        _leave(status if isinstance(status, int) else 0, is_program)
    except HpcstackError as error:
        _print_error(error.message, error.hint, error.page)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        _leave(error.exit_code, is_program)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "hpcstack"
        _print_error(error.format_message(), f"{command} --help")
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        _print_error("interrupted", "")
        sys.exit(130)
    except OSError as error:
        _print_error(
            f"{error.strerror or error}: {error.filename or 'a file of hpcstack'}",
            "is the disk full, or does the path belong to somebody else?",
        )
        sys.exit(7)
    except Exception as error:
        _print_error(
            f"this is a bug in hpcstack {__version__}: {type(error).__name__}: {error}",
            _keep_bug(error, words),
        )
        sys.exit(70)


def _find_status(error: BaseException) -> int:
    """Return the exit code that `main` ends with after ERROR."""
    if isinstance(error, (HpcstackError, click.exceptions.Exit, click.ClickException)):
        return 2 if isinstance(error, click.ClickException) else error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return 130
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0
    return 7 if isinstance(error, OSError) else 70


def _keep_bug(error: Exception, words: list[str]) -> str:
    """Write a report of ERROR, which the command line WORDS ran into. Return what to do with it.

    Where no report can be written, for whatever reason, the traceback is printed instead.
    """
    from hpcstack.cli.bug_report import write_bug_report

    try:
        path = write_bug_report(error, words)
    except Exception:
        import traceback

        traceback.print_exception(error)
        return "please report it with the lines above"
    return f"please report it, and send this file: {path}"


def _leave(status: int, is_program: bool) -> NoReturn:
    """End the process with STATUS.

    Python's own shutdown takes 20 ms to tear down all modules. It is skipped where nobody needs it:
    where no caller goes on after us (IS_PROGRAM) and no other thread is running.
    """
    if is_program and threading.active_count() == 1:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    sys.exit(status)


def _print_error(message: str, hint: str, page: str = "") -> None:
    """Print MESSAGE, HINT as what to do next, and the how-to PAGE to read, on stderr.

    MESSAGE and HINT may quote untrusted output.
    """
    message = sanitize_for_terminal(message)
    hint = sanitize_for_terminal(hint)

    # None lets click decide by whether stderr is a terminal
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(f"{click.style('ERROR:', fg='red')} {message}", err=True, color=color)
    if hint:
        click.echo(f"  {click.style('TIP:', fg='yellow')} {hint}", err=True, color=color)
    if page:
        label = click.style("READ:", fg="yellow")
        click.echo(f"  {label} hpcstack help {page}", err=True, color=color)
