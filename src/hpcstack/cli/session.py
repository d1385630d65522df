"""What verbs work with: the site, recipes, the store, programs and registries.

Each is made when a verb first asks for it. Here are also the functions that every verb prints with.

Tested in tests/unit/cli/test_admins_day.py and tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcstack.core.errors import sanitize_for_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hpcstack.build.workbench import Workbench
    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.naming.names import ImageFile, Names
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Catalog, Recipe
    from hpcstack.recipe.own_checks import OwnCheck
    from hpcstack.site.load import Loaded, Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store


@dataclass
class Session:
    """One call of the command line, with the options before the verb."""

    site_file: str
    recipe_options: tuple[str, ...]
    architecture: str = ""  # of the module tree; empty for this machine's

    @cached_property
    def loaded(self) -> Loaded:
        """The layers of site.yaml as one, with the origin of each value."""
        from hpcstack.site import load as site

        return site.load_site(self.site_file)

    @cached_property
    def site(self) -> Site:
        """The site, for the architecture that was asked for."""
        from hpcstack.core.errors import InputError

        site = self.loaded.site
        if not self.architecture:
            return site

        if not site.modules.by_architecture:
            raise InputError(
                "--arch: this site has one module tree for all nodes",
                "modules.by_architecture in site.yaml gives each architecture its own",
                page="two-architectures",
            )
        return site.for_architecture(self.architecture)

    @cached_property
    def folders(self) -> list[Path]:
        """The folders of recipes, in the order in which they are searched."""
        from hpcstack.core import data
        from hpcstack.core.carried import check_carried_folder
        from hpcstack.core.errors import InputError

        given = [*self.recipe_options, *self._folders_of_environment()]
        for folder in given:
            if not Path(folder).is_dir():
                how = "--recipes" if folder in self.recipe_options else "$HPCSTACK_RECIPES"
                raise InputError(f"{how} {folder}: no such folder", page="build-my-own-stack")
            check_carried_folder(Path(folder))

        return [*map(Path, given), *self.site.recipe_dirs, data.find_data_folder("recipes")]

    @staticmethod
    def _folders_of_environment() -> list[str]:
        return [folder for folder in os.environ.get("HPCSTACK_RECIPES", "").split(":") if folder]

    @property
    def own_folder(self) -> Path | None:
        """The folder that a new recipe goes to; None where there is no such folder.

        It is the first folder of recipes that is not the one which comes with hpcstack.
        """
        from hpcstack.core import data

        shipped = data.find_data_folder("recipes").resolve()
        for folder in self.folders:
            if folder.is_dir() and folder.resolve() != shipped:
                return folder
        return None

    @property
    def host_platform(self) -> str:
        """This machine's platform, as registries name it."""
        from hpcstack.build.base import find_host_platform

        return find_host_platform()

    def command_on(self, partition: str) -> tuple[str, ...]:
        """Return how a job on a node of PARTITION starts this hpcstack, with the options before
        the verb.

        Raise InputError where it cannot, since the node has another architecture.
        """
        from hpcstack.site.own_command import find_hpcstack_on

        return (*find_hpcstack_on(self.site.node_type(partition)), *self.words())

    def words(self) -> list[str]:
        """Return the same options as words for another hpcstack, which may run on another node.

        Paths become absolute, and the folders of $HPCSTACK_RECIPES become options.
        """
        out = []
        if self.site_file:
            out += ["--site", str(Path(self.site_file).absolute())]
        if self.architecture:
            out += ["--arch", self.architecture]
        for folder in (*self.recipe_options, *self._folders_of_environment()):
            out += ["--recipes", str(Path(folder).absolute())]
        return out

    @cached_property
    def catalog(self) -> Catalog:
        """All recipes, as the site's policy changes them."""
        from hpcstack.recipe.catalog import Catalog

        return Catalog(self.folders, self.loaded.policy)

    @cached_property
    def names(self) -> dict[str, Path]:
        """{full name: file} of every stack."""
        return self.catalog.names()

    def recipe(self, name: str) -> Recipe:
        """Return the recipe of the stack that NAME means, as NAME-VERSION or NAME/VERSION.

        A NAME alone means the default of what is published under it. Raise InputError where there
        is none, or ProblemsError where it cannot be read.
        """
        from hpcstack.core.errors import InputError, ProblemsError

        try:
            return self.catalog.find(name)
        except ProblemsError:
            raise
        except InputError as error:
            with contextlib.suppress(InputError):
                meant = self.naming.find_stack(name).stack
                if meant != name:
                    return self.catalog.find(meant)
            raise error from None

    @cached_property
    def naming(self) -> Names:
        """What says what a name means."""
        from hpcstack.naming.names import Names

        return Names(self.site, os.environ, lambda: self.catalog)

    def find_image(self, text: str) -> Artifact:
        """Return the stored image that TEXT means, for a verb that runs nothing in it.

        What else TEXT could have meant is said.
        """
        chosen = self.naming.find_image(text, retired=True)
        if chosen.note:
            say(f"NOTE: {chosen.note}")
        return chosen.artifact

    def find_image_file(self, text: str) -> ImageFile:
        """Return the file of the image that TEXT means, in the store or not, as `find_image`."""
        found = self.naming.find_image_file(text)
        if found.note:
            say(f"NOTE: {found.note}")
        return found

    def list_own_checks(self, names: tuple[str, ...]) -> dict[str, OwnCheck]:
        """Return {code: own check} of the stacks NAMES; without names, of all that the site has."""
        from hpcstack.recipe.own_checks import OF_SITE
        from hpcstack.site.own_checks import list_own_checks

        if not names:
            return {f"{OF_SITE}.{check.name}": check for check in self.site.checks}
        out: dict[str, OwnCheck] = {}
        for name in names:
            out |= list_own_checks(self.recipe(name).stack, self.site)
        return out

    @cached_property
    def store(self) -> Store:
        """The store of images."""
        from hpcstack.store.store import open_store

        return open_store(self.site)

    @cached_property
    def runner(self) -> Runner:
        """What runs other programs.

        From here on, TERM and HUP are taken like Ctrl-C: what was begun is undone.
        """
        from hpcstack.core.process import Runner

        signal.signal(signal.SIGTERM, _terminate)
        signal.signal(signal.SIGHUP, _terminate)
        return Runner()

    @cached_property
    def registry(self) -> Registry:
        """The client of registries, which warns by lines on stderr."""
        from hpcstack.oci.client import Registry

        return Registry(self.site, warn=say)

    def workbench(self, progress: Progress) -> Workbench:
        """Return what images are made with. It reports how far it is to PROGRESS."""
        from hpcstack.build.workbench import Workbench

        return Workbench(self.site, self.registry, self.runner, progress)

    @property
    def hasty_registry(self) -> Registry:
        """A client of registries with a short timeout and no retries.

        It is for verbs that can do without an answer.
        """
        from hpcstack.oci.client import Registry

        return Registry(self.site, timeout=5, tries=1)


def _terminate(*_: object) -> NoReturn:
    """Take a signal like Ctrl-C, so that what was begun is undone."""
    raise KeyboardInterrupt


def say(message: str) -> None:
    """Print a step of the work on stderr: stdout is for answers."""
    click.echo(f"* {sanitize_for_terminal(message)}", err=True)


@contextlib.contextmanager
def show_progress(doing: str, events: str = "") -> Iterator[Progress]:
    """Yield what long work reports its progress to, while it is DOING something.

    On a terminal it is shown as bars and a clock, else as plain lines. EVENTS is a file to write
    JSON lines to, or empty.
    """
    from hpcstack.cli.progress import draw_progress

    with draw_progress(doing, say, events) as progress:
        yield progress


def answer(document: Any, as_json: bool, text: Callable[[], str]) -> None:
    """Print a verb's answer on stdout: DOCUMENT as JSON, or TEXT, which is made only if shown."""
    if as_json:
        echo(json.dumps(document, indent=1))
    else:
        echo(text().rstrip("\n"))


def echo(text: str) -> None:
    """Print TEXT on stdout, without characters that control a terminal.

    `| head` ends hpcstack as it ends any other tool.
    """
    try:
        click.echo(sanitize_for_terminal(text))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python ignores SIGPIPE. Die of it here, as a shell expects, and only here: a broken pipe
        # to a program that we started is an error like any other.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)


events_option = click.option(
    "--events", default="", metavar="FILE", help="Also write progress as JSON lines."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
)
optional_stack = click.argument(
    "name",
    metavar="[STACK]",
    default="",
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
stack_argument = click.argument(
    "name", metavar="STACK", shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start)
)


def is_pattern(name: str) -> bool:
    """Return whether NAME stands for every name that it matches, as in a shell."""
    return any(character in name for character in "*?[")


def choose_stacks(session: Session, names: Sequence[str]) -> list[str]:
    """Return the stacks that NAMES mean, each once.

    A pattern means every stack that it matches. Raise InputError where it matches none.
    """
    import fnmatch

    from hpcstack.core.errors import InputError

    out: list[str] = []
    for name in names:
        found = fnmatch.filter(session.names, name) if is_pattern(name) else [name]
        if not found:
            raise InputError(
                f"no stack matches {name!r}",
                "hpcstack list shows all stacks",
                page="build-my-own-stack",
            )
        out += found
    return list(dict.fromkeys(out))


def complete_stacks(ctx: click.Context, start: str) -> list[str]:
    """Return the stacks that begin with START, for a shell's completion."""
    given = ctx.find_root().params
    try:
        session = Session(given.get("site") or "", given.get("recipes") or ())
        return [name for name in session.catalog.names() if name.startswith(start)]
    except Exception:  # a completion must never disturb the line that is being typed
        return []


def format_table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> str:
    """Return ROWS below their HEAD in columns, as plain text that ends with a line end.

    A line break in a cell becomes a space: it must not look like a row of its own.
    """
    rows = [
        tuple(re.sub(r"[\n\r\t\v\f\x85\u2028\u2029]", " ", cell) for cell in row) for row in rows
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
    return "\n".join(lines) + "\n"


def give_script(text: str, output: str, where: str, mode: int = 0o755) -> None:
    """Write the script TEXT to the file OUTPUT with MODE, or print it if there is none.

    Once it is written, a line on stderr says where its path belongs. WHERE is the beginning of that
    line, such as `put this into slurm.conf: Prolog=`; the path is appended to it.
    """
    from hpcstack.core.files import writing_below
    from hpcstack.core.outputs import write_output

    if not output:
        echo(text.rstrip("\n"))
        return

    path = Path(output)
    with writing_below(path.parent, "the script was not written"):
        write_output(path, text, mode)
    say(f"{path}: {where}{path.resolve()}")
