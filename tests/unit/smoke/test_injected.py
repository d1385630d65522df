"""fabric.injected: where a rank has the fabric's libraries from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcstack_smoke.collectives.injected import LoadedLibrary, find_library, judge_loaded

PLACE = "/opt/hpcstack-host"
OURS = LoadedLibrary("libfabric.so.1", f"{PLACE}/cxi.1/libfabric.so.1", before=True)


def test_the_loader_says_by_which_path_a_library_was_found() -> None:
    """libm is in every Python process; another library of the machine is loaded by the look itself."""
    found = find_library("libm.so.6")
    assert (
        found.before and Path(found.path).name == "libm.so.6" and Path(found.path).is_absolute()
    ), found
    gone = find_library("libhpcstack-nowhere.so.1")
    assert not gone.path
    assert "libhpcstack-nowhere.so.1: cannot open shared object file" in gone.error


@pytest.mark.gcc
def test_a_library_of_the_search_path_is_found_where_it_lies(tmp_path: Path) -> None:
    made = tmp_path / "libhpcstack-net.so.1"
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
    subprocess.run(argv, input="int version(void) { return 2; }", text=True, check=True)
    code = (
        "from hpcstack_smoke.collectives.injected import find_library; "
        "print(find_library('libhpcstack-net.so.1'))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert f"path='{made}', before=False" in done.stdout, "this look loaded it"


def test_all_ranks_have_the_nodes_own() -> None:
    result = judge_loaded([("node1", [OURS]), ("node2", [OURS])], PLACE, by_nccl=False)
    assert (result.status, result.measured) == ("PASS", f"{OURS.path}: already loaded")


@pytest.mark.parametrize(
    ("found", "by_nccl", "said"),
    [
        (
            LoadedLibrary("libfabric.so.1", "/usr/lib/libfabric.so.1"),
            False,
            "node2: libfabric.so.1 is the image's own",
        ),
        (
            LoadedLibrary("libfabric.so.1", "/opt/hpcstack-hosts/libfabric.so.1"),
            False,
            "is the image's own",
        ),
        (
            LoadedLibrary("libfabric.so.1", error="version `GLIBC_2.38' not found"),
            False,
            "cannot be loaded: version `GLIBC_2.38'",
        ),
        (
            LoadedLibrary("libnccl-net.so", f"{PLACE}/cxi.2/libnccl-net.so"),
            True,
            "node2: NCCL has not loaded libnccl-net.so",
        ),
    ],
)
def test_one_rank_without_it_is_named(found: LoadedLibrary, by_nccl: bool, said: str) -> None:
    result = judge_loaded([("node1", [OURS]), ("node2", [found])], PLACE, by_nccl=by_nccl)
    assert result.status == "FAIL" and said in result.measured, result.measured


def test_without_nccl_at_work_a_plugin_that_can_be_loaded_is_enough() -> None:
    plugin = LoadedLibrary("libnccl-net.so", f"{PLACE}/cxi.2/libnccl-net.so")
    result = judge_loaded([("node1", [plugin])], PLACE, by_nccl=False)
    assert result.status == "PASS"
    assert "loaded by this check" in result.measured
