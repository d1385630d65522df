"""What every verb works with: the site, the recipes, the store, the runner and the registry; made
when asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.core.errors import sanitize_for_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hpcstack.build.workbench import Workbench
    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.catalog import Catalog, Recipe
    from hpcstack.site.load import Loaded, Site
    from hpcstack.store.store import Store


@dataclass
class Session:
    """One call of the command line."""

    site_file: str
    recipe_options: tuple[str, ...]
    architecture: str = ""  # whose module tree is meant; empty: this machine's

    @cached_property
    def loaded(self) -> Loaded:
        from hpcstack.core import sharing
        from hpcstack.site import load as site

        loaded = site.load_site(self.site_file)
        sharing.share_with_group(loaded.site.group)
        sharing.trust_publishers(loaded.site.modules.publishers)
        return loaded

    @cached_property
    def site(self) -> Site:
        from hpcstack.core.errors import InputError

        site = self.loaded.site
        if not self.architecture:
            return site
        if not site.modules.by_architecture:
            raise InputError(
                "--arch: this site has one module tree for all nodes",
                "modules.by_architecture in site.yaml gives each architecture its own",
            )
        return site.for_architecture(self.architecture)

    @cached_property
    def folders(self) -> list[Path]:
        """Where recipes are looked for, first to last."""
        from hpcstack.core import data
        from hpcstack.core.errors import InputError

        named = [folder for folder in os.environ.get("HPCSTACK_RECIPES", "").split(":") if folder]
        given = [*self.recipe_options, *named]
        for folder in given:
            if not Path(folder).is_dir():
                how = "--recipes" if folder in self.recipe_options else "$HPCSTACK_RECIPES"
                raise InputError(f"{how} {folder}: no such folder")
        return [*map(Path, given), *self.site.recipe_dirs, data.find_data_folder("recipes")]

    @property
    def own_folder(self) -> Path | None:
        """The first folder of recipes that is somebody's own, and not hpcstack's: where a new
        recipe goes.
        """
        from hpcstack.core import data

        shipped = data.find_data_folder("recipes").resolve()
        return next(
            (one for one in self.folders if one.is_dir() and one.resolve() != shipped), None
        )

    def words(self) -> list[str]:
        """The same options for another process, which may run elsewhere: paths are absolute."""
        site = ["--site", str(Path(self.site_file).absolute())] if self.site_file else []
        named = [folder for folder in os.environ.get("HPCSTACK_RECIPES", "").split(":") if folder]
        folders = [str(Path(folder).absolute()) for folder in (*self.recipe_options, *named)]
        arch = ["--arch", self.architecture] if self.architecture else []
        return [*site, *arch, *(word for folder in folders for word in ("--recipes", folder))]

    @cached_property
    def catalog(self) -> Catalog:
        from hpcstack.recipe.catalog import Catalog

        return Catalog(self.folders, self.loaded.policy)

    @cached_property
    def names(self) -> dict[str, Path]:
        """{full name: file} of every stack."""
        return self.catalog.names()

    def recipe(self, name: str) -> Recipe:
        """The recipe of NAME-VERSION, of NAME/VERSION, or of the default of what is published as
        NAME.
        """
        from hpcstack.core.errors import InputError, ProblemsError

        try:
            return self.catalog.find(name)
        except ProblemsError:
            raise
        except InputError as error:
            if (meant := self._published(name)) and meant != name:
                return self.catalog.find(meant)
            raise error from None

    def _published(self, name: str) -> str:
        """The stack that NAME means in the module tree; empty where it means none there."""
        from hpcstack.core.errors import InputError
        from hpcstack.releases.named import resolve_name
        from hpcstack.releases.tree import Tree
        from hpcstack.store.find import is_file

        try:
            return (
                ""
                if is_file(name)
                else resolve_name(name, Tree(self.site.module_tree), os.environ).stack
            )
        except InputError:
            return ""

    @cached_property
    def store(self) -> Store:
        from hpcstack.store.store import open_store

        return open_store(self.site)

    @cached_property
    def runner(self) -> Runner:
        from hpcstack.core.process import Runner

        signal.signal(signal.SIGTERM, _terminate)
        signal.signal(signal.SIGHUP, _terminate)
        return Runner()

    @cached_property
    def registry(self) -> Registry:
        from hpcstack.oci.client import Registry

        return Registry(self.site, warn=say)

    def workbench(self, progress: Progress) -> Workbench:
        """What images are made with; PROGRESS is told how far it is."""
        from hpcstack.build.workbench import Workbench

        return Workbench(self.site, self.registry, self.runner, progress)

    @property
    def hasty_registry(self) -> Registry:
        """For what works without an answer, too: nothing is asked twice."""
        from hpcstack.oci.client import Registry

        return Registry(self.site, timeout=5, tries=1)


def image_named(session: Session, text: str) -> str:
    """TEXT, which names an image, as what the store knows: the key of a published release, else as
    it is.

    NAME/VERSION, NAME-VERSION and NAME mean what is published, as in `launch`; what is not
    published, what was built last. Files, STACK@ENGINE and keys stay.
    """
    from hpcstack.core.errors import StoreError
    from hpcstack.releases.lookup import find_released
    from hpcstack.releases.named import resolve_name
    from hpcstack.releases.tree import Tree
    from hpcstack.store.find import is_file

    if is_file(text) or "@" in text or session.store.artifact(text):
        return text
    meant = resolve_name(text, Tree(session.site.module_tree), os.environ)
    try:
        found = find_released(meant.stack, session.site, session.store, meant.release, retired=True)
    except StoreError:
        found = None
    return found.artifact.key if found else meant.stack


def _terminate(*_: object) -> None:
    """A TERM is taken like an interrupt: what was begun is undone."""
    raise KeyboardInterrupt


def say(message: str) -> None:
    """A step, on stderr: stdout is for answers."""
    click.echo(f"* {sanitize_for_terminal(message)}", err=True)


@contextlib.contextmanager
def show_progress(doing: str, events: str = "") -> Iterator[Progress]:
    """What long work talks to: bars and a clock on a terminal, else plain lines; EVENTS is a file
    of JSON lines.
    """
    from hpcstack.cli.progress import draw_progress

    with draw_progress(doing, say, events) as progress:
        yield progress


def answer(document: Any, as_json: bool, text: Callable[[], str]) -> None:
    """The verb's answer on stdout: one JSON document, or text."""
    echo(json.dumps(document, indent=1) if as_json else text().rstrip("\n"))


def echo(text: str) -> None:
    """TEXT on stdout; what would command a terminal in it is shown as a character that is none.

    `| head` ends us as it ends any other tool; a broken pipe of our own is an error like others.
    """
    try:
        click.echo(sanitize_for_terminal(text))
        sys.stdout.flush()
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)


events_option = click.option(
    "--events", default="", metavar="FILE", help="Also write progress as JSON lines."
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
optional_stack = click.argument(
    "name",
    metavar="[STACK]",
    default="",
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
stack_argument = click.argument(
    "name", metavar="STACK", shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start)
)


def choose_stacks(session: Session, names: Sequence[str]) -> list[str]:
    """NAMES, of which those with * or ? mean every stack that fits. InputError where none does."""
    import fnmatch

    from hpcstack.core.errors import InputError

    out: list[str] = []
    for name in names:
        fitting = fnmatch.filter(session.names, name) if {"*", "?"} & set(name) else [name]
        if not fitting:
            raise InputError(f"no stack is like {name!r}", "hpcstack list shows all stacks")
        out += fitting
    return list(dict.fromkeys(out))


def complete_stacks(ctx: click.Context, start: str) -> list[str]:
    """Stacks that begin with START, for shells."""
    given = ctx.find_root().params
    try:
        session = Session(given.get("site") or "", given.get("recipes") or ())
        return [name for name in session.catalog.names() if name.startswith(start)]
    except Exception:  # a completion must never disturb the line that is being typed
        return []


def format_table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> str:
    """Rows in columns, plain text."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
    return "\n".join(lines) + "\n"


def give_script(text: str, output: str, where: str, mode: int = 0o755) -> None:
    """The script TEXT into the file OUTPUT, or printed; then WHERE to name it."""
    from hpcstack.core.files import writing_below
    from hpcstack.core.outputs import write_output

    if not output:
        echo(text.rstrip("\n"))
        return
    path = Path(output)
    with writing_below(path.parent, "the script was not written"):
        write_output(path, text, mode)
    say(f"{path}: {where}{path.resolve()}")
