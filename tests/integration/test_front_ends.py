"""ReFrame runs what we render for it: a stack that passes, and one that does not.

ReFrame starts the suite by its local scheduler, on this machine. The suite's ranks run on the
testbed's virtual nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.recipes import Recipes
from support.testbed import CONTROL

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.slurm,
    pytest.mark.suite,
    pytest.mark.squashfs,
    pytest.mark.timeout(600),
]
SETTINGS = """\
site_configuration = {
    "systems": [{"name": "here", "hostnames": [".*"], "partitions": [
        {"name": "all", "scheduler": "local", "launcher": "local", "environs": ["plain"]}]}],
    "environments": [{"name": "plain", "cc": "cc", "cxx": "c++", "ftn": "ftn"}],
}
"""
CHECK = """\
[{name: speed, about: a figure, tier: quick, command: 'echo speed 42.5; exit STATUS',
  figures: {rate: {pattern: 'speed ([0-9.]+)', unit: GB/s, better: higher}}}]"""


def run_reframe(recipes: Recipes, folder: Path, stack: str, then: str = "cat") -> tuple[int, str]:
    """ReFrame's status, and what it says of the test that is rendered of STACK.

    What the suite prints goes through the command THEN.
    """
    rendered = recipes.run("render", stack, "--format", "reframe")
    assert rendered.returncode == 0, rendered.stderr
    (folder / "smoke.py").write_text(rendered.stdout)
    (folder / "settings.py").write_text(SETTINGS)
    (folder / "bin").mkdir(exist_ok=True)
    start = folder / "bin/hpcstack"
    state = recipes.folder / "state"
    start.write_text(
        f'#!/bin/sh\n{CONTROL} exec env XDG_STATE_HOME={state} hpcstack "$@" | {then}\n'
    )
    start.chmod(0o755)
    path = f"{start.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    argv = ["reframe", "-C", "settings.py", "-c", "smoke.py", "-r", "--performance-report",
            "-S", "tier=quick", "--report-file", "report.json"]  # fmt: skip
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.soak(
    "a neighbour's program runs what is written for it",
    kept="tests/unit/render/test_front_ends.py::test_a_reframe_test_is_python_whatever_the_words",
)
def test_reframe_runs_a_stack(recipes: Recipes, small_base: str, tmp_path: Path) -> None:
    recipes.base = small_base
    recipes.write("1", tests="[node.image]", checks=CHECK.replace("STATUS", "0").replace("\n", ""))
    recipes.write("2", tests="[node.image]", checks=CHECK.replace("STATUS", "3").replace("\n", ""))
    for stack in ("demo-1", "demo-2"):
        built = recipes.run("build", stack)
        assert built.returncode == 0, built.stderr

    status, said = run_reframe(recipes, tmp_path, "demo-1")
    assert status == 0, said
    assert "42.5" not in said, "a figure of virtual nodes says nothing of hardware"

    # PLAYED: as nodes that are no virtual ones would answer.
    counted = """sed 's/"informational": true/"informational": false/'"""
    status, said = run_reframe(recipes, tmp_path, "demo-1", counted)
    assert status == 0, said
    report = json.loads((tmp_path / "report.json").read_text())
    assert "stack.speed.rate_GB_s" in json.dumps(report)
    assert "42.5" in said
    assert "GB/s" in said

    status, said = run_reframe(recipes, tmp_path, "demo-2")
    assert status != 0
    assert "stack.speed is FAIL" in said
