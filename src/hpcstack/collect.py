"""What the store and the caches need not keep any more, and why the rest stays.

Kept: what a release names, what a running or waiting job uses, each stack's newest image, what is younger than a limit,
and all that somebody is building. Nothing is guessed: where Slurm cannot be asked, nothing is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcstack.cache import cache_of, is_busy
from hpcstack.errors import InputError, SlurmError, StoreError
from hpcstack.files import read_bytes
from hpcstack.lease import alive, label
from hpcstack.process import Runner
from hpcstack.site import Site
from hpcstack.store import MAX_RECORD, Store, remove_tree

DAY = 86400.0


@dataclass(frozen=True)
class Item:
    """One thing that takes room: an image, a base, a kept step, the rest of a killed run."""

    kind: str
    path: Path
    size: int
    age_days: float
    keep: str  # why it stays; empty for what goes
    what: str = ""


def items(site: Site, runner: Runner, days: float, *, slurm: bool = True) -> list[Item]:
    """All that takes room, each with why it stays or nothing. SlurmError where jobs cannot be asked for."""
    store = Store(site.store)
    used = in_use(runner, slurm=slurm)
    cache = cache_of(site)
    out = [*_images(store, used, days), *_caches(cache.top, used, days, "somebody is building" * is_busy(cache))]
    return sorted(out, key=lambda item: (item.kind, item.path))


def _images(store: Store, used: str, days: float) -> Iterator[Item]:
    published = {record["key"]: name for name, record in releases(store)}
    newest = {artifact.key: name for name, artifact in store.stacks().items()}
    top = store.top / "images"
    for folder in sorted(top.iterdir()) if top.is_dir() else ():
        keep = ""
        if folder.name in published:
            keep = f"published as {published[folder.name]}"
        elif folder.name in used:
            keep = "a job uses it"
        elif folder.name in newest:
            keep = f"the newest image of {newest[folder.name]}"
        yield _item("image", folder, keep, days, _stack(folder))
    for folder in sorted((store.top / "incoming").glob("*")):
        yield _item("left-over", folder, "somebody may be writing it" if alive(folder) else "", 0.0)


def _caches(top: Path, used: str, days: float, busy: str) -> Iterator[Item]:
    for path in sorted(top.glob("*.sqsh")):
        yield _item("base", path, busy or ("a job uses it" if path.name in used else ""), days)
    for path in sorted((top / "steps").glob("[!.]*")):
        yield _item("step", path, busy, days)
    for path in sorted((top / "steps").glob(".*")):
        yield _item("left-over", path, "somebody may be writing it" if alive(path, ".") else "", 0.0)
    for path in sorted((top / "partial").glob("*")):
        yield _item("partial", path, busy, min(days, 1.0))


def _item(kind: str, path: Path, keep: str, days: float, what: str = "") -> Item:
    age = (time.time() - path.lstat().st_ctime) / DAY  # an image's own times are not when it was made here
    young = f"younger than {days:g} days" if age < days else ""
    return Item(kind, path, size_of(path), age, keep or young, what)


def _stack(folder: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError, InputError):
        return str(json.loads(read_bytes(folder / "artifact.json", MAX_RECORD))["stack"])
    return "damaged"


def releases(store: Store) -> Iterator[tuple[str, dict[str, str]]]:
    """(NAME/VERSION-rN, its record) of all that was published. A record that cannot be read is an error."""
    for path in sorted((store.top / "releases").glob("*/*/release.json")):
        name = f"{path.parent.parent.name}/{path.parent.name}"
        try:
            record = json.loads(read_bytes(path, MAX_RECORD))
            key = record["key"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InputError) as error:
            raise StoreError(f"{path} cannot be read: {error}", f"what {name} needs is not known; restore it") from None
        if not isinstance(key, str):
            raise StoreError(f"{path} names no image", f"what {name} needs is not known; restore it")
        yield name, record


def in_use(runner: Runner, *, slurm: bool = True) -> str:
    """All that says which image is used: mounts and command lines on this host, and what Slurm's jobs run."""
    out = []
    for pattern in ("*/cmdline", "*/mountinfo"):
        for path in Path("/proc").glob(f"[0-9]{pattern}"):
            with contextlib.suppress(OSError):
                out.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    for loop in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            out.append(loop.read_text())
    if slurm and runner.has("squeue"):
        out += _jobs(runner)
    return "\n".join(out)


def _jobs(runner: Runner) -> list[str]:
    """What jobs that run or wait say of themselves: command, comment, batch script."""
    done = runner.output(["squeue", "--noheader", "--format", "%A|%o|%k|%Z"], timeout=60)
    if done.status:
        said = done.tail[-1] if done.tail else f"exit {done.status}"
        raise SlurmError(f"squeue does not answer, so nothing is removed: {said}", "try again, or say --no-slurm")
    out = [done.stdout]
    for job in sorted({line.partition("|")[0] for line in done.stdout.splitlines()} - {""}):
        script = runner.output(["scontrol", "write", "batch_script", job, "-"], timeout=60)
        said = " ".join(script.tail)
        if script.status and re.search(r"denied|permission|contact", said, re.IGNORECASE):
            raise SlurmError(f"the script of job {job} cannot be read, so nothing is removed: {said}",
                             "run gc as the store's owner with Slurm's operator rights, or say --no-slurm")  # fmt: skip
        out.append(script.stdout)  # a job without a script, or one that has ended meanwhile, has none
    return out


def size_of(path: Path) -> int:
    """Bytes on disk of a file or a tree."""
    if not path.is_dir():
        return path.lstat().st_blocks * 512
    total = 0
    for top, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(top) / name).lstat().st_blocks * 512
    return total


def remove(item: Item, site: Site) -> None:
    """ITEM gone: first out of sight by rename, then removed; its builder's lease is held meanwhile."""
    store = Store(site.store)
    with store.acting(f"{item.path} was not removed"):
        if item.kind == "image":
            with store.lease(item.path.name):
                grave = store.top / "incoming" / f"{label()}{item.path.name[:12]}"
                grave.parent.mkdir(parents=True, exist_ok=True)
                item.path.rename(grave)
                shutil.rmtree(grave)
        elif item.path.is_dir():
            remove_tree(item.path)
        else:
            item.path.unlink(missing_ok=True)
