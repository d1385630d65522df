"""Where the ranks meet: the inner script that runs inside the container, run by real shells."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcstack.render.launchers import render_inner


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node[1-2]", "node1"),
        ("node[01,07-09]", "node01"),
        ("a,b", "a"),
        ("rack[1-3]n[01,07],b2", "rack1n01"),
        ("gpu-[003-010]-ib,gpu-x", "gpu-003-ib"),
    ],
)
def test_the_first_host_of_a_node_list(shell: str, nodes: str, first: str) -> None:
    script = render_inner("torchrun")
    function = script[script.index("first_host() {") : script.index("nodes=${")]
    done = subprocess.run(
        [shell, "-u", "-c", f'{function}\nfirst_host "$1"', shell, nodes],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{first}\n"


def torchrun(tmp_path: Path, *arguments: str, **env: str) -> list[str]:
    """What the inner script hands to a torchrun that only prints."""
    fake = tmp_path / "torchrun"
    fake.write_text(
        '#!/bin/sh\necho "RANK=${RANK-unset}"\nfor word; do printf "%s\\n" "$word"; done\n'
    )
    fake.chmod(0o755)
    done = subprocess.run(["/bin/sh", "-c", render_inner("torchrun"), "torchrun", arguments[0], "", "0", *arguments[1:]], capture_output=True, text=True,
                          env={"PATH": f"{tmp_path}:/usr/bin:/bin", **env}, check=True)  # fmt: skip
    return done.stdout.splitlines()


STEP = {
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "localhost,b",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "100",
    "SLURM_STEP_ID": "3",
}


def test_the_rendezvous_is_the_first_node_by_its_ipv4_address(tmp_path: Path) -> None:
    said = torchrun(tmp_path, "4", "train.py", "a b", **STEP)
    assert said == [
        "RANK=unset", "--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "4", "--max-restarts", "0",
        "--master-addr", "127.0.0.1", "--master-port", "13103", "--no-python", "/bin/sh", "-c",
        'eval "$HPCSTACK_RANK"', "rank", "python3", "-u", "train.py", "a b",
    ]  # fmt: skip


def test_a_script_that_orders_the_nodes_says_which_is_the_first(tmp_path: Path) -> None:
    """Slurm's list of the step's nodes, and their numbers, are in Slurm's own order."""
    ordered = {
        "HPCSTACK_ORDER": "nowhere.invalid,b,localhost,c",
        "SLURM_PROCID": "5",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_STEP_NUM_NODES": "4",
    }
    said = torchrun(tmp_path, "2", "t.py", **{**STEP, **ordered})
    assert said[said.index("--node-rank") + 1] == "2"
    assert said[said.index("--master-addr") + 1] == "nowhere.invalid"
    # A step that is started from inside such a one is in Slurm's order again.
    said = torchrun(tmp_path, "2", "t.py", **{**STEP, **ordered, "HPCSTACK_ORDER": ""})
    assert said[said.index("--node-rank") + 1] == "1"
    assert said[said.index("--master-addr") + 1] == "127.0.0.1"


def test_what_the_user_set_is_kept_and_what_a_hook_set_is_not(tmp_path: Path) -> None:
    said = torchrun(
        tmp_path, "1", "./prog", MASTER_ADDR="10.0.0.9", MASTER_PORT="4321", RANK="7", **STEP
    )
    assert said[0] == "RANK=unset"
    assert said[said.index("--master-addr") + 1] == "10.0.0.9"
    assert said[said.index("--master-port") + 1] == "4321"
    assert said[-6:] == ["--no-python", "/bin/sh", "-c", 'eval "$HPCSTACK_RANK"', "rank", "./prog"]


def test_two_steps_of_a_job_have_two_ports(tmp_path: Path) -> None:
    ports = {
        torchrun(tmp_path, "1", "t.py", **{**STEP, "SLURM_STEP_ID": str(step)})[12]
        for step in range(4)
    }
    assert len(ports) == 4


def test_the_port_of_enroots_hook_is_not_kept(tmp_path: Path) -> None:
    said = torchrun(tmp_path, "1", "t.py", MASTER_PORT=str(61000 + 100 % 4536), **STEP)
    assert said[said.index("--master-port") + 1] == "13103"


def test_what_enroots_hooks_set_is_made_anew(tmp_path: Path) -> None:
    """Neither the user nor the image set it, so a host name in MASTER_ADDR and one thread are the
    hook's.
    """
    hook = {
        "MASTER_ADDR": "node7",
        "OMP_NUM_THREADS": "1",
        "HPCSTACK_UNSET": "MASTER_ADDR MASTER_PORT OMP_NUM_THREADS",
    }
    said = torchrun(tmp_path, "1", "t.py", **hook, **{**STEP, "SLURM_STEP_NUM_NODES": "1"})
    assert said[said.index("--master-addr") + 1] == "127.0.0.1"
