"""The agent of one node: runs the node's checks, then the launcher of the ranks, and leaves JSON files.

    python3 -m hpcstack_smoke --output DIR [--tests node,ddp] [--ranks 2] [-- LAUNCHER...]

Without a LAUNCHER it starts torchrun on this machine alone and prints what was found: a workstation's check.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any

from hpcstack_smoke import __version__
from hpcstack_smoke.node import checks
from hpcstack_smoke.result import run, write
from hpcstack_smoke.select import CODES, selected


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the launcher after `--`."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python3 -m hpcstack_smoke", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--output", default="", help="folder that all nodes see; a temporary one by default")
    parser.add_argument("--tests", default="", help="codes or families, by comma; all by default")
    parser.add_argument("--stack", default="", help="the stack that the image should be")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that the node should have")
    parser.add_argument("--ranks", type=int, default=2, help="ranks on this machine, without a LAUNCHER")
    parser.add_argument("--list", action="store_true", help="print the codes and end")
    return parser.parse_args(arguments[:split]), arguments[split + 1 :]


def node(options: argparse.Namespace, output: str) -> list[dict[str, Any]]:
    """The rows of this node, also in node-HOST.json."""
    host = socket.gethostname()
    table = checks(options.stack, options.gpus)
    rows = [run(code, table[code], host) for code in selected(options.tests, CODES["node"])]
    write(output, f"node-{host}.json", {"host": host, "suite": __version__, "rows": rows})
    return rows


def start_ranks(launcher: list[str], output: str) -> int:
    """Run the launcher with its output in launcher-HOST.log; its status."""
    with open(os.path.join(output, f"launcher-{socket.gethostname()}.log"), "w") as log:
        return subprocess.run(launcher, stdout=log, stderr=subprocess.STDOUT, check=False).returncode


def local_launcher(options: argparse.Namespace, output: str) -> list[str]:
    arguments = ["-m", "hpcstack_smoke.ranks", "--output", output, "--tests", options.tests]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(options.ranks),
        *arguments,
    ]


def show(output: str) -> bool:
    """Print what all nodes and ranks of OUTPUT say; whether nothing failed."""
    good = True
    for name in sorted(os.listdir(output)):
        if name.endswith(".json"):
            with open(os.path.join(output, name)) as file:
                for row in json.load(file)["rows"]:
                    good = good and row["status"] not in ("FAIL", "ERROR")
                    said = row.get("measured") or row["evidence"]
                    print(f"{row['status']:<5} {row['code']:<20} {row['where']:<16} {said}")
    return good


def main(arguments: list[str]) -> int:
    options, launcher = parse(arguments)
    if options.list:
        print("\n".join(code for codes in CODES.values() for code in codes))
        return 0
    output = options.output or tempfile.mkdtemp(prefix="hpcstack-smoke-")
    node(options, output)
    status = 0
    if selected(options.tests, CODES["ranks"]):
        status = start_ranks(launcher or local_launcher(options, output), output)
    if launcher:
        return status
    good = show(output)
    if status:
        print(f"ERROR the ranks ended with {status}; their log is in {output}")
    return 0 if good and not status else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
