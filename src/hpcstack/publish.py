"""Publish: an immutable release in a channel, checked by a real load and unload, then an alias and a default that flip.

Order matters: the release's folder, its modulefile, the round trip, and only then `.modulerc.lua`, by one rename. What
is interrupted before leaves a release that no alias names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcstack.errors import InputError, StoreError
from hpcstack.process import Runner
from hpcstack.releases import CHANNELS, aliases, artifact_of, text_of
from hpcstack.render.module import Release, fits, modulefile, modulerc, wrappers
from hpcstack.site import Site
from hpcstack.spec.model import Stack
from hpcstack.store import Artifact, Store, write_text, write_tree

Say = Callable[[str], None]
Fits = tuple[tuple[str, str], ...]
LMOD = ("/usr/share/lmod/lmod/libexec/lmod", "/opt/apps/lmod/lmod/libexec/lmod")
NUMBER = re.compile(r"-r(\d+)(?:\.lua)?$")


@dataclass(frozen=True)
class Published:
    """What publishing made or found: `pytorch/24.11-r1`, its alias, and how it was checked."""

    release: str
    alias: str
    channel: str
    modulefile: str
    image: str
    sha256: str
    new: bool
    checked: str


def publish(
    stack: Stack, artifact: Artifact, site: Site, store: Store, runner: Runner, say: Say, channel: str = "testing"
) -> Published:
    """ARTIFACT as a release of STACK in CHANNEL. A release that already is this image is not made again."""
    if channel not in CHANNELS:
        raise InputError(f"no channel {channel!r}", f"known: {', '.join(CHANNELS)}")
    tree = site.module_root / channel
    with store.lease(f"publish-{channel}-{stack.name}"), store.acting("nothing was published"):
        told = fits(site, artifact.platform, artifact.environment)
        current = _current(stack, tree, store)
        if current and current.sha256 == artifact.sha256 and modulefile(current) == text_of(_file(tree, current)):
            return _published(current, channel, tree, new=False, checked="when it was published")
        release = _release(stack, artifact, tree, store, told)
        _write(release, artifact)
        checked = _tried(release, runner)
        say(f"module {release.name}: {checked}")
        write_text(_file(tree, release), modulefile(release))
        _flip(release, tree)
    return _published(release, channel, tree, new=True, checked=checked)


def _published(release: Release, channel: str, tree: Path, *, new: bool, checked: str) -> Published:
    alias = f"{release.stack.name}/{release.stack.release_version}"
    return Published(
        release.name, alias, channel, str(_file(tree, release)), release.image, release.sha256, new, checked
    )


def _file(tree: Path, release: Release) -> Path:
    return tree / f"{release.name}.lua"


def _folder(store: Store, stack: Stack, version: str) -> Path:
    return store.top / "releases" / stack.name / version


def _make(stack: Stack, number: int, artifact: Artifact, store: Store, told: Fits) -> Release:
    return Release(
        stack=stack,
        number=number,
        image=str(artifact.image),
        sha256=artifact.sha256,
        bin=str(_folder(store, stack, f"{stack.release_version}-r{number}") / "bin"),
        base=artifact.base,
        stand_in=artifact.stand_in,
        holds=tuple(artifact.facts.items()),
        pip=tuple(artifact.pip.items()),
        fits=told,
    )


def _release(stack: Stack, artifact: Artifact, tree: Path, store: Store, told: Fits) -> Release:
    """The release with the next free number; one that was begun and never named keeps its number."""
    taken = [
        *(tree / stack.name).glob(f"{stack.release_version}-r*.lua"),
        *_folder(store, stack, "x").parent.glob(f"{stack.release_version}-r*"),
    ]
    numbers = [int(match[1]) for path in taken if (match := NUMBER.search(path.name))]
    return _make(stack, max(numbers, default=0) + 1, artifact, store, told)


def _current(stack: Stack, tree: Path, store: Store) -> Release | None:
    """The release that the alias names now, as it would be rendered from its image."""
    named = aliases(tree / stack.name).get(stack.release_version, "")
    match = NUMBER.search(named)
    if not match:
        return None
    artifact: Artifact | None = None
    told: Fits = ()
    folder = _folder(store, stack, f"{stack.release_version}-r{match[1]}")
    with contextlib.suppress(StoreError):  # a damaged release is no reason not to publish a good one
        artifact, told = artifact_of(folder, store), _told(folder)
    return _make(stack, int(match[1]), artifact, store, told) if artifact else None


def _told(folder: Path) -> Fits:
    """What the release in FOLDER said of drivers when it was made: a release never changes, a driver does."""
    try:
        found = json.loads((folder / "release.json").read_text()).get("fits", [])
        return tuple((str(node), str(said)) for node, said in found)
    except (OSError, ValueError, TypeError, AttributeError):
        return ()


def _tried(release: Release, runner: Runner) -> str:
    """The round trip in a module tree of its own: nobody sees a module that was not tried."""
    with tempfile.TemporaryDirectory(prefix="hpcstack-module-") as folder:
        write_text(_file(Path(folder), release), modulefile(release))
        return round_trip(release, Path(folder), runner)


def _write(release: Release, artifact: Artifact) -> None:
    """The release's folder by one rename."""
    final = Path(release.bin).parent
    part = final.with_name(f".{final.name}.{os.getpid()}.part")
    record = {
        "release": release.name,
        "key": artifact.key,
        "sha256": artifact.sha256,
        "lock_sha256": artifact.lock_sha256,
        "fits": release.fits,
    }
    files = {f"bin/{name}": text for name, text in wrappers(release).items()}
    write_tree(part, {**files, "release.json": json.dumps(record, indent=1) + "\n"})
    (part / "bin").mkdir(exist_ok=True)
    part.rename(final)


def _flip(release: Release, tree: Path) -> None:
    folder = tree / release.stack.name
    named = aliases(folder)
    named.pop("default", None)
    named[release.stack.release_version] = release.name
    newest = max(named, key=_order)
    write_text(folder / ".modulerc.lua", modulerc(dict(sorted(named.items())), named[newest]))


def _order(version: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[._+-]", version)]


def lmod() -> str:
    """The path of Lmod's program, or nothing."""
    candidates = (os.environ.get("LMOD_CMD", ""), *LMOD)
    return next((path for path in candidates if path and Path(path).is_file()), "")


ROUND_TRIP = r"""
set -u
env -0 >"$1/before"
eval "$("$2" bash load "$3" 2>"$1/said")" || exit 3
env -0 >"$1/loaded"
eval "$("$2" bash unload "${3%%/*}" 2>>"$1/said")" || exit 4
env -0 >"$1/after"
"""


def round_trip(release: Release, tree: Path, runner: Runner) -> str:
    """Load and unload the release in a clean shell. StoreError says what was not as it should be."""
    program = lmod()
    if not program:
        return "not tried: there is no Lmod on this machine"
    with tempfile.TemporaryDirectory(prefix="hpcstack-module-") as folder:
        argv = ["env", "-i", "PATH=/usr/bin:/bin", f"HOME={folder}", f"MODULEPATH={tree}", "bash", "-c", ROUND_TRIP]
        done = runner.output([*argv, "bash", folder, program, release.name])
        before, loaded, after = (_environment(Path(folder) / name) for name in ("before", "loaded", "after"))
        said = text_of(Path(folder) / "said").strip()
    if done.status:
        raise StoreError(f"the module {release.name} does not load: {said or done.tail}", "this is a bug: tell us")
    expected = {
        "HPCSTACK_IMAGE": release.image,
        "HPCSTACK_RELEASE": release.name,
        "PATH": f"{release.bin}:{before['PATH']}",
    }
    wrong = {name: loaded.get(name) for name, value in expected.items() if loaded.get(name) != value}
    if wrong:
        raise StoreError(f"the module {release.name} sets something else: {wrong} {said}", "this is a bug: tell us")
    if after != before:
        left = sorted({name for name, _ in before.items() ^ after.items()})
        raise StoreError(f"unloading {release.name} does not restore: {', '.join(left)}", "this is a bug: tell us")
    return "loads, and unloads without a trace"


def _environment(path: Path) -> dict[str, str]:
    """What `env -0` wrote, without Lmod's own book-keeping."""
    entries = (entry.partition("=") for entry in text_of(path).split("\0") if "=" in entry)
    own = re.compile(r"^(_|SHLVL|LMOD_.*|_ModuleTable.*|__LMOD.*|_LMFILES_|LOADEDMODULES|MODULEPATH.*)$")
    return {name: value for name, _, value in entries if not own.match(name)}
