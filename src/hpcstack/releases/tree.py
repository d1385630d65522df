"""The module tree: where modulefiles lie, and how a change becomes visible as a whole.

    Core/NAME/VERSION-rN.lua    what `module use ROOT/Core` shows to Lmod; written once
    Core/NAME/.modulerc.lua     a link to state/NAME/current/modulerc.lua
    Core/hpcstack/NAME.lua      a gateway to more/NAME/Core, for a name without room in Core
    more/NAME/Core/NAME/...     the same as Core/NAME, behind the gateway
    Tcl/..., more/NAME/Tcl/...  the same for Environment Modules
    state/NAME/K/               generation K: ledger.json, modulerc.lua, modulerc, dates/VERSION
    state/NAME/current          a link to the generation that counts
    state/NAME/journal.json     a change that has begun; the next verb finishes it
    spider/                     Lmod's spider cache, and a mark while it is older than the tree

Aliases, hidden versions, the default and the dates all lie in a generation. So they change by the
ONE rename that points `current` at another generation. Lua and Tcl modulefiles lie apart, and
gateways exist, because Lmod opens every modulefile in MODULEPATH on each load.

A change is prepared where nobody looks, then written into a journal, and then done in steps that
may be repeated.
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

from hpcstack.core import descriptors, files
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import write_text
from hpcstack.core.lease import hold_lease, still_holds_lease
from hpcstack.core.quote import join_lines
from hpcstack.core.sharing import ALONE, Sharing
from hpcstack.releases.inventory import render_inventory_files
from hpcstack.releases.journal import GENERATION, MAX_JOURNAL, check_journal, read_journal
from hpcstack.releases.layout import CORE, CURRENT, GATE, JOURNAL, MORE, SPIDER, STALE, STATE, TCL
from hpcstack.releases.ledger import FORMAT, Ledger
from hpcstack.releases.ledger_format import as_json, check_ledger, parse_ledger
from hpcstack.releases.modulerc import render_gateway, render_modulerc
from hpcstack.releases.permissions import Permissions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.core.progress import Say
    from hpcstack.site.load import Site

# How many Lua modulefiles Core may hold before a new name goes behind a gateway: each of them
# costs every load 25 us.
ROOM = 100
# With so many in Core a load takes 1.3 times as long as from a small tree.
CROWD = 250
# Seconds between writing modulefiles and the alias that names them, and between dropping an alias and
# removing its modulefiles. Lmod lists a folder and then reads its .modulerc: a load that is between
# the two must find what the alias names in the list that it has.
SETTLE_S = 0.05


@dataclass(frozen=True)
class TreeChange:
    """A change of one name in the tree, ready to be committed."""

    ledger: Ledger  # as it will be
    files: dict[str, str]  # {path below the root: text} of new modulefiles
    verb: str
    # ((prepared folder, its final place, text of its record), ...) of new releases
    moves: tuple[tuple[str, str, str], ...] = ()
    # paths below the root of modulefiles that are removed once nothing names them
    gone: tuple[str, ...] = ()


def open_tree(site: Site) -> Tree:
    """Return the module tree of SITE, to be read."""
    return Tree(site.module_tree, sharing=site.sharing)


class Tree:
    """One module tree, below ROOT."""

    def __init__(
        self,
        root: Path,
        marks: Permissions | None = None,
        direct: tuple[str, ...] | None = None,
        releases: Path | None = None,
        sharing: Sharing = ALONE,
    ) -> None:
        """Open the tree below ROOT; it need not exist.

        MARKS are the modes and the group of what is written. DIRECT are the names that lie in Core
        and not behind a gateway; None leaves that to their number. RELEASES is the folder of the
        store in which releases lie; without it nothing can be published. SHARING is the site's.
        """
        self.root = root
        self.sharing = sharing
        self.marks = marks or Permissions(
            sharing.widen_mode(0o644), opens_folders=sharing.has_group
        )
        self.direct = direct
        self.releases = releases

    # -- reading

    @property
    def core(self) -> Path:
        """The folder that users `module use`."""
        return self.root / CORE

    def names(self) -> list[str]:
        """Return the names under which something is published, sorted."""
        folder = self.root / STATE
        return sorted(
            path.parent.parent.name for path in folder.glob(f"[!.]*/{CURRENT}/ledger.json")
        )

    def ledger(self, name: str, *, to_change: bool = False) -> Ledger:
        """Return the ledger of NAME; an empty one where nothing was published.

        StoreError where it is damaged, and TO_CHANGE also where a newer hpcstack wrote it.
        """
        path = self.root / STATE / name / CURRENT / "ledger.json"
        try:
            document = json.loads(files.read_bytes(path, MAX_JOURNAL, publishers=self.sharing))
            return parse_ledger(document, str(path), name, to_change=to_change)
        except FileNotFoundError:
            return Ledger(name)
        except (OSError, ValueError, RecursionError, InputError) as error:
            raise StoreError(
                f"{path} cannot be read: {error}",
                "restore it from a backup",
                page="repair-what-is-published",
            ) from None

    def home(self, name: str) -> Path:
        """Return the folder in Lmod's MODULEPATH that holds NAME.

        A name that is there never moves. A new one goes into Core where there is room.
        """
        behind_gateway = self.root / MORE / name / CORE
        for top in (self.core, behind_gateway):
            if (top / name).is_dir():
                return top
        if self.direct is not None:
            return self.core if name in self.direct else behind_gateway
        return self.core if self._count_in_core() < ROOM else behind_gateway

    def homes(self, name: str) -> dict[str, Path]:
        """Return {suffix of modulefiles: the folder in MODULEPATH that holds NAME}.

        Modulefiles for Lmod end in `.lua`, those for Environment Modules have no suffix.
        """
        home = self.home(name)
        return {".lua": home, "": home.with_name(TCL)}

    def behind(self, name: str) -> bool:
        """Whether NAME is loaded by way of its gateway."""
        return self.home(name) != self.core

    def how(self, name: str, version: str) -> str:
        """Return what a user types to load VERSION of NAME."""
        gateway = f"{GATE}/{name} " if self.behind(name) else ""
        return f"module load {gateway}{name}/{version}"

    def pending(self) -> list[str]:
        """Return the names whose change was begun and not finished."""
        return sorted(path.parent.name for path in (self.root / STATE).glob(f"[!.]*/{JOURNAL}"))

    def crowded(self) -> int:
        """Return how many modulefiles Core holds, if so many slow each load down; else 0."""
        count = self._count_in_core()
        return count if count > CROWD else 0

    def _count_in_core(self) -> int:
        return sum(1 for _ in self.core.glob("[!.]*/[!.]*.lua"))

    @property
    def stale(self) -> bool:
        """Whether something has changed since the spider cache was made."""
        return (self.root / SPIDER / STALE).exists()

    # -- writing

    @contextlib.contextmanager
    def hold(self, name: str, say: Say = lambda _: None) -> Iterator[None]:
        """Keep others from changing NAME meanwhile, and finish what they have left undone.

        While this has to wait, SAY is told for whom.
        """
        with self.leased(name, say):
            self.recover(name)
            yield

    @contextlib.contextmanager
    def leased(self, name: str, say: Say = lambda _: None) -> Iterator[None]:
        """Keep others from changing NAME meanwhile, and finish nothing.

        For repairs: the state of NAME, from which a change would be finished, may be damaged.
        """
        state = self.root / STATE / name
        with self.acting():
            self.marks.folder(self.root, state)
            with hold_lease(
                state / "lease",
                lambda who: say(f"waiting for another publisher of {name}: {who}"),
                sharing=self.sharing,
            ):
                yield

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Turn the system's refusals into StoreError.

        The umask is a usual one meanwhile: what is made gets the site's modes, whatever the umask
        of who publishes.
        """
        mask = os.umask(0o022)
        try:
            yield
        except OSError as error:
            where = error.filename or self.root
            what = f"the module tree could not be written: {error.strerror or error} ({where})"
            for name in self.pending():
                what += f"; the change of {name} is begun, and the next verb finishes it"
            tip = (
                "it must be writable by whoever publishes: `module_root` in site.yaml (hpcstack "
                "show --site)"
            )
            page = ""
            if files.is_for_want_of_room(error):
                tip = f"make room on the disk of {self.root}"
                page = "free-disk-space"
            raise StoreError(what, tip, page=page) from None
        finally:
            os.umask(mask)

    def commit(self, change: TreeChange) -> None:
        """Make CHANGE as a whole. The caller holds its name.

        A process that is killed at any point leaves the tree as it was before, or `recover`
        completes the change.
        """
        check_ledger(change.ledger)
        name = change.ledger.name
        state = self.root / STATE / name
        # It may have been taken over while this process was stopped, or broken: then another change
        # may have been made of the same ledger.
        if not still_holds_lease(state / "lease"):
            raise StoreError(
                f"somebody has taken over {name} meanwhile; nothing of this change was made",
                "hpcstack status, and type it again",
                page="repair-what-is-published",
            )
        number = self._read_generation(state)

        generations = []
        if change.files:
            # New modulefiles must be there before an alias names them, and must not be seen till
            # then. So the change takes two generations: this one has the old aliases and hides the
            # new releases, the next one has the new aliases.
            new = tuple(
                path.removesuffix(".lua").rpartition("/")[2]
                for path in change.files
                if path.endswith(".lua")
            )
            hiding = self._prepare_generation(state, number + 1, self.ledger(name), new)
            generations.append(hiding)
        last = number + len(generations) + 1
        generations.append(self._prepare_generation(state, last, change.ledger))

        homes = {
            suffix: str(home.relative_to(self.root)) for suffix, home in self.homes(name).items()
        }
        journal = {
            "format": FORMAT,
            "verb": change.verb,
            "homes": homes,
            "files": change.files,
            "moves": change.moves,
            "generations": generations,
            "gone": change.gone,
        }
        # Whoever comes next does what it says: nobody else may change it.
        write_text(state / JOURNAL, json.dumps(journal), 0o600)
        self.recover(name)

    def recover(self, name: str) -> bool:
        """Do what NAME's journal says, from its beginning, and return whether there was one.

        Then sweep what was prepared and is in no journal. The caller holds NAME.
        """
        state = self.root / STATE / name
        journal = read_journal(state / JOURNAL)
        if journal:
            check_journal(name, journal, state / JOURNAL, self.releases, self.root)
            # Where the last generation counts already, nothing is left but to tidy up.
            if self._read_generation(state) != int(journal["generations"][-1]):
                self._carry_out(name, journal)
            self._remove_gone(journal)
            descriptors.remove_file(state / JOURNAL)
        self._sweep(name)
        return bool(journal)

    def _carry_out(self, name: str, journal: Mapping[str, Any]) -> None:
        """Do what JOURNAL says, up to the rename that makes it visible.

        Each step may be repeated, so that whoever finishes an interrupted change does all of them.
        """
        state = self.root / STATE / name
        self._mark_cache_stale()
        for part, final, record in journal["moves"]:
            _move_release(Path(part), Path(final), record)

        *hiding, last = journal["generations"]
        for generation in hiding:
            self._switch_to(state, generation)
        homes = {suffix: self.root / home for suffix, home in journal["homes"].items()}
        self._write_links(name, homes)
        for path, text in journal["files"].items():
            self._write_once(self.root / path, text)
        if journal["files"]:
            time.sleep(SETTLE_S)

        self._switch_to(state, last)
        if journal.get("gone"):
            # A load that has read the old aliases finds what they name.
            time.sleep(SETTLE_S)

    def _mark_cache_stale(self) -> None:
        """Write down that the spider cache is older than the tree."""
        self.marks.folder(self.root, self.root / SPIDER)
        stale = self.root / SPIDER / STALE
        # A new file each time, as the modes of another user's file could not be set. Where another
        # change has just made it, that one serves.
        descriptors.remove_file(stale)
        with contextlib.suppress(FileExistsError), descriptors.create_file(stale) as file:
            descriptors.set_marks(file.fileno(), self.sharing.widen_mode(0o644))

    def _remove_gone(self, journal: Mapping[str, Any]) -> None:
        """Remove the modulefiles that nothing names any more."""
        for path in journal.get("gone", []):
            descriptors.remove_file(self.root / path)

    def _write_once(self, path: Path, text: str) -> None:
        """Write a modulefile, unless it is there: modulefiles never change."""
        if not descriptors.exists_at(path):
            self.marks.folder(self.root, path.parent)
            self.marks.write(path, text)

    def _prepare_generation(
        self, state: Path, number: int, ledger: Ledger, new: tuple[str, ...] = ()
    ) -> str:
        """Write generation NUMBER as a folder that nothing points to, and return its name.

        Beside what LEDGER hides, the releases NEW are hidden in it.
        """
        final = state / str(number)
        part = state / f".{number}.{uuid.uuid4().hex[:8]}.part"
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
        files |= render_inventory_files(f"{ledger.name}#{number}", files)

        for path, text in files.items():
            self.marks.folder(self.root, (part / path).parent)
            self.marks.write(part / path, text)
        descriptors.remove_tree(final)  # of a change that got no journal
        descriptors.rename_path(part, final)
        descriptors.sync_folder(state)
        return str(number)

    def _write_links(self, name: str, homes: dict[str, Path]) -> None:
        """Write the links that lead module systems to the state of NAME, and its gateways."""
        for suffix, home in homes.items():
            folder = home / name
            self.marks.folder(self.root, folder)
            link = folder / f".modulerc{suffix}"
            modulerc = self.root / STATE / name / CURRENT / f"modulerc{suffix}"
            target = os.path.relpath(modulerc, folder)
            if descriptors.read_link(link) != target:
                descriptors.point_link(target, link)

            is_behind_gateway = home.parent != self.root
            if is_behind_gateway:
                gateway = self.root / home.name / GATE / f"{name}{suffix}"
                self._write_once(gateway, render_gateway(name, str(home), suffix))

    def _switch_to(self, state: Path, generation: str) -> None:
        """Make GENERATION the one that counts, by one rename."""
        if not (state / generation / "ledger.json").exists():
            raise StoreError(
                f"{state / generation} is gone, and the journal names it",
                "restore it from a backup",
                page="repair-what-is-published",
            )
        descriptors.point_link(generation, state / CURRENT)

    def _read_generation(self, state: Path) -> int:
        """Return the number of the generation that counts; 0 where there is none yet."""
        link = state / CURRENT
        target = descriptors.read_link(link) or "0"
        if target != "0" and not GENERATION.fullmatch(target):
            raise StoreError(
                f"{link} leads to {target!r}, which is not a generation",
                "restore it from a backup",
                page="repair-what-is-published",
            )
        return int(target)

    def _sweep(self, name: str) -> None:
        """Remove all generations of NAME but the current one and the two before it, and what was
        prepared and never committed.

        A load may be reading one of these. NAME's lease is held, so nobody is writing.
        """
        state = self.root / STATE / name
        current = self._read_generation(state)
        parts = [
            path for home in self.homes(name).values() for path in (home / name).glob(".*.part")
        ]
        for path in (*state.iterdir(), *parts):
            is_generation = GENERATION.fullmatch(path.name) is not None
            is_kept = is_generation and current - 2 <= int(path.name) <= current
            if (is_generation and not is_kept) or path.name.endswith(".part"):
                descriptors.remove_tree(path)


def _move_release(part: Path, final: Path, record: str) -> None:
    """Move the prepared release PART to its final place, unless that is done already.

    StoreError where what lies there is not the release whose RECORD is meant.
    """
    if descriptors.is_folder(part) and not descriptors.exists_at(final):
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
        page="move-a-store",
    )
