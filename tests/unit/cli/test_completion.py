"""Completion in a shell: the script that it reads, and the words that it is given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

SHELLS = ("bash", "zsh", "fish")


def run(*words: str, **env: str) -> str:
    argv = [sys.executable, "-c", "from hpcstack.cli import main; main()", *words]
    return subprocess.run(
        argv, env={**os.environ, **env}, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_for_its_shell(shell: str) -> None:
    assert f"_HPCSTACK_COMPLETE={shell}_complete" in run("completion", shell)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_takes_the_script(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}, which is not on this machine")
    done = subprocess.run(
        [shell, "-n"], input=run("completion", shell), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_verb_is_completed() -> None:
    given = {"_HPCSTACK_COMPLETE": "bash_complete", "COMP_WORDS": "hpcstack lau", "COMP_CWORD": "1"}
    assert run(**given).split() == ["plain,launch"]
