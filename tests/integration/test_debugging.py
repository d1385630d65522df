"""A rank of a job that is stopped in its debugger, while the others wait for it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from support.launching import RUNTIMES, STACK
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs, pytest.mark.slurm]
TRAIN = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mine = torch.tensor([float(dist.get_rank())])
dist.all_reduce(mine)
print("rank", dist.get_rank(), "sum", mine.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_one_rank_is_looked_at_while_the_other_waits(
    testbed: Testbed, built: dict[str, Any], runtime: str
) -> None:
    folder = f"tests/debugging-{runtime}"
    testbed.give(f"{folder}/train.py", TRAIN)
    apart = f"cd {folder} && export XDG_STATE_HOME=$PWD/state && "
    started = testbed.bash(
        f"{apart}rm -f *.out && hpcstack launch {STACK} --batch -N2 --nproc-per-node 1 --mode torchrun "
        f"--runtime {runtime} --debug 1 --json -- train.py"
    )
    document = json.loads(started.stdout)
    job, output = str(document["job"]), document["output"]
    try:
        for _ in range(600):
            said = testbed.run("cat", output).stdout
            if "waits for its debugger" in said:
                break
            time.sleep(0.2)
        assert f"hpcstack enter {job} --rank 1 --debug" in said

        wrong = testbed.bash(
            f"{apart}timeout 60 hpcstack enter {job} --debug </dev/null", check=False
        )
        assert f"TIP: hpcstack enter {job} --rank 1 --debug" in wrong.stdout + wrong.stderr
        # The other rank waits in its collective until this one has its line.
        talk = f"printf 'b 7\\nc\\np mine\\nmine += 41\\nc\\n' | timeout 100 hpcstack enter {job} --rank 1 --debug"
        shown = testbed.bash(apart + talk, check=False)
        assert "tensor([1.])" in shown.stdout, shown.stdout + shown.stderr
        for _ in range(150):
            said = testbed.run("cat", output).stdout
            if said.count("sum 42.0") == 2:
                break
            time.sleep(0.2)
        assert said.count("sum 42.0") == 2, said
    finally:
        testbed.run("scancel", job)
