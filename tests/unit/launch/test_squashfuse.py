"""The squashfuse for Enroot: what it starts, and what that ignores."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from click.testing import CliRunner

from hpcstack.cli.site_ import command


def test_it_starts_squashfuse_ll_which_ignores_the_signals_of_a_group_that_ends(
    tmp_path: Path,
) -> None:
    done = CliRunner().invoke(command, ["squashfuse", "-o", str(tmp_path / "squashfuse")])
    assert done.exit_code == 0
    assert "PATH" in done.output
    (tmp_path / "squashfuse_ll").write_text('#!/bin/sh\necho "$@"\nexec sleep 30\n')
    (tmp_path / "squashfuse_ll").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["squashfuse", "-f", "-o", "uid=1,gid=2", "an image", "where"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "-f -o uid=1,gid=2 an image where\n"
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    try:
        process.wait(0.5)
        raise AssertionError("a signal ended it")
    except subprocess.TimeoutExpired:
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
