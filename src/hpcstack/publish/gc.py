"""Garbage collection: what the store and the caches need not keep, and why the rest stays.

These stay: what a release names, what a running or pending job uses, each stack's newest image,
what is younger than a limit, and all of the cache while somebody is building. Nothing is guessed:
where Slurm does not answer, nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.clock import read_clock
from hpcstack.core.errors import InputError, SlurmError, StoreError
from hpcstack.core.files import read_bytes
from hpcstack.core.lease import make_label, may_have_living_owner
from hpcstack.releases.changes import used_by
from hpcstack.releases.records import read_prepared, read_releases
from hpcstack.releases.tree import open_tree
from hpcstack.slurm.client import Client
from hpcstack.store.artifact_format import read_artifact
from hpcstack.store.cache import cache_of, is_busy, open_own_cache
from hpcstack.store.store import ARTIFACT, MAX_RECORD, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Runner
    from hpcstack.site.load import Site

DAY = 86400.0  # seconds
# {kind of an item: why it can go}
OLD = {
    "left-over": "of a run that was killed",
    "partial": "of a run that was killed",
    "base": "can be fetched again",
    "step": "can be made again",
}
# the variables of a process that say which module it has loaded
LOADED = ("LOADEDMODULES=", "HPCSTACK_RELEASE=", "HPCSTACK_IMAGE=")


@dataclass(frozen=True)
class Item:
    """One thing that takes room: a release, an image, a base, a kept step, or what a killed run
    has left.
    """

    kind: str
    path: Path
    size: int  # bytes
    age_days: float
    keep: str  # why it stays; empty for what goes
    what: str = ""  # the release or the stack
    engine: str = ""
    made: str = ""  # the day
    why: str = ""  # why it goes, if it does


def list_items(
    site: Site,
    runner: Runner,
    days: float,
    *,
    slurm: bool = True,
    over: frozenset[str] = frozenset(),
) -> list[Item]:
    """Return all that takes room, each with why it stays, if it does.

    DAYS is the age below which nothing goes. OVER are stacks whose newest image counts as any
    other: nobody is to build on it again. For a user with a store of his own over the site's
    this is that store: the site's is not looked at. SlurmError where Slurm cannot be asked for the
    jobs, unless SLURM is False.
    """
    store = Store(site.own_store, sharing=site.sharing)
    used = find_images_in_use(runner, slurm=slurm)
    cache = cache_of(site)

    releases: list[Item] = []
    if site.own_store == site.store:
        releases = list(_list_releases(site, store, used))
    going = {item.what for item in releases if not item.keep}
    images = list(_list_images(store, used, days, going, over))
    busy = "somebody is building" if is_busy(cache) else ""
    cached = _list_caches(cache.top, open_own_cache(site).top, used, days, busy)
    return sorted([*releases, *images, *cached], key=lambda item: (item.kind, item.path))


def _list_releases(site: Site, store: Store, used: str) -> Iterator[Item]:
    """Yield what was withdrawn, retired or removed in any of the site's module trees.

    A release that gc has taken, and whose folder is there, is a left-over.
    """
    now = read_clock()
    trees = [open_tree(one) for one in site.every_architecture()]
    for ledger in [tree.ledger(name, to_change=True) for tree in trees for name in tree.names()]:
        for entry in ledger.entries:
            folder = store.top / "releases" / ledger.name / entry.release
            name = f"{ledger.name}/{entry.release}"
            if entry.state == "gone" and folder.is_dir():
                size = descriptors.count_bytes(folder)
                yield Item("left-over", folder, size, 0.0, "", name, why="gc was interrupted")
            if entry.state in ("live", "gone"):
                continue

            since = entry.since or entry.made
            age = (now - _parse_moment(since)).total_seconds() / DAY
            why = f"{entry.state} on {since[:10]}"
            keep = ""
            if used_by(ledger, entry, [("", used)]):
                keep = f"{why}: in use"
            elif age < site.modules.keep_days:
                keep = f"{why}: for {site.modules.keep_days} days"
            size = descriptors.count_bytes(folder) if folder.is_dir() else 0
            yield Item("release", folder, size, age, keep, name, made=entry.made[:10], why=why)


def _parse_moment(text: str) -> datetime:
    """Return a ledger's time; now where it cannot be read, so that the release counts as young."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return read_clock()
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _list_images(
    store: Store, used: str, days: float, going: set[str], over: frozenset[str]
) -> Iterator[Item]:
    """Yield the images of STORE. A release in GOING keeps no image, and no stack in OVER does."""
    published = {record.key: name for name, record in read_releases(store) if name not in going}
    prepared = {record.key: record.release for record in read_prepared(store)}
    newest = {
        artifact.key: artifact.stack
        for artifact in store.newest_images()
        if artifact.stack not in over
    }
    top = store.top / "images"
    folders = sorted(top.glob("[!.]*")) if top.is_dir() else []
    for folder in folders:
        keep = ""
        if folder.name in published:
            keep = f"published as {published[folder.name]}"
        elif folder.name in prepared:
            keep = f"being published as {prepared[folder.name]}"
        elif folder.name in used:
            keep = "a job uses it"
        elif folder.name in newest:
            keep = f"the newest image of {newest[folder.name]}"
        about = _read_about(folder)
        item = _make_item("image", folder, keep, days, about.get("stack", "damaged"))
        yield replace(item, engine=about.get("engine", ""), why="nobody needs it")

    for folder in sorted((store.top / "incoming").glob("[!.]*")):
        yield _make_left_over(folder)


def _list_caches(top: Path, own: Path, used: str, days: float, busy: str) -> Iterator[Item]:
    """Yield what lies in the cache of bases, TOP, and the kept steps of the user's OWN cache.

    BUSY says why all of it stays; empty where nobody is building.
    """
    for path in sorted(top.glob("*.sqsh")):
        in_use = "a job uses it" if path.name in used else ""
        yield _make_item("base", path, busy or in_use, days)
    for path in sorted((own / "steps").glob("[!.]*")):
        yield _make_item("step", path, busy, days)
    for path in sorted((own / "steps").glob(".*")):
        yield _make_left_over(path, ".")
    for path in sorted((top / "partial").glob("*")):
        yield _make_item("partial", path, busy, min(days, 1.0))


def _make_left_over(path: Path, prefix: str = "") -> Item:
    """Return what a run was writing as an item; it stays as long as that run may be alive.

    PREFIX stands in the name of PATH before the label of its owner.
    """
    keep = "somebody may be writing it" if may_have_living_owner(path, prefix) else ""
    return _make_item("left-over", path, keep, 0.0)


def _make_item(kind: str, path: Path, keep: str, days: float, what: str = "") -> Item:
    # The change time: the modification time of an image is not when it was made here.
    changed = path.lstat().st_ctime
    age = (read_clock().timestamp() - changed) / DAY
    young = f"younger than {days:g} days" if age < days else ""
    made = datetime.fromtimestamp(changed, timezone.utc).date().isoformat()
    size = descriptors.count_bytes(path)
    return Item(kind, path, size, age, keep or young, what, made=made, why=OLD.get(kind, "old"))


def _read_about(folder: Path) -> dict[str, str]:
    """Return the stack and the engine that an image's record names; empty where it is damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError, InputError, StoreError):
        record = read_artifact(read_bytes(folder / ARTIFACT, MAX_RECORD), str(folder))
        return {"stack": record.stack, "engine": record.engine}
    return {}


def find_images_in_use(runner: Runner, *, slurm: bool = True) -> str:
    """Return one text of all that may name an image in use.

    That is what `find_users` finds, and the files behind this host's loop devices.
    """
    out = [text for _, text in find_users(runner, slurm=slurm)]
    for loop in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            out.append(loop.read_text())
    return "\n".join(out)


def find_users(runner: Runner, *, slurm: bool = True) -> list[tuple[str, str]]:
    """Return (who, text that may name images) of all that may use an image.

    These are the processes of this host, by command line, mounts and loaded modules, as far as
    these may be read; and Slurm's running and pending jobs, by what `squeue` and their batch
    scripts say.
    """
    out = []
    own = _list_ancestors()
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name in own:
            continue
        # Of a command line only the words that may be a path in the store, or an option of Pyxis:
        # whoever merely names a release, as in `hpcstack status pytorch/24.11`, does not use it.
        words = [
            word
            for word in _read_proc(folder / "cmdline").split()
            if any(part in word for part in ("/images/", "/releases/", ".sqsh", "container-image"))
        ]
        mounts = _read_proc(folder / "mountinfo").split()
        words += [word for word in mounts if word.startswith("/")]
        variables = _read_proc(folder / "environ", b"\n").split("\n")
        words += [variable for variable in variables if variable.startswith(LOADED)]
        out.append((f"process {folder.name}", "\n".join(words)))

    if slurm and Client(runner).has("squeue"):
        out += _list_jobs(runner)
    return out


def _list_ancestors() -> set[str]:
    """Return the numbers of this process and of those above it.

    Their command lines name the release that is to be removed, and do not use it.
    """
    out = set()
    number = os.getpid()
    while number > 1 and str(number) not in out:
        out.add(str(number))
        # proc(5): after the command's name in parentheses come the state and the parent's number.
        fields = _read_proc(Path(f"/proc/{number}/stat")).rpartition(")")[2].split()
        number = int(fields[1]) if len(fields) > 1 else 0
    return out


def _read_proc(path: Path, end: bytes = b" ") -> str:
    """Return the text of PATH in /proc, with END for each NUL; empty where it may not be read."""
    try:
        return path.read_bytes().replace(b"\0", end).decode(errors="replace")
    except OSError:
        return ""


def _list_jobs(runner: Runner) -> list[tuple[str, str]]:
    """Return (`job N`, its command, comment, working directory and batch script) of each running
    and pending job.

    SlurmError where Slurm does not answer, or does not let us read a job's script.
    """
    try:
        used = Client(runner).query_usage()
    except SlurmError as error:
        raise SlurmError(
            f"nothing is removed: {error.message}",
            f"{error.hint}, or say --no-slurm",
            page="free-disk-space",
        ) from error
    return [(f"job {one.job}", f"{one.words}\n{one.script}") for one in used]


def remove_item(item: Item, site: Site) -> None:
    """Remove ITEM: first out of sight by one rename, then file by file.

    The builder's lease of an image is held meanwhile.
    """
    store = Store(site.own_store, sharing=site.sharing)
    with store.acting(f"{item.path} was not removed"):
        if item.kind == "image":
            with store.lease(item.path.name):
                _bury_folder(item.path, store)
        elif item.kind == "release":
            if descriptors.is_folder(item.path):
                _bury_folder(item.path, store)
        else:
            _clear_cached(item.path, cache_of(site))


def _clear_cached(path: Path, cache: Store) -> None:
    """Remove PATH from a cache, but leave it there where somebody is building by now.

    It is renamed first: half of it under its own name would be taken for the whole. A builder marks
    the cache as busy before looking into it. So a builder that has seen PATH had made its mark
    before the rename; the mark is looked for after that, and PATH is put back.
    """
    grave = path.with_name(f".{make_label()}{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        descriptors.rename_path(path, grave)
    except FileNotFoundError:
        return

    builds = _is_building(cache)
    if not builds:
        descriptors.remove_tree(grave)

    # Put back what is whole. Also what is left of a partial download: a shorter one can be continued
    # just as well.
    worth_keeping = builds or path.parent.name == "partial"
    if worth_keeping and descriptors.exists_at(grave) and not descriptors.exists_at(path):
        descriptors.rename_path(grave, path)


def _is_building(cache: Store) -> bool:
    try:
        return is_busy(cache)
    except FileNotFoundError:  # a mark vanished while it was looked at: somebody was just building
        return True


def _bury_folder(path: Path, store: Store) -> None:
    """Remove a folder of the store: first out of sight by one rename, then file by file.

    StoreError where some of it could not be removed.
    """
    grave = store.top / "incoming" / f"{make_label()}{path.name[:12]}"
    descriptors.make_folder(grave.parent)
    store.sharing.make_folder(grave.parent)
    descriptors.rename_path(path, grave)
    descriptors.remove_tree(grave)
    if descriptors.exists_at(grave):
        raise StoreError(
            f"{grave} could not be removed completely",
            "what is left belongs to another user; the next gc lists it again",
        )
