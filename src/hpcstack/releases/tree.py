"""The module tree: where modulefiles lie, and how one change becomes visible as a whole.

    Core/NAME/VERSION-rN.lua        what `module use ROOT/Core` shows to Lmod; files that are written once
    Core/NAME/.modulerc.lua         a link to state/NAME/current/..., so that aliases, hidden versions, the default and
                                    the dates change by the ONE rename that makes `current` another
                                    generation
    Core/hpcstack/NAME.lua          a gateway to more/NAME/Core, for names that have no room in Core
    more/NAME/Core/NAME/...         the same below a gateway: what Core does not hold costs no load anything
    Tcl/..., more/NAME/Tcl/...      the same for Environment Modules. Not beside the others: Lmod opens each on a load
    state/NAME/K/                   generation K: ledger.json, modulerc.lua, modulerc, dates/VERSION
    state/NAME/journal.json         a change that is to be made; whoever comes next finishes it
    spider/                         Lmod's spider cache, and a mark where it is older than the tree

A change is prepared where nobody looks, written down, and then done in steps that may be done
again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core import descriptors, files, sharing
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import write_text
from hpcstack.core.lease import hold_lease
from hpcstack.core.quote import join_lines
from hpcstack.releases.inventory import inventory_files
from hpcstack.releases.journal import GENERATION, MAX_JOURNAL, check_journal, read_journal
from hpcstack.releases.layout import CORE, CURRENT, GATE, JOURNAL, MORE, SPIDER, STALE, STATE, TCL
from hpcstack.releases.ledger import FORMAT, Ledger
from hpcstack.releases.ledger_format import as_json, check_ledger, parse_ledger
from hpcstack.releases.modulerc import render_gateway, render_modulerc
from hpcstack.releases.permissions import Permissions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# modulefiles of one kind that Core may hold before a new name goes behind a gateway: 25 us of a
# load each
ROOM = 100
CROWD = 250  # a load takes 1.3 times as long as from a small tree
# Lmod lists a folder and then reads its .modulerc: what an alias names must be there well before
SETTLE_S = 0.05


@dataclass(frozen=True)
class TreeChange:
    """LEDGER is what it shall be; FILES are {path below the root: text} of modulefiles that are
    new.

    MOVES are ((prepared folder, its place, what its record holds), ...): releases that lie ready.
    GONE are paths below the root of modulefiles that go once nothing names them.
    """

    ledger: Ledger
    files: dict[str, str]
    verb: str
    moves: tuple[tuple[str, str, str], ...] = ()
    gone: tuple[str, ...] = ()


class Tree:
    """One module tree, below ROOT."""

    def __init__(
        self,
        root: Path,
        marks: Permissions | None = None,
        direct: tuple[str, ...] | None = None,
        releases: Path | None = None,
    ) -> None:
        """RELEASES is the folder of the store below which releases lie; without it none can be
        published.
        """
        self.root, self.marks, self.direct, self.releases = (
            root,
            marks or Permissions(),
            direct,
            releases,
        )

    # -- reading

    @property
    def core(self) -> Path:
        """What users `module use`."""
        return self.root / CORE

    def names(self) -> list[str]:
        """What is published, by name."""
        folder = self.root / STATE
        return sorted(
            path.parent.parent.name for path in folder.glob(f"[!.]*/{CURRENT}/ledger.json")
        )

    def ledger(self, name: str, *, to_change: bool = False) -> Ledger:
        """The ledger of NAME: an empty one where nothing was published.

        One of a newer hpcstack is not TO_CHANGE.
        """
        path = self.root / STATE / name / CURRENT / "ledger.json"
        try:
            document = json.loads(files.read_bytes(path, MAX_JOURNAL, published=True))
            return parse_ledger(document, str(path), name, to_change=to_change)
        except FileNotFoundError:
            return Ledger(name)
        except (OSError, ValueError, RecursionError, InputError) as error:
            raise StoreError(
                f"{path} cannot be read: {error}", "restore it from a backup"
            ) from None

    def home(self, name: str) -> Path:
        """The folder of Lmod's MODULEPATH that holds NAME: it never moves once it is there."""
        below = self.root / MORE / name / CORE
        for top in (self.core, below):
            if (top / name).is_dir():
                return top
        if self.direct is not None:
            return self.core if name in self.direct else below
        count = sum(1 for _ in self.core.glob("[!.]*/[!.]*.lua"))
        return self.core if count < ROOM else below

    def homes(self, name: str) -> dict[str, Path]:
        """{suffix of modulefiles: their folder of MODULEPATH}: for Lmod and for Environment
        Modules.
        """
        home = self.home(name)
        return {".lua": home, "": home.with_name(TCL)}

    def behind(self, name: str) -> bool:
        """Whether NAME is loaded by way of its gateway."""
        return self.home(name) != self.core

    def how(self, name: str, version: str) -> str:
        """What a user types to load it."""
        return (
            f"module load {GATE}/{name} {name}/{version}"
            if self.behind(name)
            else f"module load {name}/{version}"
        )

    def pending(self) -> list[str]:
        """The names whose change was interrupted."""
        return sorted(path.parent.name for path in (self.root / STATE).glob(f"[!.]*/{JOURNAL}"))

    def crowded(self) -> int:
        """How many modulefiles Core holds, where they are so many that each load feels it; else 0."""
        count = sum(1 for _ in self.core.glob("[!.]*/[!.]*.lua"))
        return count if count > CROWD else 0

    @property
    def stale(self) -> bool:
        """Whether something has changed since the spider cache was made."""
        return (self.root / SPIDER / STALE).exists()

    # -- writing

    @contextlib.contextmanager
    def hold(self, name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """NAME for this process alone, after others, who are told to SAY; what they left undone is
        finished first.
        """
        with self.leased(name, say):
            self.recover(name)
            yield

    @contextlib.contextmanager
    def leased(self, name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """NAME for this process alone, and nothing is finished: its state may be what has to be
        mended.
        """
        state = self.root / STATE / name
        with self.acting():
            self.marks.folder(self.root, state)
            with hold_lease(
                state / "lease", lambda who: say(f"waiting for another publisher of {name}: {who}")
            ):
                yield

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Turns the system's refusals into StoreError; what is made has the site's modes, whatever
        the umask.
        """
        mask = os.umask(0o022)
        try:
            yield
        except OSError as error:
            where = error.filename or self.root
            tip = (
                "it must be writable by whoever publishes: `module_root` in site.yaml (hpcstack "
                "show --site)"
            )
            if files.is_for_want_of_room(error):
                tip = f"make room on the disk of {self.root}"
            raise StoreError(
                f"the module tree could not be written: {error.strerror or error} ({where})"
                + "".join(
                    f"; the change of {name} is begun, and the next verb finishes it"
                    for name in self.pending()
                ),
                tip,
            ) from None
        finally:
            os.umask(mask)

    def commit(self, change: TreeChange) -> None:
        """CHANGE, whole: killed at any point, the tree is as before or `recover` makes it as after."""
        check_ledger(change.ledger)
        name, state = change.ledger.name, self.root / STATE / change.ledger.name
        number = self._generation(state)
        steps = []
        if change.files:  # what is new is hidden by the old aliases until the new ones name it
            before = self.ledger(name)
            new = tuple(
                path.removesuffix(".lua").rpartition("/")[2]
                for path in change.files
                if path.endswith(".lua")
            )
            steps.append(self._prepare(state, number + 1, before, new))
        steps.append(self._prepare(state, number + len(steps) + 1, change.ledger))
        homes = {
            suffix: str(home.relative_to(self.root)) for suffix, home in self.homes(name).items()
        }
        journal = {
            "format": FORMAT,
            "verb": change.verb,
            "homes": homes,
            "files": change.files,
            "moves": change.moves,
            "generations": steps,
            "gone": change.gone,
        }
        write_text(
            state / JOURNAL, json.dumps(journal), 0o600
        )  # what it says will be done: nobody else may change it
        self.recover(name)

    def recover(self, name: str) -> bool:
        """Do what NAME's journal says, from its beginning; sweep what nobody wrote down.

        Whether there was one.
        """
        state = self.root / STATE / name
        journal = read_journal(state / JOURNAL)
        if journal:
            check_journal(name, journal, state / JOURNAL, self.releases, self.root)
        if journal and self._generation(state) == int(journal["generations"][-1]):
            self._unlink(journal)  # all was done but this
            descriptors.remove_file(state / JOURNAL)
        elif journal:
            self.marks.folder(self.root, self.root / SPIDER)
            stale = self.root / SPIDER / STALE
            descriptors.remove_file(stale)  # anew: another's file could not be marked
            with (
                contextlib.suppress(FileExistsError),
                descriptors.create_file(stale) as file,
            ):  # or another change's
                descriptors.set_marks(file.fileno(), sharing.shared_mode(0o644))
            for part, final, record in journal["moves"]:
                _move(Path(part), Path(final), record)
            *before, last = journal["generations"]
            for generation in before:
                self._flip(state, generation)
            self._links(
                name, {suffix: self.root / home for suffix, home in journal["homes"].items()}
            )
            for path, text in journal["files"].items():
                self._file(self.root / path, text)
            if journal["files"]:
                time.sleep(SETTLE_S)
            self._flip(state, last)
            if journal.get("gone"):
                time.sleep(SETTLE_S)
            self._unlink(journal)
            descriptors.remove_file(state / JOURNAL)
        self._sweep(name)
        return bool(journal)

    def _unlink(self, journal: Mapping[str, Any]) -> None:
        """The modulefiles that nothing names any more."""
        for path in journal.get("gone", []):
            descriptors.remove_file(self.root / path)

    def _file(self, path: Path, text: str) -> None:
        """A modulefile, once: what already exists is not touched."""
        if not descriptors.path_exists(path):
            self.marks.folder(self.root, path.parent)
            self.marks.write(path, text)

    def _prepare(self, state: Path, number: int, ledger: Ledger, new: tuple[str, ...] = ()) -> str:
        """Generation NUMBER as a folder that nothing points to; releases NEW are hidden in it."""
        final, part = state / str(number), state / f".{number}.{uuid.uuid4().hex[:8]}.part"
        files = {
            "ledger.json": json.dumps(as_json(ledger), indent=1) + "\n",
            "modulerc.lua": render_modulerc(ledger, new, "modulerc.lua.j2"),
            "modulerc": render_modulerc(ledger, new, "modulerc.tcl.j2"),
        }
        for version, dates in ledger.dates.items():
            lines = (
                ("deprecate", dates.deprecate),
                ("remove", dates.remove),
                ("successor", dates.successor),
                ("reason", dates.reason),
            )
            files[f"dates/{version}"] = "".join(
                f"{key}={join_lines(value)}\n" for key, value in lines if value
            )
        files |= inventory_files(f"{ledger.name}#{number}", files)
        for path, text in files.items():
            self.marks.folder(self.root, (part / path).parent)
            self.marks.write(part / path, text)
        descriptors.remove_tree(final)  # of a change that was never written down
        descriptors.rename_path(part, final)
        descriptors.sync_folder(state)
        return str(number)

    def _links(self, name: str, homes: dict[str, Path]) -> None:
        for suffix, home in homes.items():
            folder = home / name
            self.marks.folder(self.root, folder)
            link = folder / f".modulerc{suffix}"
            target = os.path.relpath(
                self.root / STATE / name / CURRENT / f"modulerc{suffix}", folder
            )
            if descriptors.read_link(link) != target:
                descriptors.point_link(target, link)
            if home.parent != self.root:
                self._file(
                    self.root / home.name / GATE / f"{name}{suffix}",
                    render_gateway(name, str(home), suffix),
                )

    def _flip(self, state: Path, generation: str) -> None:
        if not (state / generation / "ledger.json").exists():
            raise StoreError(
                f"{state / generation} is gone, and the journal names it",
                "restore it from a backup",
            )
        descriptors.point_link(generation, state / CURRENT)

    def _generation(self, state: Path) -> int:
        link = state / CURRENT
        said = descriptors.read_link(link) or "0"
        if said != "0" and not GENERATION.fullmatch(said):
            raise StoreError(
                f"{link} leads to {said!r}, which is not a generation", "restore it from a backup"
            )
        return int(said)

    def _sweep(self, name: str) -> None:
        """Generations that nobody reads any more, and parts of what never was.

        NAME's lease is held: nobody writes.
        """
        state = self.root / STATE / name
        now = self._generation(state)
        parts = [
            path for home in self.homes(name).values() for path in (home / name).glob(".*.part")
        ]
        for path in (*state.iterdir(), *parts):
            old = GENERATION.fullmatch(path.name) and not now - 2 <= int(path.name) <= now
            if old or path.name.endswith(".part"):
                descriptors.remove_tree(path)


def _move(part: Path, final: Path, record: str) -> None:
    """PART at its place.

    StoreError where what lies there is not the release whose RECORD is meant.
    """
    if descriptors.is_folder(part) and not descriptors.path_exists(final):
        descriptors.rename_path(part, final)
        descriptors.sync_folder(final.parent)
    try:
        if files.read_text(final / "release.json", MAX_JOURNAL) == record:
            return
    except (OSError, InputError):
        pass
    raise StoreError(
        f"{final} is not the release that was to be published",
        "is another module tree on this store?",
    )
