"""Loads and unloads a release for real, in a clean environment, before anybody sees it.

Each of Lmod and Environment Modules that is on this machine does so; and once more as the user whom
site.yaml names (`modules.check_as`). What the module sets and restores is compared with what it
should.

Tested in tests/hostile/test_neighbours.py and tests/unit/publish/test_modulefile.py.
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
from hpcstack.publish.modulefile import (
    Release,
    render_modulefile,
    render_modulefile_tcl,
    with_settings,
)
from hpcstack.runtimes.base import VOID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.process import Runner

# Where distributions and sites put the two module systems; their own variables come first.
LMOD = (
    "/usr/share/lmod/lmod/libexec/lmod",
    "/opt/apps/lmod/lmod/libexec/lmod",
    "/usr/local/lmod/lmod/libexec/lmod",
    "/opt/ohpc/admin/lmod/lmod/libexec/lmod",
)
TCL = (
    "/usr/lib/x86_64-linux-gnu/modulecmd.tcl",
    "/usr/lib/aarch64-linux-gnu/modulecmd.tcl",
    "/usr/share/Modules/libexec/modulecmd.tcl",
    "/usr/local/Modules/libexec/modulecmd.tcl",
)
# Variables in which shells and module systems keep their own books: they may change.
BOOKS = re.compile(
    r"^(_|SHLVL|PWD|OLDPWD|LMOD_.*|_ModuleTable.*|__LMOD.*|__MODULES_.*|MODULES_FAMILY_.*"
    r"|_LMFILES_|LOADEDMODULES|MODULEPATH.*)$"
)
TRIAL = "hpcstack-module-"  # how the temporary folder of a trial begins
BUG = "this is a bug: tell us"
MAX_ANSWER = 4 << 20  # bytes: an environment
# Exit status 3: it does not load. 4: it does not unload. 5: the load ended well, and the module is
# not among the loaded ones.
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
    """Return the module systems of this machine.

    Each is looked for where its own variable points, then where distributions put it.
    """
    out = []
    lmod = _find_first((environ.get("LMOD_CMD", ""), *LMOD))
    if lmod:
        out.append(Program("Lmod", (lmod,)))
    tcl = _find_first((environ.get("MODULES_CMD", ""), *TCL))
    if tcl and runner.has("tclsh"):
        out.append(Program("Environment Modules", ("tclsh", tcl)))
    return out


def _find_first(paths: tuple[str, ...]) -> str:
    """Return the first of PATHS that is a file; empty where none is."""
    return next((path for path in paths if path and Path(path).is_file()), "")


def try_loading(release: Release, runner: Runner, as_user: str = "") -> str:
    """Load and unload RELEASE in each module system, and again as the user AS_USER.

    Return what was tried, in words. StoreError says what was not as it should be.
    """
    found = find_module_systems(runner)
    _sweep_old_trials()
    if not found:
        return "not tried: neither Lmod nor Environment Modules is on this machine"

    users = [""]
    suffix = ""
    if as_user and os.geteuid() == 0:
        users.append(as_user)
        suffix = f", also as {as_user}"
    elif as_user:
        suffix = f"; NOT tried as {as_user}, since only root can"

    for program in found:
        for user in users:
            _try_round_trip(release, program, user, runner)
    programs = " and ".join(one.name for one in found)
    return f"loads, and unloads without a trace, in {programs}{suffix}"


def _sweep_old_trials() -> None:
    """Remove what killed processes of this user have left of their trials, after an hour."""
    for path in Path(tempfile.gettempdir()).glob(f"{TRIAL}*"):
        with contextlib.suppress(OSError):
            about = path.lstat()
            is_own_folder = about.st_uid == os.geteuid() and stat.S_ISDIR(about.st_mode)
            if is_own_folder and about.st_mtime < time.time() - 3600:
                shutil.rmtree(path, ignore_errors=True)


def _try_round_trip(release: Release, program: Program, user: str, runner: Runner) -> None:
    """Load and unload RELEASE with PROGRAM, as USER where one is named, in a tree of its own.

    StoreError where it does not load or unload, or sets or leaves something else than it should.
    """
    with tempfile.TemporaryDirectory(prefix=TRIAL) as name:
        tree, answers = Path(name) / "tree", Path(name) / "answers"
        modulefiles = tree / release.stack.name
        texts = {
            f"{release.version}.lua": render_modulefile(release),
            release.version: render_modulefile_tcl(release),
        }
        modulefiles.mkdir(parents=True)
        for file, text in texts.items():
            (modulefiles / file).write_text(text, encoding="utf-8")
        answers.mkdir(mode=0o700)

        environment = [f"HOME={answers}", f"MODULEPATH={tree}", "TERM=dumb"]
        argv = ["env", "-i", "PATH=/usr/bin:/bin", *environment, "bash", "-c", ROUND_TRIP, "bash"]
        argv += [str(answers), release.name, release.image, *program.argv]
        if user:
            readable = (tree, modulefiles, *(modulefiles / file for file in texts))
            argv = [*_become(user, Path(name), readable, answers), *argv]

        done = runner.output(argv)
        said = _read_answer(answers / "said").strip() or "\n".join(done.tail)
        if done.status:
            doing = "unload" if done.status == 4 else "load"
            raise StoreError(
                f"{program.name} does not {doing} {release.name}{_as_whom(user)}: {said}",
                _advise(release.name, is_unreadable=(answers / "unreadable").exists()),
            )
        _compare_environments(release, program, answers, user, said)


def _advise(name: str, *, is_unreadable: bool) -> str:
    """Return what to do about a module NAME that does not load."""
    if "+" in name:
        return (
            "Environment Modules takes what follows a + for a variant: another `version` in the "
            "recipe"
        )
    if is_unreadable:
        return "users cannot read its image: `modules` and `store` in site.yaml"
    return BUG


def _as_whom(user: str) -> str:
    return f" as {user}" if user else ""


def _become(user: str, top: Path, shown: tuple[Path, ...], answers: Path) -> list[str]:
    """Return the words that stand before a command so that USER runs it. Only root can do so.

    USER may pass TOP, which stays root's, and read what is SHOWN in it. ANSWERS becomes USER's own.
    From then on root changes nothing in it and follows no link there.
    """
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise InputError(
            f"there is no user {user!r}",
            "`modules.check_as` in site.yaml",
            page="group-of-administrators",
        ) from None
    for path in shown:
        path.chmod(0o755 if path.is_dir() else 0o644)
    os.chown(answers, entry.pw_uid, entry.pw_gid)
    top.chmod(0o711)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--"]


def _compare_environments(
    release: Release, program: Program, folder: Path, user: str, said: str
) -> None:
    """Raise StoreError where the module has set, or left behind, something else than it should.

    FOLDER holds the environments before and after the load, and after the unload.
    """
    before = _read_environment(folder / "before")
    loaded = _read_environment(folder / "loaded")
    after = _read_environment(folder / "after")
    tip = BUG
    if release.stack.module.environment:
        tip = "is `module.environment` in the recipe what you intended?"

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
            f"{program.name} does not set what it should for {release.name}{_as_whom(user)}: "
            f"{', '.join(wrong)} {said}",
            tip,
        )
    if after != before:
        left = ", ".join(sorted({name for name, _ in before.items() ^ after.items()}))
        raise StoreError(
            f"{program.name} does not restore {left} after {release.name}{_as_whom(user)}", tip
        )


def _read_environment(path: Path) -> dict[str, str]:
    """Return the variables that `env -0` wrote to PATH, without the module system's own."""
    entries = (entry.partition("=") for entry in _read_answer(path).split("\0") if "=" in entry)
    return {name: value for name, _, value in entries if not BOOKS.match(name)}


def _read_answer(path: Path) -> str:
    """Return the text of PATH, which another user may have written; empty where it is not there."""
    try:
        return read_bytes(path, MAX_ANSWER).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
