"""Servers that are right, killed, slow, or have another model, in the Hugging Face stack:
`transformers serve`.

Only with HPCSTACK_TABLE=all (ci/soak serving): it builds a stack of its own, for minutes. What the
clients say of each fault is tried in tests/unit/smoke/test_serving.py, too, on servers that take no
minutes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.slurm,
    pytest.mark.registry,
    pytest.mark.apptainer,
]
EVERYTHING = os.environ.get("HPCSTACK_TABLE") == "all"
STACK, CODE = "huggingface-25.10", "serve.transformers"
PLANT = Path(__file__).parents[1] / "plants/server.py"
RUNTIMES = [
    pytest.param(one, marks=getattr(pytest.mark, one)) for one in ("apptainer", "pyxis", "enroot")
]
FAULTS = {
    "killed": ("\"node2's server: ", "node2's server: it was ended by SIGKILL while it was asked"),
    "slow": ("node2's server: no whole answer within 6 s", "had to be killed 30 s after TERM"),
    "nonsense": ("the first completion answered ' zyxw",),
}


@pytest.fixture(scope="module")
def stack(testbed: Testbed) -> str:
    testbed.run("hpcstack", "lock", STACK, check=True)
    testbed.run("hpcstack", "build", "--locked", STACK, check=True)
    return STACK


def serve(testbed: Testbed, stack: str, runtime: str, **env: str) -> dict[str, Any]:
    words = (
        "-N",
        "2",
        "--nproc-per-node",
        "2",
        "--runtime",
        runtime,
        "--only",
        CODE,
        "--suite-from-host",
        "--json",
    )
    done = testbed.run(
        "env",
        *(f"{name}={value}" for name, value in env.items()),
        "hpcstack",
        "test",
        stack,
        *words,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("runtime", RUNTIMES if EVERYTHING else [])
def test_a_server_answers_from_the_other_node(testbed: Testbed, stack: str, runtime: str) -> None:
    document = serve(testbed, stack, runtime)
    (outcome,) = document["outcomes"]
    assert (document["verdict"], outcome["status"]) == ("PASS", "PASS"), outcome
    assert "8 clients at once" in outcome["measured"]
    assert outcome["figures"]["ready_s"] > 0


@pytest.mark.parametrize("fault", FAULTS if EVERYTHING else [])
def test_a_server_with_a_fault_is_named(testbed: Testbed, stack: str, fault: str) -> None:
    plant = testbed.give(
        f"plants/server-{fault}.py",
        PLANT.read_text().replace('FAULT = "killed"', f'FAULT = "{fault}"'),
    )
    document = serve(testbed, stack, "apptainer", HPCSTACK_SMOKE_PLANT=str(plant))
    assert document["verdict"] == "FAIL"
    assert document["planted"].endswith(f"server-{fault}.py")
    said = " ".join(path.read_text() for path in Path(document["folder"]).glob("task-*.json"))
    assert all(words in said for words in FAULTS[fault]), said
