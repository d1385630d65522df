"""Run the smoke tests of one node: its own checks, then those of the ranks that it starts.

    python3 -m hpcstack_smoke [--tier quick] [--tests node,ddp] [--ranks 2]
        on a workstation: start torchrun on this machine alone and print the results
    python3 -m hpcstack_smoke --request DIR -- LAUNCHER...
        one node of a run of `hpcstack test`: start the ranks by LAUNCHER

DIR holds the run's request (request.json); the results are written into it as JSON files.
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
    """Return the options, and the words of the launcher, which come after `--`."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        prog="python3 -m hpcstack_smoke", description=__doc__.partition("\n")[0]
    )
    add = parser.add_argument
    add("--version", action="version", version=__version__)
    add("--request", default="", metavar="DIR", help="folder of a run, with its request.json")
    add("--output", default="", help="folder that all nodes see; by default a temporary one")
    tests_help = "codes, families or groups, separated by commas; all by default"
    add("--tests", "--only", default="", help=tests_help)
    add("--skip", default="", help="codes, families or groups to leave out")
    add("--tier", choices=(*TIERS, BURN), default="quick", help="how much is run")
    add("--stack", default="", help="the stack that the image should be")
    add("--gpus", type=int, default=0, help="GPUs that the node should have")
    add("--ranks", type=int, default=2, help="ranks on each node")
    add("--nodes", type=int, default=1, help="nodes of this run")
    stall_help = "seconds without a result after which the ranks are ended"
    add("--stall", type=float, default=0.0, help=stall_help)
    deadline_help = "seconds that the whole run may take; by default there is no limit"
    add("--deadline", type=float, default=0.0, help=deadline_help)
    add("--fabric-rate", type=float, default=0.0, help="Gb/s that each port should have")
    add("--minutes", type=float, default=MINUTES, help="how long a burn lasts")
    add("--list", action="store_true", help="print the checks and exit")

    return parser.parse_args(arguments[:split]), arguments[split + 1 :]


def write_given_request(options: argparse.Namespace) -> Request:
    """Return the request that OPTIONS make, written into the run's folder, where ranks read it.

    SystemExit where the folder holds the request of an earlier run.
    """
    output = options.output or tempfile.mkdtemp(prefix="hpcstack-smoke-")
    if os.path.exists(os.path.join(output, FILE)):
        raise SystemExit(f"{output} holds an earlier run: name another folder with --output")
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
    """Print each row of OUTPUT that is not good, then how many rows have each status.

    Return whether the run passed: no FAIL, no ERROR, and at least one PASS.
    """
    counts = dict.fromkeys(("PASS", "FAIL", "ERROR", "WARN", "SKIP"), 0)
    for name in sorted(os.listdir(output)):
        if not (name.endswith(".json") and name.startswith(("node-", "rank-", "task-"))):
            continue
        with open(os.path.join(output, name)) as file:
            rows = json.load(file)["rows"]
        for row in rows:
            counts[row["status"]] += 1
            if row["status"] in ("FAIL", "ERROR", "WARN"):
                said = row.get("measured") or row["evidence"]
                print(f"{row['status']:<5} {row['code']:<20} {row['where']:<16} {said}")
                if row.get("remedy"):
                    print(f"      {row['remedy']}")

    shown = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    print(shown, f"of all ranks; {output}")
    return counts["FAIL"] + counts["ERROR"] == 0 and counts["PASS"] > 0


def main(arguments: list[str]) -> int:
    """Run what ARGUMENTS ask for. Return the exit status.

    Under a launcher that is the worst status of what was launched, since `hpcstack test` judges
    the results; else 0 only if the run passed.
    """
    options, launcher = parse_options(arguments)
    if options.list:
        print("\n".join(f"{check.code:<20} {check.tier:<9} {check.about}" for check in CHECKS))
        return 0

    request = read_request(options.request) if options.request else write_given_request(options)

    # SIGTERM raises SystemExit, so that what was started is ended on the way out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scratch = tempfile.mkdtemp(prefix="hpcstack-smoke-")
    os.environ["HPCSTACK_SMOKE_SCRATCH"] = scratch
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
    """Run all scopes that the run asks for on this node.

    Return the status of the last launch that did not end with 0; 0 where all did.
    """
    request = agent.request
    agent.node_checks()

    status = 0
    if request.checks("tasks"):
        from hpcstack_smoke.tasks import start_tasks

        status = start_tasks(agent) or status
    status = agent.rank_checks() or status
    if request.checks("restart"):
        from hpcstack_smoke.training.restart import check_train_restart as restart

        status = restart(agent) or status
    if request.own:
        from hpcstack_smoke.own import OwnChecks

        OwnChecks(agent).run_all()

    agent.after()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
