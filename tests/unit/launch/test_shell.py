"""Every piece of shell that runs on a node or in an image, as it is put together there, read by
shellcheck.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.core.names import STARTED_IN_IMAGE
from hpcstack.render.launchers import render_inner
from hpcstack.render.template import read_data_file
from hpcstack.runtimes.squashfs_mounts import HOOKS

pytestmark = pytest.mark.shellcheck


MEANT = {
    "SC2154": "variables that the launcher sets",
    "SC2034": "what one mode's fragment needs and another's does not",
    "SC2064": "a trap with the number of a process that is known now",
    "SC2090": "a variable that holds a program, for eval",
    "SC3045": "`ulimit -l`, which dash and bash both have",
    "SC3067": "`test -O`, likewise",
}


def rank() -> str:
    """What launchers/in-image/rank.sh holds for each rank."""
    script = read_data_file("launchers", "in-image/rank.sh") + 'printf "%s\\n" "$HPCSTACK_RANK"\n'
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout


ON_NODES = (
    "began.sh",
    "doctor.sh",
    "read-image.sh",
    "interrupt.sh",
    "stacks.sh",
    "stage.sh",
    "podman.sh",
    "charliecloud.sh",
    "enroot.sh",
    "shield.sh",
    "slurm.sh",
    "apart.sh",
    "enter.sh",
    "ssh.sh",
    "squashfs-around.sh",
)
TEXTS = {
    **{f"mode {mode}": render_inner(mode) for mode in STARTED_IN_IMAGE},
    "a rank": rank(),
    **{f"on-node/{name}": data.read_script(f"on-node/{name}") for name in ON_NODES},
    "in-image/project.sh": data.read_script("in-image/project.sh"),
    "in-image/slurm.sh": data.read_script("in-image/slurm.sh"),
    "in-image/proof.sh": data.read_script("in-image/proof.sh"),
    "in-image/debug.sh": data.read_script("in-image/debug.sh"),
    **{name: data.read_script(script) for name, script in HOOKS.items()},
}
BASH = tuple(HOOKS)


@pytest.mark.parametrize("name", TEXTS)
def test_shellcheck_finds_nothing(name: str) -> None:
    shell = "bash" if name in BASH else "sh"
    argv = [
        "shellcheck",
        f"--shell={shell}",
        "--severity=warning",
        f"--exclude={','.join(MEANT)}",
        "-",
    ]
    done = subprocess.run(argv, input=TEXTS[name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_fragment_is_forgotten() -> None:
    """Each is looked at: as it is, in a mode, or in what holds it.

    What needs or holds another says so first.
    """
    top = data.find_data_folder("launchers")
    held = {
        "left-out.sh",
        "task-names.sh",
        "podman-tidy.sh",
        "ranks.sh",
        "own-folder.sh",
        "squashfs.sh",
        *(Path(script).name for script in HOOKS.values()),
    }
    ranks = {"order.sh", "rank.sh", "rendezvous.sh", *(f"{mode}.sh" for mode in STARTED_IN_IMAGE)}
    assert {path.name for path in top.rglob("*.sh")} == {
        "project.sh",
        "proof.sh",
        "debug.sh",
        *ranks,
        *ON_NODES,
        *held,
    }
    for path in top.rglob("*.sh"):
        text = path.read_text()
        first = text.removeprefix("#!/usr/bin/env bash\n").splitlines()[0]
        needs = (
            "left-out.sh" in text
            or "_hpcstack_left\n" in text
            or path.stem in STARTED_IN_IMAGE
            or "#: " in text
        )
        assert (
            not needs or path.name == "left-out.sh" or first.startswith(("# Needs ", "# Holds "))
        ), path
