"""README's transcript is made by ci/transcript, and shows what ci/quickstart runs."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys

from support.testbed import REPO


def test_the_readme_shows_commands_of_the_quickstart() -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / "ci/transcript"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_long_answer_is_shortened() -> None:
    loader = importlib.machinery.SourceFileLoader("transcript", str(REPO / "ci/transcript"))
    spec = importlib.util.spec_from_loader("transcript", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    answer = [f"line {n}" for n in range(60)]
    log = (
        "* up\n\n\x1b[1m$ hpcstack lint\x1b[0m\n"
        + "\n".join(answer)
        + "\n\n$ ls\nx\n$ module load a\n"
    )
    first, second = module.commands(log)
    assert (
        first.splitlines() == ["$ hpcstack lint", *answer[:22], "...", *answer[-4:]]
        and second == "$ module load a"
    )
