"""Every piece of shell that runs on a node or in an image, as it is put together there, read by shellcheck."""

from __future__ import annotations

import subprocess

import pytest

from hpcstack.core import data
from hpcstack.render.launchers import IN_THE_IMAGE, inner
from hpcstack.render.template import plain
from hpcstack.runtimes import charliecloud, podman

pytestmark = pytest.mark.shellcheck


MEANT = {
    "SC2154": "variables that the launcher sets",
    "SC2034": "what one mode's fragment needs and another's does not",
    "SC2064": "a trap with the number of a process that is known now",
    "SC2090": "a variable that holds a program, for eval",
    "SC3045": "`ulimit -l`, which dash and bash both have",
}


def rank() -> str:
    """What launchers/rank.sh holds for each rank."""
    script = plain("launchers", "rank.sh") + 'printf "%s\\n" "$HPCSTACK_RANK"\n'
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout


TEXTS = {
    **{f"mode {mode}": inner(mode) for mode in IN_THE_IMAGE},
    "a rank": rank(),
    "podman": podman.START,
    "charliecloud": charliecloud.START,
    **{name: plain("launchers", name) for name in ("added.sh", "began.sh", "doctor.sh", "stacks.sh", "stage.sh")},
}


@pytest.mark.parametrize("name", TEXTS)
def test_shellcheck_finds_nothing(name: str) -> None:
    argv = ["shellcheck", "--shell=sh", "--severity=warning", f"--exclude={','.join(MEANT)}", "-"]
    done = subprocess.run(argv, input=TEXTS[name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_fragment_is_forgotten() -> None:
    known = {
        "rank.sh",
        "rendezvous.sh",
        *(f"{mode}.sh" for mode in IN_THE_IMAGE),
        *(one for one in TEXTS if one.endswith(".sh")),
    }
    assert {path.name for path in data.folder("launchers").glob("*.sh")} == known
