"""What tests share: fixed recipes, locks and sites, and what a marked test needs.

HPCSTACK_REQUIRE lists (by comma) what must be there: a test that misses it then fails instead of
being skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from hpcstack.core import data
from hpcstack.lock.model import Lock
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Stack
from hpcstack.site.load import Site
from support.locks import example_lock
from support.modules import ENVIRONMENT_MODULES, LMOD
from support.testbed import Testbed

HERE = Path(__file__).parent
pytest_plugins = ("support.soak",)
# Several lanes share two cores (ci/test): how long an example waits says nothing of it.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
NEEDS = (
    "testbed",
    "pmix",
    "apptainer",
    "enroot",
    "pyxis",
    "slurm",
    "srun",
    "blocks",
    "lmod",
    "emodules",
    "shells",
    "registry",
    "gpu",
    "lua",
    "tcl",
    "shellcheck",
    "strace",
    "squashfs",
    "gcc",
    "docker",
    "fuse",
    "podman",
    "charliecloud",
    "chromium",
    "oras",
    "cosign",
    "arm64",
    "rpm",
)


def pytest_configure() -> None:
    """Start from known signals, whatever this process was given.

    `nohup` has HUP ignored, a shell's `&` INT and QUIT, execnet INT, and a program inherits what is
    ignored: then nothing that a test starts could be interrupted. What is handled is not inherited.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, _let_pass)


def _let_pass(_number: int, _frame: object) -> None:
    """This process goes on, as whoever ignored the signal wants it to."""


def _there(need: str) -> bool:
    """Whether NEED can be had on this machine, now."""
    testbed = Testbed()
    checks: dict[str, Callable[[], bool]] = {
        "testbed": testbed.is_up,
        "slurm": testbed.is_up,
        "registry": testbed.is_up,
        "pyxis": lambda: testbed.is_up() and testbed.has_pyxis(),
        "enroot": lambda: testbed.is_up() and shutil.which("enroot") is not None,
        "blocks": lambda: testbed.is_up() and testbed.has_blocks(),
        "lmod": LMOD.exists,
        "emodules": lambda: bool(ENVIRONMENT_MODULES.exists() and shutil.which("tclsh")),
        "shells": lambda: all(map(shutil.which, ("bash", "zsh", "tcsh", "fish"))),
        "gpu": lambda: Path("/dev/nvidiactl").exists(),
        "squashfs": lambda: all(
            map(shutil.which, ("tar2sqfs", "sqfs2tar", "mksquashfs", "unsquashfs"))
        ),
        "fuse": lambda: shutil.which("fuse-overlayfs") is not None and Path("/dev/fuse").exists(),
        "docker": lambda: testbed.is_up() and (testbed.folder / "run/docker.sock").exists(),
        "charliecloud": lambda: shutil.which("ch-run") is not None,
        "pmix": lambda: testbed.is_up() and "pmix" in testbed.run("srun", "--mpi=list").stdout,
        "arm64": lambda: Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists(),
        "lua": lambda: _lua() is not None,
        "tcl": lambda: shutil.which("tclsh") is not None,
    }
    return checks.get(need, lambda: shutil.which(need) is not None)()


def _lua() -> str | None:
    return shutil.which("lua5.3") or shutil.which("lua5.4") or shutil.which("lua")


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = set(os.environ.get("HPCSTACK_REQUIRE", "").split(","))
    for need in NEEDS:
        if item.get_closest_marker(need) and not _there(need):
            if need in required:
                pytest.fail(f"{need} is required here and is not there", pytrace=False)
            pytest.skip(f"needs {need}, which is not on this machine")


@pytest.fixture(params=["pytorch-24.11", "pytorch-25.10"])
def name(request: pytest.FixtureRequest) -> str:
    """The full names of two stacks that come with the package, and have recorded locks."""
    return str(request.param)


@pytest.fixture
def stack(name: str) -> Stack:
    return Catalog([data.find_data_folder("recipes")]).find(name).stack


@pytest.fixture
def lock(stack: Stack) -> Lock:
    """A lock that was made from a stand-in, with digests that never change."""
    return example_lock(stack)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path)


def make_site(folder: Path, **values: object) -> Site:
    """A site below FOLDER."""
    places = {
        "store": folder / "store",
        "lock_dir": folder / "locks",
        "module_root": folder / "modules",
    }
    return Site.model_validate({**places, **values})
