"""Elastic restart: a rank dies in the middle, torchrun starts all again, and the steps go on from
the checkpoint.

The agent starts this file as the ranks of a torchrun of its own; what the ranks leave is judged by
the first node.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.result import ERROR, FAIL, PASS, SKIP, Result, run_check, write_document

if TYPE_CHECKING:
    from hpcstack_smoke.agent import Agent

CODE = "train.restart"
DIES_AT, STEPS = 6, 12


def start(agent: Agent) -> int:
    """Run it over all nodes of AGENT's run; its row is each node's."""
    import importlib.util

    if not importlib.util.find_spec("torch"):
        agent.add(
            {
                "code": CODE,
                "where": agent.host,
                "status": SKIP,
                "seconds": 0.0,
                "evidence": "the image has no torch",
            }
        )
        return 0
    command = ["-m", "hpcstack_smoke.training.restart", agent.request.output]
    status = agent.launch(command, f"restart-{agent.host}.log", elastic=True)
    agent.add(run_check(CODE, lambda: judge_restart(agent.request.output, status), agent.host))
    return 0


def judge_restart(output: str, status: int) -> Result:
    """From what the last rank 0 wrote."""
    expected = "one restart, then the losses of a run that nothing disturbed"
    path = os.path.join(output, "restart.json")
    if status or not os.path.exists(path):
        return Result(
            ERROR,
            f"torchrun ended with {status}",
            expected,
            evidence="see restart-HOST.log in the run's folder",
        )
    with open(path) as file:
        found = json.load(file)
    measured = (
        f"{found['restarts']} restart(s), resumed at step {found['resumed']}, off the reference by "
        f"{found['error']:.1e}"
    )
    good = found["restarts"] >= 1 and 0 < found["resumed"] <= DIES_AT and found["error"] <= 1e-4
    return Result(
        PASS if good else FAIL,
        measured,
        expected,
        "a single-process run of the same steps",
        remedy=""
        if good
        else "torchrun does not restart, or the checkpoint is not what was written",
    )


def main() -> None:
    output = sys.argv[1]
    from hpcstack_smoke.ranks import keep_to_scratch, quiet_cpu

    keep_to_scratch()
    quiet_cpu()
    from dataclasses import replace

    import torch

    from hpcstack_smoke.context import join_group
    from hpcstack_smoke.request import read_request

    context = join_group(90.0, replace(read_request(output), gpus=0))
    path = os.path.join(output, ".restart.pt")
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    losses, first = _steps(context, path, torch)
    from hpcstack_smoke.training import task

    expected = task.train_reference(context.world, context.device).losses[:STEPS]
    error = max(abs(a - b) for a, b in zip(losses, expected))
    if context.rank == 0:
        died = os.path.exists(f"{path}.died")
        found = {
            "restarts": max(again, int(died)),
            "resumed": first,
            "error": error,
            "host": socket.gethostname(),
        }
        if not os.path.exists(os.path.join(output, "restart.json")):
            write_document(output, "restart.json", found)
    context.all(0)
    if context.rank == 0:
        time.sleep(1)  # the store is this rank's: the others leave first


def _steps(context: Any, path: str, torch: Any) -> tuple[list[float], int]:
    """(all losses, the step that this start began at). The last rank dies once, at DIES_AT."""
    from hpcstack_smoke.training import task
    from hpcstack_smoke.training.ddp import wrap_network

    network, around, optimizer = wrap_network(context)
    losses: list[float] = []
    context.all(0)
    saved = None
    if context.rank == 0 and os.path.exists(
        path
    ):  # the others may not see the file yet: they are told
        saved = torch.load(path, map_location="cpu", weights_only=True)
    saved = context.all(saved)[0]
    if saved:
        network.load_state_dict(saved["model"])
        losses = list(saved["losses"])
    first = len(losses)
    for step in range(first, STEPS):
        first_time = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and not first
        if step == DIES_AT and context.rank == context.world - 1 and first_time:
            with open(f"{path}.died", "w"):
                pass
            sys.stdout.flush()
            os._exit(3)
        losses += task.learn_steps(
            around,
            optimizer,
            lambda step: task.take_own_rows(context, step),
            task.average_over_ranks,
            1,
            step,
        )
        if context.rank == 0:
            torch.save({"model": network.state_dict(), "losses": losses}, f"{path}.part")
            os.replace(f"{path}.part", path)
        context.all(0)
    return losses, first


if __name__ == "__main__":
    main()
