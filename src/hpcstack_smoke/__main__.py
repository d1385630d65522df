"""The agent of one node: runs the node's checks, then the launcher of the ranks, and leaves JSON
files.

    python3 -m hpcstack_smoke [--tier quick] [--tests node,ddp] [--ranks 2]    a workstation's check
    python3 -m hpcstack_smoke --request DIR -- LAUNCHER...                    one node of a run, under hpcstack test

DIR holds the request (request.json) and takes what is found.
Without a LAUNCHER it starts torchrun on this machine alone and prints what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile

from hpcstack_smoke import __version__
from hpcstack_smoke.agent import Agent
from hpcstack_smoke.request import FILE, Request, read_request, write_request
from hpcstack_smoke.select import BURN, CHECKS, MINUTES, STALL_S, TIERS


def parse_options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the launcher after `--`."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        prog="python3 -m hpcstack_smoke", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--request", default="", metavar="DIR", help="a run's folder that holds its request.json"
    )
    parser.add_argument(
        "--output", default="", help="folder that all nodes see; a temporary one by default"
    )
    parser.add_argument(
        "--tests", "--only", default="", help="codes, families or groups, by comma; all by default"
    )
    parser.add_argument("--skip", default="", help="codes, families or groups to leave out")
    parser.add_argument("--tier", choices=(*TIERS, BURN), default="quick", help="how much is run")
    parser.add_argument("--stack", default="", help="the stack that the image should be")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that the node should have")
    parser.add_argument("--ranks", type=int, default=2, help="ranks on each node")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of this run")
    parser.add_argument(
        "--stall", type=float, default=0.0, help="seconds without a result before ranks are ended"
    )
    parser.add_argument(
        "--deadline", type=float, default=0.0, help="seconds for all of it; none by default"
    )
    parser.add_argument(
        "--fabric-rate", type=float, default=0.0, help="Gb/s that each port should have"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of a burn")
    parser.add_argument("--list", action="store_true", help="print the checks and end")
    return parser.parse_args(arguments[:split]), arguments[split + 1 :]


def write_given_request(options: argparse.Namespace) -> Request:
    """The request that the options make, written where ranks find it."""
    output = options.output or tempfile.mkdtemp(prefix="hpcstack-smoke-")
    if os.path.exists(os.path.join(output, FILE)):
        raise SystemExit(f"{output} holds an earlier run: name another folder")
    request = Request(
        output,
        options.tests,
        options.tier,
        options.skip,
        options.stack,
        options.gpus,
        options.ranks,
        options.nodes,
        options.stall or STALL_S[options.tier],
        options.deadline,
        options.fabric_rate,
        minutes=options.minutes,
    )
    write_request(request)
    return request


def show_results(output: str) -> bool:
    """Print what went wrong on any node or rank of OUTPUT, and how much of what there was; whether
    nothing failed.
    """
    counts = dict.fromkeys(("PASS", "FAIL", "ERROR", "WARN", "SKIP"), 0)
    for name in sorted(os.listdir(output)):
        if name.endswith(".json") and name.startswith(("node-", "rank-", "task-")):
            with open(os.path.join(output, name)) as file:
                for row in json.load(file)["rows"]:
                    counts[row["status"]] += 1
                    if row["status"] in ("FAIL", "ERROR", "WARN"):
                        said = row.get("measured") or row["evidence"]
                        print(f"{row['status']:<5} {row['code']:<20} {row['where']:<16} {said}")
                        if row.get("remedy"):
                            print(f"      {row['remedy']}")
    print(
        ", ".join(f"{count} {status}" for status, count in counts.items() if count),
        f"of all ranks; {output}",
    )
    return counts["FAIL"] + counts["ERROR"] == 0 and counts["PASS"] > 0


def main(arguments: list[str]) -> int:
    options, launcher = parse_options(arguments)
    if options.list:
        print("\n".join(f"{check.code:<20} {check.tier:<9} {check.about}" for check in CHECKS))
        return 0
    request = read_request(options.request) if options.request else write_given_request(options)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that what was started is ended on the way out
    scratch = os.environ["HPCSTACK_SMOKE_SCRATCH"] = tempfile.mkdtemp(prefix="hpcstack-smoke-")
    try:
        status = run_scopes(Agent(request, tuple(launcher)))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if launcher:
        return status
    good = show_results(request.output)
    if status:
        print(f"ERROR the ranks ended with {status}; their log is in {request.output}")
    return 0 if good and not status else 1


def run_scopes(agent: Agent) -> int:
    """All scopes that the run asks for, on this node; the worst status of what was launched."""
    request = agent.request
    agent.node_checks()
    status = 0
    if request.checks("tasks"):
        from hpcstack_smoke.tasks import start_tasks

        status = start_tasks(agent) or status
    status = agent.rank_checks() or status
    if request.checks("restart"):
        from hpcstack_smoke.training.restart import start as restart

        status = restart(agent) or status
    agent.after()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
