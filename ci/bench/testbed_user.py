"""Commands as the testbed's ordinary user, for benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def on_testbed(*argv: str) -> str:
    done = subprocess.run(
        [str(REPO / "ci/testbed"), "exec", *argv], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{argv[:3]}: {done.stderr}")
    return done.stdout
