"""A real load and unload of a release, in a clean environment, against what is expected: before
anybody sees it.

Lmod and Environment Modules, as far as they are on this machine; and again as the user whom
site.yaml names.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_bytes
from hpcstack.publish.modulefile import Release, modulefile_tcl, render_modulefile, with_settings
from hpcstack.runtimes.base import VOID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.process import Runner

LMOD = (
    "/usr/share/lmod/lmod/libexec/lmod", "/opt/apps/lmod/lmod/libexec/lmod", "/usr/local/lmod/lmod/libexec/lmod",
    "/opt/ohpc/admin/lmod/lmod/libexec/lmod",
)  # fmt: skip
TCL = (
    "/usr/lib/x86_64-linux-gnu/modulecmd.tcl", "/usr/lib/aarch64-linux-gnu/modulecmd.tcl",
    "/usr/share/Modules/libexec/modulecmd.tcl", "/usr/local/Modules/libexec/modulecmd.tcl",
)  # fmt: skip
BOOKS = re.compile(
    r"^(_|SHLVL|PWD|OLDPWD|LMOD_.*|_ModuleTable.*|__LMOD.*|__MODULES_.*|MODULES_FAMILY_.*|_LMFILES_|LOADEDMODULES|MODULEPATH.*)$"
)
TRIAL = "hpcstack-module-"
BUG = "this is a bug: tell us"
MAX_ANSWER = 4 << 20  # bytes: an environment
ROUND_TRIP = r"""
set -u
folder=$1 release=$2 image=$3; shift 3
[ -r "$image" ] || : >"$folder/unreadable"
env -0 >"$folder/before"
eval "$("$@" bash load "$release" 2>"$folder/said")" || exit 3
env -0 >"$folder/loaded"
case "${LOADEDMODULES:-}" in *"$release"*) ;; *) exit 5 ;; esac
eval "$("$@" bash unload "${release%%/*}" 2>>"$folder/said")" || exit 4
env -0 >"$folder/after"
"""


@dataclass(frozen=True)
class Program:
    """One module system: its name and how it is started."""

    name: str
    argv: tuple[str, ...]


def find_module_systems(runner: Runner, environ: Mapping[str, str] = os.environ) -> list[Program]:
    """What is on this machine: where its variables point, else where distributions put it."""
    out = []
    if lmod := _first((environ.get("LMOD_CMD", ""), *LMOD)):
        out.append(Program("Lmod", (lmod,)))
    if (tcl := _first((environ.get("MODULES_CMD", ""), *TCL))) and runner.has("tclsh"):
        out.append(Program("Environment Modules", ("tclsh", tcl)))
    return out


def _first(paths: tuple[str, ...]) -> str:
    return next((path for path in paths if path and Path(path).is_file()), "")


def try_loading(release: Release, runner: Runner, as_user: str = "") -> str:
    """What was tried, in words. StoreError says what was not as it should be."""
    found = find_module_systems(runner)
    _sweep()
    if not found:
        return "not tried: neither Lmod nor Environment Modules is on this machine"
    users = ["", as_user] if as_user and os.geteuid() == 0 else [""]
    for program in found:
        for user in users:
            _round_trip(release, program, user, runner)
    whose = f", also as {as_user}" if len(users) > 1 else ""
    untried = (
        f"; NOT tried as {as_user}, since only root can" if as_user and len(users) == 1 else ""
    )
    return (
        f"loads, and unloads without a trace, in "
        f"{' and '.join(one.name for one in found)}{whose}{untried}"
    )


def _sweep() -> None:
    """What a killed one of ours has left of its trial, an hour ago or more."""
    for path in Path(tempfile.gettempdir()).glob(f"{TRIAL}*"):
        with contextlib.suppress(OSError):
            about = path.lstat()
            if (
                about.st_uid == os.geteuid()
                and stat.S_ISDIR(about.st_mode)
                and about.st_mtime < time.time() - 3600
            ):
                shutil.rmtree(path, ignore_errors=True)


def _round_trip(release: Release, program: Program, user: str, runner: Runner) -> None:
    with tempfile.TemporaryDirectory(prefix=TRIAL) as name:
        tree, folder = Path(name) / "tree", Path(name) / "answers"
        texts = {
            f"{release.version}.lua": render_modulefile(release),
            release.version: modulefile_tcl(release),
        }
        (tree / release.stack.name).mkdir(parents=True)
        for file, text in texts.items():
            (tree / release.stack.name / file).write_text(text, encoding="utf-8")
        folder.mkdir(mode=0o700)
        argv = [
            "env",
            "-i",
            "PATH=/usr/bin:/bin",
            f"HOME={folder}",
            f"MODULEPATH={tree}",
            "TERM=dumb",
        ]
        argv += [
            "bash",
            "-c",
            ROUND_TRIP,
            "bash",
            str(folder),
            release.name,
            release.image,
            *program.argv,
        ]
        if user:
            shown = (
                tree,
                tree / release.stack.name,
                *(tree / release.stack.name / file for file in texts),
            )
            argv = [*_become(user, Path(name), shown, folder), *argv]
        done = runner.output(argv)
        said = _text(folder / "said").strip() or "\n".join(done.tail)
        if done.status:
            doing = {4: "unload", 5: "load"}.get(done.status, "load")
            raise StoreError(
                f"{program.name} does not {doing} {release.name}{_who(user)}: {said}",
                _advise(release.name, is_unreadable=(folder / "unreadable").exists()),
            )
        _compare(release, program, folder, user, said)


def _advise(name: str, *, is_unreadable: bool) -> str:
    """What to do about a module NAME that does not load."""
    if "+" in name:
        return (
            "Environment Modules takes what follows a + for a variant: another `version` in the "
            "recipe"
        )
    if is_unreadable:
        return "users cannot read its image: `modules` and `store` in site.yaml"
    return BUG


def _who(user: str) -> str:
    return f" as {user}" if user else ""


def _become(user: str, top: Path, shown: tuple[Path, ...], answers: Path) -> list[str]:
    """What stands before a command that USER is to run.

    TOP is root's and can be passed; what is SHOWN in it can be read; ANSWERS is USER's own from now
    on, so that root changes and follows nothing in it any more.
    """
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise InputError(f"there is no user {user!r}", "`modules.check_as` in site.yaml") from None
    for path in shown:
        path.chmod(0o755 if path.is_dir() else 0o644)
    os.chown(answers, entry.pw_uid, entry.pw_gid)
    top.chmod(0o711)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--"]


def _compare(release: Release, program: Program, folder: Path, user: str, said: str) -> None:
    before, loaded, after = (_environment(folder / name) for name in ("before", "loaded", "after"))
    tip = (
        "is `module.environment` in the recipe what you intended?"
        if release.stack.module.environment
        else BUG
    )
    expected = with_settings(release.stack, before)
    expected |= {
        "HPCSTACK_STACK": release.stack.full_name,
        "HPCSTACK_RELEASE": release.name,
        "HPCSTACK_IMAGE": release.image,
        "HPCSTACK_IMAGE_SHA256": release.sha256,
        "PATH": f"{release.bin}:{expected['PATH']}",
        **(VOID if release.without_gpus else {}),
    }
    if loaded != expected:
        wrong = sorted({name for name, _ in loaded.items() ^ expected.items()})
        raise StoreError(
            (
                f"{program.name} sets something else for {release.name}{_who(user)}: "
                f"{', '.join(wrong)} {said}"
            ),
            tip,
        )
    if after != before:
        left = sorted({name for name, _ in before.items() ^ after.items()})
        raise StoreError(
            f"{program.name} does not restore {', '.join(left)} after {release.name}{_who(user)}",
            tip,
        )


def _environment(path: Path) -> dict[str, str]:
    """What `env -0` wrote, without the module system's own books."""
    entries = (entry.partition("=") for entry in _text(path).split("\0") if "=" in entry)
    return {name: value for name, _, value in entries if not BOOKS.match(name)}


def _text(path: Path) -> str:
    """What was written there, by somebody who may be no friend."""
    try:
        return read_bytes(path, MAX_ANSWER).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
