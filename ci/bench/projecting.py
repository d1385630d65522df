#!/usr/bin/env python3
"""What `launch --project` adds to a launch of an unchanged project, and how often a step opens its
files on the shared disk. Needs the testbed (ci/testbed up --tests) and a package index.

    ci/bench/project [--rounds 15] [--runtime apptainer]

The project needs plotly, which has some thousands of files. Launches with and without alternate.
Opens are counted by inotify, on both virtual nodes together, below the user's data folder.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import struct
import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tests")]
from support.testbed import Testbed  # noqa: E402

STACK = "pytorch-24.11"
TOP = "tests/bench-project"
MAKE = f"rm -rf {TOP}; mkdir -p {TOP}/it; echo plotly >{TOP}/it/requirements.txt"
READ = (
    "import os; "
    "found = [os.path.join(top, name) for top, _, names in os.walk('/opt/hpcstack/with/lib') for name in names]; "
    "[open(path, 'rb').read() for path in found]; print(len(found))"
)
IN_OPEN = 0x20


class Opens:
    """Counts how often files in FOLDER are opened."""

    def __init__(self, folder: Path) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.watch = self.libc.inotify_init1(os.O_CLOEXEC)
        self.libc.inotify_add_watch(self.watch, os.fsencode(folder), IN_OPEN)
        self.count = 0
        self.ended = False
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        while not self.ended:
            data = os.read(self.watch, 1 << 16)
            at = 0
            while at < len(data):
                _, mask, _, length = struct.unpack_from("iIII", data, at)
                at += 16 + length
                is_file = not mask & 0x40000000  # IN_ISDIR
                self.count += is_file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--runtime", default="apptainer")
    asked = parser.parse_args()
    testbed = Testbed()
    testbed.bash(MAKE)

    line = f"cd {TOP}/it && exec hpcstack launch {STACK} --mode plain --runtime {asked.runtime}"
    first = time.monotonic()
    testbed.bash(f"{line} --project . -- true")
    print(f"the first launch, which locks, installs and packs: {time.monotonic() - first:.2f} s")

    took: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(asked.rounds):
        for name, option in (("without", ""), ("with", "--project .")):
            began = time.monotonic()
            testbed.bash(f"{line} {option} -- true")
            took[name].append(time.monotonic() - began)
    medians = {name: statistics.median(values) for name, values in took.items()}
    print(
        f"launch without it {medians['without']:.3f} s, with it {medians['with']:.3f} s: "
        f"{medians['with'] - medians['without']:+.3f} s (medians of {asked.rounds})"
    )

    folder = testbed.home / ".local/share/hpcstack/projects"
    opens = Opens(folder)
    done = testbed.bash(f'{line} --project . -N2 -- python3 -c "{READ}"')
    time.sleep(0.5)
    opens.ended = True
    files = done.stdout.split()[0]
    print(
        f"{files} files read on each of two nodes: the packed file was opened {opens.count} times"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
