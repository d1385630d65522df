"""Elastic restart: a rank dies, torchrun starts all again, and they resume from the checkpoint.

The agent starts this file as the ranks of a torchrun of its own. Rank 0 leaves what it found as
restart.json in the run's folder; each node's agent judges that.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.result import ERROR, SKIP, Result, judge_result, run_check, write_document

if TYPE_CHECKING:
    from hpcstack_smoke.agent import Agent

CODE = "train.restart"
STEPS = 12
DIES_AT = 6  # the step at which the last rank dies


def check_train_restart(agent: Agent) -> int:
    """Run the check on AGENT's node, as all agents do, and add its row. Return 0."""
    import importlib.util

    if not importlib.util.find_spec("torch"):
        row = {
            "code": CODE,
            "where": agent.host,
            "status": SKIP,
            "seconds": 0.0,
            "evidence": "the image has no torch",
        }
        agent.add(row)
        return 0

    command = ["-m", "hpcstack_smoke.training.restart", agent.request.output]
    status = agent.launch(command, f"restart-{agent.host}.log", elastic=True)
    agent.add(run_check(CODE, lambda: judge_restart(agent.request.output, status), agent.host))
    return 0


def judge_restart(output: str, status: int) -> Result:
    """Judge what rank 0 wrote into OUTPUT. ERROR if torchrun's STATUS is not 0."""
    expected = "one restart, then the losses of a run that nothing disturbed"
    path = os.path.join(output, "restart.json")
    if status or not os.path.exists(path):
        look = "see restart-HOST.log in the run's folder"
        return Result(ERROR, f"torchrun ended with {status}", expected, evidence=look)

    with open(path) as file:
        found = json.load(file)
    restarts, resumed, error = found["restarts"], found["resumed"], found["error"]
    measured = f"{restarts} restart(s), resumed at step {resumed}, off the reference by {error:.1e}"
    return judge_result(
        restarts >= 1 and 0 < resumed <= DIES_AT and error <= 1e-4,
        measured,
        expected,
        "a single-process run of the same steps",
        remedy="torchrun does not restart, or the checkpoint is not what was written",
    )


def main() -> None:
    """Be one rank: train from the checkpoint, if there is one, to the end."""
    output = sys.argv[1]
    from hpcstack_smoke.ranks import calm_cpu, keep_to_scratch

    keep_to_scratch()
    calm_cpu()
    from dataclasses import replace

    import torch

    from hpcstack_smoke.context import join_group
    from hpcstack_smoke.request import read_request

    context = join_group(90.0, replace(read_request(output), gpus=0))
    path = os.path.join(output, ".restart.pt")
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    losses, first = _train(context, path, torch)
    from hpcstack_smoke.training import task

    expected = task.train_reference(context.world, context.device).losses[:STEPS]
    error = max(abs(a - b) for a, b in zip(losses, expected))
    if context.rank == 0:
        # torchrun counts what died on this node; the last rank may have been on another
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


def _train(context: Any, path: str, torch: Any) -> tuple[list[float], int]:
    """Train to the end, with a checkpoint at PATH after each step.

    Return (the losses of all steps, the step that this start began at). The last rank dies once,
    at DIES_AT.
    """
    from hpcstack_smoke.training import task
    from hpcstack_smoke.training.ddp import wrap_network

    network, around, optimizer = wrap_network(context)
    losses: list[float] = []
    context.all(0)

    # rank 0 reads the checkpoint for all: on a shared file system others may not see it yet
    saved = None
    if context.rank == 0 and os.path.exists(path):
        saved = torch.load(path, map_location="cpu", weights_only=True)
    saved = context.all(saved)[0]
    if saved:
        network.load_state_dict(saved["model"])
        losses = list(saved["losses"])

    first = len(losses)
    first_time = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and not first
    dies = first_time and context.rank == context.world - 1
    for step in range(first, STEPS):
        if dies and step == DIES_AT:
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
