"""The image's part of own checks: commands are run, watched and ended, and their output is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcstack_smoke import own
from hpcstack_smoke.agent import Agent
from hpcstack_smoke.own import OwnChecks, run_command
from hpcstack_smoke.request import Request, read_request, write_request


def run_shell(folder: Path, script: str, seconds: float = 20.0) -> own.Ended:
    log = str(folder / "log")
    return run_command(("/bin/sh", "-ec", script), log, seconds, dict(os.environ))


def run_checks(folder: Path, *runs: dict[str, Any], ranks: int = 2) -> dict[str, Any]:
    """Run RUNS as the agent of the only node. Return {name of a file: its document}."""
    written = tuple({"time_limit": 20, **run} for run in runs)
    request = Request(str(folder), ranks=ranks, own=written)
    write_request(request)
    agent = Agent(read_request(str(folder)))
    agent.inventory = {"gpus": 0, "ports": 0}
    OwnChecks(agent).run_all()
    return {path.name: json.loads(path.read_text()) for path in folder.glob("own-*.json")}


def shell(code: str, on: str, script: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "on": on, "argv": ["/bin/sh", "-ec", script], **more}


def test_output_and_status_are_kept(tmp_path: Path) -> None:
    ended = run_shell(tmp_path, "echo out; echo err >&2; echo ok > file; exit 3")
    assert (ended.status, ended.ending, ended.output) == (3, own.BY_ITSELF, "out\nerr\n")
    assert (tmp_path / "log").read_text() == "out\nerr\n"
    assert not (tmp_path / "file").exists(), "it runs in a folder of its own"


def test_a_signal_is_a_status_as_in_a_shell(tmp_path: Path) -> None:
    assert run_shell(tmp_path, "kill -SEGV $$").status == 139


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    ended = run_command(("/no/such",), str(tmp_path / "log"), 5.0, {})
    assert (ended.ending, ended.status) == (own.NOT_STARTED, 127)
    assert ended.detail == "/no/such: No such file or directory"


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = run_shell(tmp_path, "sleep 311 & echo $!; wait", seconds=0.5)
    assert ended.ending == own.AT_TIME_LIMIT
    assert time.monotonic() - began < 8
    assert not Path(f"/proc/{ended.output.strip()}/fd/1").exists()


def test_what_stays_behind_does_not_hold_the_run(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = run_shell(tmp_path, "sleep 312 & echo $!")
    assert (ended.status, ended.ending) == (0, own.BY_ITSELF)
    assert time.monotonic() - began < 8


def test_long_output_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    script = "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last"
    ended = run_shell(tmp_path, script)
    assert ended.output.startswith("first\nx")
    assert ended.output.endswith("x\nlast\n")
    assert ended.cut == 3000000 + 12 - own.KEPT_BYTES
    assert f"[{ended.cut} bytes are left out]" in ended.output
    assert (tmp_path / "log").stat().st_size == 3000012


def test_logins_and_carriage_returns_are_not_kept(tmp_path: Path) -> None:
    ended = run_shell(tmp_path, "printf 'at 1\\rat 2\\r\\nhttps://me:secret@host/x\\n'")
    assert ended.output == "at 1\nat 2\nhttps://***@host/x\n"


def test_nodes_and_ranks_leave_a_document_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("PMIX_RANK", "0")
    said = 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, ${MASTER_ADDR:+met}"'
    found = run_checks(
        tmp_path,
        shell("stack.node", "nodes", 'echo "$HPCSTACK_CHECK$SLURM_STEP_ID$PMIX_RANK"'),
        shell("stack.ranks", "ranks", said),
        shell("stack.mpi", "mpi", "true"),
        shell("stack.gpu", "nodes", "true", needs=["gpu"]),
        shell("stack.two", "ranks", "true", min_nodes=2),
    )
    assert found["own-stack.node-0.json"]["output"] == "stack.node\n"
    outputs = [found[f"own-stack.ranks-{rank}.json"]["output"] for rank in (0, 1)]
    assert outputs == ["0 of 2, 0 of 2, met\n", "1 of 2, 1 of 2, met\n"]
    assert not [name for name in found if "mpi" in name], "it has a step of its own"
    assert found["own-stack.gpu-0.json"]["skip"] == "it needs a GPU, and the node has none"
    assert found["own-stack.two-1.json"]["skip"] == "it needs 2 nodes, and this run has 1"
    assert not any(one["failed"] for one in found.values())
    assert ":: DONE stack.ranks " in capsys.readouterr().out


def test_a_rank_that_fails_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "GRACE_S", 0.5)
    script = 'test "$RANK" = 0 && sleep 60; echo bad; exit 7'
    began = time.monotonic()
    found = run_checks(tmp_path, shell("stack.step", "ranks", script), ranks=3)
    assert time.monotonic() - began < 20
    assert found["own-stack.step-1.json"]["status"] == 7
    assert found["own-stack.step-0.json"]["ending"] == own.AFTER_ANOTHER
    assert found["own-stack.step-2.json"]["output"] == "bad\n"


class OneOfTwo(Agent):
    """The agent of the node NUMBER of two."""

    def __init__(self, request: Request, number: int) -> None:
        self.number = number
        super().__init__(request)
        self.host = f"node{number + 1}"
        self.inventory = {"gpus": 0, "ports": 0}

    @property
    def node(self) -> int:
        return self.number


def test_two_nodes_agree_where_the_ranks_meet_however_late_one_is(tmp_path: Path) -> None:
    said = 'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"'
    runs = (
        {"time_limit": 20, **shell("stack.slow", "nodes", "true")},
        {"time_limit": 20, **shell("stack.ranks", "ranks", said)},
        {"time_limit": 20, **shell("stack.bad", "ranks", 'test "$RANK" != 3 || exit 9')},
    )
    request = Request(str(tmp_path), nodes=2, ranks=2, own=runs)
    write_request(request)
    agents = [OneOfTwo(request, number) for number in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        futures = []
        for agent in agents:
            futures.append(pool.submit(OwnChecks(agent).run_all))
            time.sleep(1.0)  # the second node comes late
        for future in futures:
            future.result(60)
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("own-*.json")}
    outputs = [found[f"own-stack.ranks-{rank}.json"]["output"] for rank in range(4)]
    assert [line.split(" at ")[0] for line in outputs] == [f"{rank} of 4" for rank in range(4)]
    assert len({line.split(" at ")[1] for line in outputs}) == 1
    assert found["own-stack.bad-3.json"]["status"] == 9
    assert found["own-stack.bad-3.json"]["where"] == "node2:3"


def test_no_room_for_one_check_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = own.run_command

    def full(argv: tuple[str, ...], log: str, *more: Any, **options: Any) -> own.Ended:
        if "stack.first" in log:
            raise OSError(28, "No space left on device")
        return real(argv, log, *more, **options)

    monkeypatch.setattr(own, "run_command", full)
    found = run_checks(
        tmp_path, shell("stack.first", "nodes", "true"), shell("stack.next", "nodes", "true")
    )
    assert list(found) == ["own-stack.next-0.json"]


def test_a_rank_of_mpi_leaves_a_document_and_ends_with_its_status(tmp_path: Path) -> None:
    run = {"time_limit": 20, **shell("stack.pi", "mpi", "echo $HPCSTACK_CHECK; exit 4")}
    write_request(Request(str(tmp_path), own=(run,)))
    environment = {**os.environ, "SLURM_PROCID": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "hpcstack_smoke.own", str(tmp_path), "stack.pi"],
        env=environment,
        check=False,
    )
    document = json.loads((tmp_path / "own-stack.pi-3.json").read_text())
    assert done.returncode == document["status"] == 4
    assert (document["rank"], document["output"]) == (3, "stack.pi\n")
