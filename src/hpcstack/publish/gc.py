"""What the store and the caches need not keep any more, and why the rest stays.

Kept: what a release names, what a running or waiting job uses, each stack's newest image, what is
younger than a limit, and all that somebody is building. Nothing is guessed: where Slurm cannot be
asked, nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, sharing
from hpcstack.core.errors import InputError, SlurmError, StoreError
from hpcstack.core.files import read_bytes
from hpcstack.core.lease import make_label, may_have_living_owner
from hpcstack.releases.changes import used_by
from hpcstack.releases.records import read_releases
from hpcstack.releases.tree import Tree
from hpcstack.store.artifact_format import read_artifact
from hpcstack.store.cache import cache_of, is_busy, own_cache
from hpcstack.store.store import ARTIFACT, MAX_RECORD, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Runner
    from hpcstack.site.load import Site

DAY = 86400.0
ASKED_AT_ONCE = 8  # of the controller, which serves everybody
OLD = {"left-over": "of a run that was killed", "partial": "of a run that was killed", "base": "can be fetched again",
       "step": "can be made again"}  # fmt: skip
LOADED = ("LOADEDMODULES=", "HPCSTACK_RELEASE=", "HPCSTACK_IMAGE=")


@dataclass(frozen=True)
class Item:
    """One thing that takes room: an image, a base, a kept step, the rest of a killed run."""

    kind: str
    path: Path
    size: int
    age_days: float
    keep: str  # why it stays; empty for what goes
    what: str = ""
    engine: str = ""
    made: str = ""  # the day
    why: str = ""  # it goes


def list_items(site: Site, runner: Runner, days: float, *, slurm: bool = True) -> list[Item]:
    """All that takes room, each with why it stays or nothing. SlurmError where jobs cannot be asked
    for.

    Of who has a store of his own over the site's it is his own; the site's is not looked at.
    """
    store = Store(site.own_store)
    used = find_images_in_use(runner, slurm=slurm)
    cache = cache_of(site)
    old = list(_releases(site, store, used)) if site.own_store == site.store else []
    going = {item.what for item in old if not item.keep}
    out = [
        *old,
        *_images(store, used, days, going),
        *_caches(
            cache.top, own_cache(site).top, used, days, "somebody is building" * is_busy(cache)
        ),
    ]
    return sorted(out, key=lambda item: (item.kind, item.path))


def _releases(site: Site, store: Store, used: str) -> Iterator[Item]:
    """What was withdrawn, retired or removed in any of the site's module trees, and how long ago."""
    now, days = datetime.now(timezone.utc), site.modules.keep_days
    trees = [Tree(one.module_tree) for one in site.every_architecture()]
    for ledger in [tree.ledger(name, to_change=True) for tree in trees for name in tree.names()]:
        name = ledger.name
        for one in ledger.entries:
            if (
                one.state == "gone"
                and (left := store.top / "releases" / name / one.release).is_dir()
            ):
                size = descriptors.count_bytes(left)
                yield Item(
                    "left-over",
                    left,
                    size,
                    0.0,
                    "",
                    f"{name}/{one.release}",
                    why="gc was interrupted",
                )
            if one.state in ("live", "gone"):
                continue
            folder, since = store.top / "releases" / name / one.release, one.since or one.made
            age = (now - _moment(since)).total_seconds() / DAY
            young = f"for {days} days" if age < days else ""
            keep = "in use" if used_by(ledger, one, [("", used)]) else young
            size = descriptors.count_bytes(folder) if folder.is_dir() else 0
            why = f"{one.state} on {since[:10]}"
            yield Item(
                "release",
                folder,
                size,
                age,
                keep and f"{why}: {keep}",
                f"{name}/{one.release}",
                made=one.made[:10],
                why=why,
            )


def _moment(text: str) -> datetime:
    """A moment of a ledger; one that cannot be read is now: nothing of it is old."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(timezone.utc)
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _images(store: Store, used: str, days: float, going: set[str]) -> Iterator[Item]:
    """Images; those that only releases GOING name are as if nobody had published them."""
    published = {record.key: name for name, record in read_releases(store) if name not in going}
    newest = {artifact.key: artifact.stack for artifact in store.newest_images()}
    top = store.top / "images"
    for folder in sorted(top.glob("[!.]*")) if top.is_dir() else ():
        keep = ""
        if folder.name in published:
            keep = f"published as {published[folder.name]}"
        elif folder.name in used:
            keep = "a job uses it"
        elif folder.name in newest:
            keep = f"the newest image of {newest[folder.name]}"
        about = _about(folder)
        item = _item("image", folder, keep, days, about.get("stack", "damaged"))
        yield replace(item, engine=about.get("engine", ""), why="nobody needs it")
    for folder in sorted((store.top / "incoming").glob("[!.]*")):
        yield _item(
            "left-over",
            folder,
            "somebody may be writing it" if may_have_living_owner(folder) else "",
            0.0,
        )


def _caches(top: Path, own: Path, used: str, days: float, busy: str) -> Iterator[Item]:
    for path in sorted(top.glob("*.sqsh")):
        yield _item("base", path, busy or ("a job uses it" if path.name in used else ""), days)
    for path in sorted((own / "steps").glob("[!.]*")):
        yield _item("step", path, busy, days)
    for path in sorted((own / "steps").glob(".*")):
        yield _item(
            "left-over",
            path,
            "somebody may be writing it" if may_have_living_owner(path, ".") else "",
            0.0,
        )
    for path in sorted((top / "partial").glob("*")):
        yield _item("partial", path, busy, min(days, 1.0))


def _item(kind: str, path: Path, keep: str, days: float, what: str = "") -> Item:
    changed = path.lstat().st_ctime
    age = (time.time() - changed) / DAY  # an image's own times are not when it was made here
    young = f"younger than {days:g} days" if age < days else ""
    made = datetime.fromtimestamp(changed, timezone.utc).date().isoformat()
    size = descriptors.count_bytes(path)
    return Item(kind, path, size, age, keep or young, what, made=made, why=OLD.get(kind, "old"))


def _about(folder: Path) -> dict[str, str]:
    """What an image's record says of its stack and engine; nothing where it is damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError, InputError, StoreError):
        record = read_artifact(read_bytes(folder / ARTIFACT, MAX_RECORD), str(folder))
        return {"stack": record.stack, "engine": record.engine}
    return {}


def find_images_in_use(runner: Runner, *, slurm: bool = True) -> str:
    """All that says which image is used: see `find_users`, and what is mounted from a loop device
    here.
    """
    out = [said for _, said in find_users(runner, slurm=slurm)]
    for loop in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            out.append(loop.read_text())
    return "\n".join(out)


def find_users(runner: Runner, *, slurm: bool = True) -> list[tuple[str, str]]:
    """(who, what it says) of all that may use an image: processes of this host, by command line,
    mounts and loaded modules, as far as they may be read; and what Slurm's jobs that run or wait
    say of themselves.
    """
    out = []
    own = _ancestors()
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name in own:
            continue
        words = _proc(
            folder / "cmdline"
        ).split()  # of a command line only what is a path of ours, or Pyxis's
        said = [
            word
            for word in words
            if any(part in word for part in ("/images/", "/releases/", ".sqsh", "container-image"))
        ]
        said += [word for word in _proc(folder / "mountinfo").split() if word.startswith("/")]
        said += [
            one for one in _proc(folder / "environ", b"\n").split("\n") if one.startswith(LOADED)
        ]
        out.append((f"process {folder.name}", "\n".join(said)))
    return out + (_jobs(runner) if slurm and runner.has("squeue") else [])


def _ancestors() -> set[str]:
    """This process and those above it: their command lines name what is asked for."""
    out, number = set(), os.getpid()
    while number > 1 and str(number) not in out:
        out.add(str(number))
        fields = _proc(Path(f"/proc/{number}/stat")).rpartition(")")[2].split()
        number = int(fields[1]) if len(fields) > 1 else 0
    return out


def _proc(path: Path, end: bytes = b" ") -> str:
    try:
        return path.read_bytes().replace(b"\0", end).decode(errors="replace")
    except OSError:
        return ""


def _jobs(runner: Runner) -> list[tuple[str, str]]:
    """(`job N`, its command, comment and batch script) of those that run or wait."""
    done = runner.output(["squeue", "--noheader", "--format", "%A|%o|%k|%Z"], timeout=60)
    if done.status:
        said = done.tail[-1] if done.tail else f"exit {done.status}"
        raise SlurmError(
            f"squeue does not answer, so nothing is removed: {said}", "try again, or say --no-slurm"
        )
    lines = {line.partition("|")[0]: line for line in done.stdout.splitlines()}
    jobs = sorted(lines.keys() - {""})
    out = []
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        scripts = list(
            pool.map(
                lambda job: runner.output(["scontrol", "write", "batch_script", job, "-"]), jobs
            )
        )
    for job, script in zip(jobs, scripts, strict=True):
        said = " ".join(script.tail)
        if script.status and re.search(r"denied|permission|contact", said, re.IGNORECASE):
            raise SlurmError(
                f"the script of job {job} cannot be read, so nothing is removed: {said}",
                "run gc as the store's owner with Slurm's operator rights, or say --no-slurm",
            )
        out.append(
            (f"job {job}", f"{lines[job]}\n{script.stdout}")
        )  # without a script, or ended meanwhile: none
    return out


def remove_item(item: Item, site: Site) -> None:
    """ITEM gone: first out of sight by rename, then removed; its builder's lease is held meanwhile."""
    store = Store(site.own_store)
    with store.acting(f"{item.path} was not removed"):
        if item.kind == "image":
            with store.lease(item.path.name):
                _bury(item.path, store)
        elif item.kind == "release":
            if descriptors.is_folder(item.path):
                _bury(item.path, store)
        else:
            _clear(item.path, cache_of(site))


def _clear(path: Path, cache: Store) -> None:
    """PATH of a cache gone, out of sight first: half of it under its own name would be taken for
    the whole. It stays where somebody builds by now: who builds says so, and then looks.
    """
    grave = path.with_name(f".{make_label()}{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        descriptors.rename_path(path, grave)
    except FileNotFoundError:
        return
    builds = _builds(cache)
    if not builds:
        descriptors.remove_tree(grave)
    whole = (
        builds or path.parent.name == "partial"
    )  # of what imports have fetched a part is as good
    if whole and descriptors.path_exists(grave) and not descriptors.path_exists(path):
        descriptors.rename_path(grave, path)


def _builds(cache: Store) -> bool:
    try:
        return is_busy(cache)
    except FileNotFoundError:  # a mark went as it was looked at
        return True


def _bury(path: Path, store: Store) -> None:
    """A folder of the store is gone by one rename, and then removed."""
    grave = store.top / "incoming" / f"{make_label()}{path.name[:12]}"
    descriptors.make_folder(grave.parent)
    sharing.make_shared_folder(grave.parent)
    descriptors.rename_path(path, grave)
    descriptors.remove_tree(grave)
    if descriptors.path_exists(grave):
        raise StoreError(
            f"{grave} was not removed whole",
            "what is left is somebody else's; gc tells of it again",
        )
