"""images/enclose.py, the parts that kernels of several ages need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENCLOSE = Path(__file__).parents[3] / "images/enclose.py"
# Runs in name spaces of its own: folders "a" and "a/b c" are mounts, and `restrict` is told that
# the kernel is old.
TRY = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("enclose", sys.argv[1])
enclose = importlib.util.module_from_spec(spec)
spec.loader.exec_module(enclose)
enclose.SYS_MOUNT_SETATTR = 9999  # a call that no kernel has
top = sys.argv[2]
enclose.mount("tmpfs", top, "tmpfs", 0)
os.mkdir(top + "/b c")
enclose.mount("tmpfs", top + "/b c", "tmpfs", enclose.MS_NOSUID)
enclose.make_read_only(top)
for path in (top, top + "/b c"):
    try:
        open(path + "/made", "w")
        print("OPEN", path)
    except OSError as error:
        print("closed", error.strerror)
print(os.statvfs(top + "/b c").f_flag & enclose.MS_NOSUID)
"""


def unshare() -> list[str]:
    argv = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*argv, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make name spaces")
    return argv


def test_kernels_that_close_one_mount_at_a_time_close_all(tmp_path: Path) -> None:
    """Linux before 5.12: only the outermost mount became read-only."""
    argv = [*unshare(), sys.executable, "-c", TRY, str(ENCLOSE), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["closed Read-only file system"] * 2 + ["2"]
