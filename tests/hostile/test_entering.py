"""`hpcstack enter` takes over a rank's environment, which the image and its user have made: nothing
of it is run on the node, and all of it arrives.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcstack.core import data

JOB = "4711000"
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def hostile_environment(folder: Path) -> dict[str, str]:
    """Variables that a shell script would stumble over, and what the script itself uses."""
    touch = f"touch {folder}/touched"
    return {
        "BASH_FUNC_module%%": "() { x='vx'; }",
        "BASH_FUNC_evil%%": f"() {{ '; {touch}; ' }}",
        "nsenter": "/usr/bin/env",
        "options": touch,
        "inner": touch,
        "exports": touch,
        "terminal": touch,
        "IFS": "/;",
        "QUOTED": f"it's '; {touch}; '",
        "LINES_OF_IT": f"one\n'; {touch}\nexport A=b",
        "LD_PRELOAD": str(folder / "no-such.so"),
        "GLIBC_TUNABLES": "glibc.malloc.check=0",
        "COMMAND": f"$({touch})`{touch}`",
        "EMPTY": "",
        "1ST": touch,
    }


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A process in a mount namespace of its own, as a rank is; its environment."""
    own = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    argv = ["unshare", *own, "--mount", "sleep", "60"]
    of_the_job = {
        "SLURM_JOB_ID": JOB,
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "3",
        "PATH": os.environ["PATH"],
    }
    env = {**hostile_environment(tmp_path), **of_the_job}
    # the loader heeds LD_PRELOAD, also of the programs that make the namespace
    with subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL) as process:
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            assert process.poll() is None
        yield env
        process.kill()


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_nothing_of_a_ranks_environment_is_run(
    tmp_path: Path, rank: dict[str, str], shell: str
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    script = data.read_script("on-node/enter.sh")
    posix = ["--posix"] if shell == "bash" else []
    argv = [
        shell,
        *posix,
        "-c",
        script,
        "enter",
        "enter",
        JOB,
        "0",
        "3",
        sys.executable,
        "-c",
        SHOW,
    ]
    env = {"PATH": os.environ["PATH"], "TERM": "xterm", "OF_THIS_STEP": "yes"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = {name: value for name, value in rank.items() if name.isidentifier()}
    expected.pop("IFS")  # a shell sets its own
    assert {name: found.get(name) for name in expected} == expected
    assert found["TERM"] == "xterm"
    assert "OF_THIS_STEP" not in found
    assert not (tmp_path / "touched").exists()


def test_a_rank_that_is_not_there_is_said(rank: dict[str, str]) -> None:
    script = data.read_script("on-node/enter.sh")
    argv = ["sh", "-c", script, "enter", "enter", JOB, "0", "9", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert "rank 9" in done.stderr
    listed = subprocess.run(
        ["sh", "-c", script, "enter", "find", JOB, "", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.startswith("hpcstack: rank 3 on ")
