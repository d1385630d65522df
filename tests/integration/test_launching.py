"""Launching on the testbed: every mode by every runtime, seen from inside; what goes wrong, and what is written down."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from typing import Any

import pytest

from support.testbed import Testbed

STACK = "pytorch-24.11"
pytestmark = [pytest.mark.testbed, pytest.mark.slurm]
RUNTIMES = [
    pytest.param("pyxis", marks=[pytest.mark.pyxis, pytest.mark.enroot]),
    pytest.param("apptainer", marks=pytest.mark.apptainer),
    pytest.param("enroot", marks=pytest.mark.enroot),
]
SHOW = """\
import json, os, socket, sys
shown = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT PMIX_RANK SLURM_PROCID CUDA_VERSION PYTHONNOUSERSITE".split()
line = {"host": socket.gethostname(), "cwd": os.getcwd(), "arguments": sys.argv[1:],
        "environment": {name: os.environ[name] for name in shown if name in os.environ}}
os.write(1, (json.dumps(line) + "\\n").encode())
"""


def ranks(text: str) -> list[dict[str, Any]]:
    """What each rank said, in the order of ranks."""
    out, decoder, at = [], json.JSONDecoder(), text.find('{"host"')
    while at >= 0:
        document, end = decoder.raw_decode(text, at)
        out.append(document)
        at = text.find('{"host"', end)
    return sorted(out, key=lambda one: int(one["environment"].get("RANK") or one["environment"]["SLURM_PROCID"]))


@pytest.fixture(scope="module")
def show(testbed: Testbed) -> str:
    return str(testbed.give("tests/launching/show.py", SHOW))


def launch(testbed: Testbed, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    pairs = [f"{name}={value}" for name, value in env.items()]
    script = 'cd tests/launching && exec "$@"'
    return testbed.run("bash", "-c", script, "bash", "env", *pairs, "hpcstack", "launch", STACK, *words)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("mode", ["torchrun", "task-per-gpu", "deepspeed"])
def test_every_rank_knows_itself_and_the_first(
    testbed: Testbed, built: dict[str, Any], show: str, mode: str, runtime: str
) -> None:
    done = launch(testbed, "-N2", "--nproc-per-node", "2", "--mode", mode, "--runtime", runtime, "--", "show.py", "a b")
    said = ranks(done.stdout)
    assert done.returncode == 0 and len(said) == 4, done.stderr
    environments = [one["environment"] for one in said]
    assert [int(env["RANK"]) for env in environments] == [0, 1, 2, 3]
    assert [int(env["LOCAL_RANK"]) for env in environments] == [0, 1, 0, 1]
    assert {env["WORLD_SIZE"] for env in environments} == {"4"}
    assert [one["host"] for one in said] == ["node1", "node1", "node2", "node2"]
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in environments}) == 1
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", environments[0]["MASTER_ADDR"])
    assert all(one["cwd"].endswith("tests/launching") and "a b" in one["arguments"] for one in said)
    assert {env["CUDA_VERSION"] for env in environments} == {"12.6.3.001"}, "the image's own variables are there"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_plain_and_mpi_are_slurms_own_tasks(testbed: Testbed, built: dict[str, Any], show: str, runtime: str) -> None:
    plain = launch(
        testbed, "-N2", "--ntasks-per-node=2", "--mode", "plain", "--runtime", runtime, "--", "python3", show
    )
    assert [one["environment"]["SLURM_PROCID"] for one in ranks(plain.stdout)] == ["0", "1", "2", "3"], plain.stderr
    mpi = launch(testbed, "-N2", "--nproc-per-node=2", "--mode", "mpi", "--runtime", runtime, "--", "python3", show)
    found = sorted(one["environment"]["PMIX_RANK"] for one in ranks(mpi.stdout))
    assert found == ["0", "1", "2", "3"], mpi.stderr


@pytest.mark.apptainer
def test_what_the_user_set_wins_and_why_tells(testbed: Testbed, built: dict[str, Any], show: str) -> None:
    done = launch(testbed, "--runtime", "apptainer", "--", "show.py", MASTER_PORT="23456", PYTHONNOUSERSITE="0")
    said = ranks(done.stdout)[0]["environment"]
    assert (said["MASTER_PORT"], said["PYTHONNOUSERSITE"]) == ("23456", "0")
    why = testbed.json("why", "PYTHONNOUSERSITE")
    assert (why["set"]["value"], why["set"]["origin"]) == ("0", "the user's environment")
    assert testbed.json("why", "CUDA_VERSION")["set"]["origin"] == "the image"
    assert testbed.run("hpcstack", "why", "NOBODY_SET_THIS").returncode == 1
    secret = launch(testbed, "--runtime", "apptainer", "--", "show.py", HF_TOKEN="hf_do_not_keep_me")
    folder = testbed.json("jobs", "-n", "1")[0]["folder"]
    assert secret.returncode == 0
    assert testbed.bash('grep -r do_not_keep_me "$1" || true', folder).stdout == ""


@pytest.mark.apptainer
def test_a_job_of_its_own_is_written_down(testbed: Testbed, built: dict[str, Any], show: str) -> None:
    words = ("-N2", "--nproc-per-node=1", "--batch", "--time=5", "--output=batch-%j.out", "--runtime", "apptainer")
    done = launch(testbed, *words, "--json", "--", "show.py")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    until = time.monotonic() + 120
    while (row := _job(testbed, document["job"]))["state"] not in ("COMPLETED", "FAILED") and time.monotonic() < until:
        time.sleep(1)
    assert row["state"] == "COMPLETED" and row["nodes"] == "node[1-2]" and row["stack"] == STACK
    said = testbed.bash('cat "tests/launching/batch-$1.out"', document["job"]).stdout
    assert [one["host"] for one in ranks(said)] == ["node1", "node2"]
    kept = json.loads(testbed.bash('cat "$1/launch.json"', document["folder"]).stdout)
    assert kept["image_sha256"] == built["sha256"] and kept["lock_sha256"] and kept["argv"][0] == "srun"
    told = testbed.run("hpcstack", "explain", document["job"])
    assert told.returncode == 1 and "nothing in it that is known" in told.stdout, told.stderr


def _job(testbed: Testbed, number: str) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in testbed.json("jobs") if row["job"] == number)
    return row


@pytest.mark.apptainer
@pytest.mark.shellcheck
@pytest.mark.parametrize("mode", ["torchrun", "deepspeed", "task-per-gpu", "mpi", "plain"])
def test_the_script_is_stable_sound_and_what_slurm_takes(
    testbed: Testbed, built: dict[str, Any], show: str, mode: str
) -> None:
    words = (
        "-N2",
        "--mode",
        mode,
        "--batch",
        "--dry-run",
        "--time=10",
        "--mem=100",
        "--",
        "show.py",
        "it's; $(x) \\ `y`",
    )
    first, second = (launch(testbed, *words).stdout for _ in range(2))
    assert first == second
    path = testbed.give("tests/launching/script.sh", first)
    for argv in (("bash", "-n"), ("shellcheck",), ("sbatch", "--test-only")):
        done = testbed.run(*argv, str(path))
        assert done.returncode == 0, done.stdout + done.stderr
    body = first.split("line=(")[1].splitlines()
    assert all(above.strip().startswith("# ") for above, below in itertools.pairwise(body) if "--nodes" in below)


@pytest.mark.apptainer
def test_a_rank_that_dies_ends_the_step_with_its_status(testbed: Testbed, built: dict[str, Any], show: str) -> None:
    script = 'if [ "$SLURM_PROCID" = 1 ]; then kill -9 $$; fi; sleep 60'
    began = time.monotonic()
    done = launch(testbed, "-N2", "--mode", "plain", "--runtime", "apptainer", "--", "sh", "-c", script)
    assert done.returncode in (137, 143) and time.monotonic() - began < 40, done.stderr  # srun tells the highest
    assert testbed.json("jobs", "-n", "1")[0]["state"] == f"exit {done.returncode}"
    assert testbed.run("squeue", "--noheader", "--name", STACK).stdout == "", "nothing is left running"


@pytest.mark.apptainer
def test_a_job_that_is_cancelled_is_told(testbed: Testbed, built: dict[str, Any], show: str) -> None:
    script = "(sleep 4; scancel --name pytorch-24.11) & cd tests/launching && hpcstack launch pytorch-24.11 " \
        "--runtime apptainer --mode plain -- sleep 60"  # fmt: skip
    done = testbed.bash(script, check=False)
    assert done.returncode in (143, 137, 15, 125, 1), (done.returncode, done.stderr)
    assert "CANCELLED" in done.stderr or "canceled" in done.stderr
    assert testbed.run("squeue", "--noheader", "--name", STACK).stdout == ""


@pytest.mark.apptainer
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-N3",), "3 nodes: partition debug has 2"),
        (("-G9",), "9 GPUs a node: the nodes of partition debug have 4"),
        (("-c99",), "99 CPUs a node (1 x 99): partition debug has 4"),
        (("-t", "soon"), "Slurm writes 30, 30:00"),
        (("--mam=3G",), "did you mean '--mem'?"),
        (("--mem", "3G"), "an option of srun is written with ="),
        (("-C", "h100"), "no node of partition debug has it"),
        (("--ntasks-per-node=4",), "--nproc-per-node 4, or --mode task-per-gpu"),
        (("--elastic", "2"), "MIN:MAX nodes are wanted"),
    ],
)
def test_what_cannot_be_is_refused_before_slurm_is_asked(
    testbed: Testbed, built: dict[str, Any], show: str, words: tuple[str, ...], says: str
) -> None:
    done = launch(testbed, *words, "--", "show.py")
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.apptainer
def test_a_command_that_is_not_there_is_said_before_nodes_are_taken(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    assert launch(testbed, "--check", "--", "show.py").returncode == 0
    assert launch(testbed, "--check", "--mode", "plain", "--", "python3", "x").returncode == 0
    for command, says in ((("no-such-tool",), "no command 'no-such-tool'"), (("not-here.py",), "no such file"),
                          (("/opt/none",), "neither in the image nor in a mount")):  # fmt: skip
        done = launch(testbed, "--check", "--mode", "plain", "--", *command)
        assert done.returncode == 1 and says in done.stdout, done.stdout + done.stderr


@pytest.mark.apptainer
def test_the_doctor_sees_the_nodes(testbed: Testbed) -> None:
    document = json.loads(testbed.run("hpcstack", "doctor", "--nodelist", "node[1-2]", "--json").stdout)
    seen = {(one["where"], one["code"]): one["status"] for one in document["findings"]}
    for node in ("node1", "node2"):
        assert seen[node, "userns"] == "OK" and seen[node, "gpu"] == "SKIP" and seen[node, "store"] == "OK"
    assert seen["all", "clock"] == "OK" and any(code == "registry" for _, code in seen)
    assert testbed.run("hpcstack", "doctor", "--nodelist", "no such node").returncode == 2
