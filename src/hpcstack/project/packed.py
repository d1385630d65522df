"""The packages of projects, installed and packed: made, found again, listed and cleared.

    NAME.sqsh   a virtual environment for one image, named after what is in it
    NAME.json   what is in it, and who asked for it (`Contents`)

Most projects change by one package at a time. Where what is packed already has all but a few of the
packages that are wanted, only those are installed, and its bytes are copied.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpcstack.core.dirs import find_data_home
from hpcstack.core.errors import BuildError, InputError, StoreError, format_count
from hpcstack.core.files import read_text, remove_tree, write_text, writing_below
from hpcstack.core.lease import hold_lease
from hpcstack.core.names import ADDED as PLACE
from hpcstack.core.records import Format, Record
from hpcstack.core.replacing import replace_file
from hpcstack.project.inside import list_uv_caches, open_inside
from hpcstack.project.pack_folder import pack_folder
from hpcstack.site.logins import redact_logins
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.splice import MAX_DEPTH, read_splice, splice_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.project.lock_file import ProjectLock
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

UNUSED_S = 90 * 86400  # what no launch has used for so long is removed when something is made
JUST_USED_S = 600  # a launch that was begun since may not be in the queue yet
MOST_OF_CONTENTS = 16 << 20  # bytes
MOST_WANTED = 20  # projects that are named of a file


class Contents(Record):
    """What is packed in one file.

    `head` is what it was made for: Python, platform and image. `packages` are told apart by their
    hashes, as in `ProjectLock.list_contents`. `stack` and `wanted` say for people who asked for it.
    """

    format: str
    head: str
    packages: list[str]
    stack: str
    wanted: list[str]


CONTENTS = Format("hpcstack/packed", 1, Contents)


@dataclass(frozen=True)
class KeptPackages:
    """What takes room for projects: `packed` packages, or the `cache` of the uv of one image.

    `size` is in bytes, `used` in seconds since 1970. What is not known is empty.
    """

    kind: Literal["packed", "cache"]
    path: Path
    size: int
    used: float
    stack: str = ""
    wanted: tuple[str, ...] = ()


def find_projects_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that holds the squashfs files of the user's projects."""
    return find_data_home(environ) / "hpcstack" / "projects"


def renew_use(file: Path) -> None:
    """Note that FILE, or what it leads to, is used now: what is not is removed some day."""
    with contextlib.suppress(OSError):
        os.utime(file)


def make_packed(
    lock: ProjectLock,
    packed: Path,
    folders: list[Path],
    wanted: tuple[str, ...],
    artifact: Artifact,
    site: Site,
    runner: Runner,
    progress: Progress,
) -> None:
    """Install by LOCK, inside the image of ARTIFACT, and pack what was installed into PACKED.

    FOLDERS may hold files that the lock names, and WANTED is who asks. The packages are installed on
    this machine's own disk, so that the shared one sees one file. Raise BuildError where uv cannot
    install them; the log stays beside PACKED then.
    """
    base = _find_base(lock, packed.parent, artifact)
    install = partial(_install, packed, folders, artifact, site, runner, progress)
    try:
        if base:
            present, missing = base
            count = len(lock.packages) - len(missing.packages)
            progress(f"packed already: {count} of {format_count(len(lock.packages), 'package')}")
            renew_use(present)
            install(missing, present)
        else:
            install(lock, None)
    except Unreadable:  # what is present was damaged, or packed in another way
        install(lock, None)
    _write_contents(lock, packed, wanted, artifact)


def _install(
    packed: Path,
    folders: list[Path],
    artifact: Artifact,
    site: Site,
    runner: Runner,
    progress: Progress,
    lock: ProjectLock,
    present: Path | None,
) -> None:
    """Install by LOCK, and pack it into PACKED over what is PRESENT already, if anything is.

    Raise Unreadable where PRESENT cannot be gone on from.
    """
    with open_inside(artifact, site, runner, progress) as inside:
        if lock.packages:
            count = format_count(len(lock.packages), "package")
            progress(f"installing {count} on top of {artifact.stack}")
        else:
            progress(f"{artifact.stack} has all that is asked for")
        write_text(inside.lent / "pylock.toml", lock.render())
        tree = inside.lent / "tree"
        tree.mkdir()
        mounts = (f"{tree}:{PLACE}", *(f"{one}:{one}" for one in folders))
        words = ("install", PLACE)
        workdir = folders[0] if folders else Path("/")  # the project may set indexes for uv
        offline = {"UV_OFFLINE": "1"}
        done = inside.run(words, mounts=mounts, variables=offline, workdir=workdir)
        if done.status:  # not all of it is in uv's cache
            shutil.rmtree(tree)
            tree.mkdir()
            done = inside.run(words, mounts=mounts, workdir=workdir)
        if done.status:
            kept = packed.parent / "failed.log"
            shutil.copy(inside.lent / "log", kept)
            said = "\n".join(f"  < {line}" for line in done.tail if line.strip())
            raise BuildError(
                redact_logins(f"the packages could not be installed\n{said}", site),
                f"the whole log is {kept}",
                page="your-own-project",
            )
        _pack(tree, packed, present, runner, progress)


def _pack(
    tree: Path, packed: Path, present: Path | None, runner: Runner, progress: Progress
) -> None:
    """Pack TREE into PACKED, over what is PRESENT already, if anything is."""
    if not present:
        pack_installed(tree, packed, runner, progress)
        return
    with tempfile.TemporaryDirectory(prefix=f".{packed.name}.", dir=packed.parent) as folder:
        layer = Path(folder) / "layer.sqsh"
        pack_installed(tree, layer, runner, progress)
        with replace_file(packed) as part:
            splice_image(present, [layer], part, int(time.time()), always=True)


def pack_installed(tree: Path, packed: Path, runner: Runner, progress: Progress) -> None:
    """Pack the folder TREE, in which packages were installed, into PACKED.

    What builds a package has run there. Raise BuildError where it has put a link in TREE's place:
    another folder would be packed.
    """
    if tree.is_symlink():
        raise BuildError(
            f"a package has replaced the folder that it was installed in: {tree} is a link",
            "find out which one, and take another: hpcstack project lock",
            page="your-own-project",
        )
    pack_folder(tree, packed, runner, progress)


# -- what is in them


def _find_base(
    lock: ProjectLock, folder: Path, artifact: Artifact
) -> tuple[Path, ProjectLock] | None:
    """Return (the packed file in FOLDER that has most of what LOCK wants, LOCK of the rest).

    None where no file has any of it, or each has something that is not wanted. One that was pieced
    together often is no base: it is read more slowly.
    """
    head, names = lock.list_contents(artifact)
    wanted = set(names)
    best: tuple[Path, set[str]] | None = None
    for path in folder.glob("*.sqsh"):
        contents = _read_contents(path)
        if not contents or contents.head != head or _is_worn(path):
            continue
        has = set(contents.packages)
        if has and has <= wanted and (not best or len(has) > len(best[1])):
            best = path, has
    if not best:
        return None

    path, has = best
    left = [one for one, name in zip(lock.packages, names, strict=True) if name not in has]
    return path, replace(lock, document={**lock.document, "packages": left})


def _is_worn(packed: Path) -> bool:
    """Whether the file PACKED was pieced together too often, or cannot be read."""
    try:
        spliced = read_splice(packed)
    except (OSError, Unreadable):
        return True
    return bool(spliced and spliced.depth >= MAX_DEPTH)


def _read_contents(packed: Path) -> Contents | None:
    """Return what is in the file PACKED; None where nothing says so."""
    try:
        document = json.loads(read_text(packed.with_suffix(".json"), MOST_OF_CONTENTS))
        return CONTENTS.read(document, str(packed), "")
    except (OSError, ValueError, RecursionError, InputError, StoreError):
        return None


def note_wanted(packed: Path, wanted: tuple[str, ...]) -> None:
    """Note that WANTED, too, uses the file PACKED, which is there already."""
    renew_use(packed)
    contents = _read_contents(packed)
    plain = [_without_login(one) for one in wanted]
    if contents and not set(plain) <= set(contents.wanted):
        both = [*contents.wanted, *plain][-MOST_WANTED:]
        newer = contents.model_copy(update={"wanted": list(dict.fromkeys(both))})
        write_text(packed.with_suffix(".json"), newer.model_dump_json(indent=1) + "\n", 0o600)


def _write_contents(
    lock: ProjectLock, packed: Path, wanted: tuple[str, ...], artifact: Artifact
) -> None:
    """Write down what LOCK has put into the file PACKED, and who WANTED it."""
    head, names = lock.list_contents(artifact)
    contents = Contents(
        format=CONTENTS.name,
        head=head,
        packages=names,
        stack=artifact.stack,
        wanted=[_without_login(one) for one in wanted],
    )
    write_text(packed.with_suffix(".json"), contents.model_dump_json(indent=1) + "\n", 0o600)


def _without_login(wanted: str) -> str:
    """Return WANTED, a folder or a requirement, without a login in its URL."""
    return re.sub(r"//[^/@\s]*@", "//", wanted)


# -- what takes room


def list_kept_packages(environ: Mapping[str, str]) -> list[KeptPackages]:
    """Return what takes room for the user's projects, the last used first."""
    found = []
    for path in find_projects_folder(environ).glob("*.sqsh"):
        about = path.stat()
        contents = _read_contents(path)
        stack, wanted = (contents.stack, tuple(contents.wanted)) if contents else ("", ())
        kept = KeptPackages("packed", path, about.st_size, about.st_mtime, stack, wanted)
        found.append(kept)
    for path in list_uv_caches():
        found.append(KeptPackages("cache", path, _count_bytes(path), path.stat().st_mtime))
    return sorted(found, key=lambda one: -one.used)


def _count_bytes(folder: Path) -> int:
    """Return the bytes that FOLDER takes on its disk, of a file with several names once."""
    seen = {}
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                about = os.lstat(f"{above}/{name}")
                seen[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(seen.values())


def _list_names(kept: KeptPackages, environ: Mapping[str, str]) -> list[str]:
    """Return the names under which a launch may have mounted what is KEPT: its own, and its links'."""
    links = (find_projects_folder(environ) / "asked").glob("*.sqsh")
    return [kept.path.name, *(one.name for one in links if one.resolve() == kept.path)]


def explain_kept(
    kept: KeptPackages, in_use: str, days: float, now: float, environ: Mapping[str, str]
) -> str:
    """Return why what is KEPT stays at NOW; empty where it may go.

    IN_USE is a text with the names of all files that a job or a process uses. What was used within
    DAYS stays, and in any case what was used a moment ago: its job may not be in the queue yet.
    """
    if any(name in in_use for name in _list_names(kept, environ)):
        return "a job or a process uses it"
    age = now - kept.used
    if age < JUST_USED_S:
        return "used a moment ago"
    if age < days * 86400:
        return f"used within {days:g} days"
    return ""


def remove_kept(
    kept: Iterable[KeptPackages], environ: Mapping[str, str], progress: Progress
) -> None:
    """Remove what is KEPT, and the links to it, when no launch is making anything.

    Raise StoreError where something cannot be removed.
    """
    folder = find_projects_folder(environ)
    folder.mkdir(parents=True, exist_ok=True)
    cannot = "packages of projects were not removed"
    with hold_lease(folder / "lease", progress), writing_below(folder, cannot):
        for one in kept:
            with contextlib.suppress(FileNotFoundError):
                # A launch may have begun to use it while this one waited.
                if one.path.stat().st_mtime <= one.used:
                    _remove(one.path)
        _remove_dead_links(folder)


def sweep_projects(folder: Path, now: float) -> list[Path]:
    """Remove from FOLDER what no launch has used for 90 days before NOW. Return what went.

    Links that lead nowhere then are removed, too, and what a pack that was killed has left: the
    caller holds the lease of FOLDER.
    """
    gone = []
    for path in (*folder.glob("*.sqsh"), *folder.glob("own-*"), *folder.glob("locks/*")):
        if now - path.stat().st_mtime > UNUSED_S:
            gone.append(path)
    gone += folder.glob(".*.sqsh.*")
    gone += folder.glob(".own-*")
    # A link of its own has each launch that had to lock first.
    for link in folder.glob("asked/*.sqsh"):
        if not link.exists() or now - link.lstat().st_mtime > UNUSED_S:
            gone.append(link)
    for path in gone:
        _remove(path)
    return gone + _remove_dead_links(folder)


def _remove(path: Path) -> None:
    """Remove PATH, a file, a link or a folder; of a packed file also what says what is in it."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
        return
    path.unlink(missing_ok=True)
    if path.suffix == ".sqsh":
        path.with_suffix(".json").unlink(missing_ok=True)


def _remove_dead_links(folder: Path) -> list[Path]:
    """Remove the links in FOLDER that lead nowhere, and return them."""
    dead = [link for link in folder.glob("asked/*.sqsh") if not link.exists()]
    for link in dead:
        link.unlink(missing_ok=True)
    return dead
