"""GPUs and ports of nodes whose job hangs: what the shell of `hang` prints of a made-up node, and
what is made of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.launch.activity import parse_activity, summarise_activity
from hpcstack.launch.hang_report import report_hang

BUSY = "".join(f"0: hpcstack-gpu: n1, {n}, 100, 310.55, 1980, 51\n" for n in range(8))
DATA = Path(__file__).parents[2] / "data/flights"


def test_an_idle_gpu_among_busy_ones_is_named() -> None:
    idle = "".join(
        f"1: hpcstack-gpu: n2, {n}, {0 if n == 3 else 100}, {88.1 if n == 3 else 300}, 345, 35\n"
        for n in range(8)
    )
    said = summarise_activity(parse_activity(BUSY + idle))
    assert said[0] == "GPUs: 15 of 16 busy"
    assert said[1].startswith("idle while 15 GPUs work: 3 of n2 (88 W)")
    assert summarise_activity(parse_activity(BUSY)) == ["GPUs: 8 of 8 busy"]


def test_a_driver_that_does_not_answer_is_odd() -> None:
    text = (
        BUSY
        + "1: hpcstack-gpu: n2, failed: Unable to determine the device handle for GPU0000:1B:00.0\n"
    )
    assert summarise_activity(parse_activity(text))[0].startswith(
        "ODD: nvidia-smi on n2 failed: Unable to determine"
    )
    assert not report_hang(text).well
    assert not parse_activity("0: hpcstack-gpu: n1, 0, [N/A], [N/A], 345, 35\n").silent


def test_ports_that_move_nothing_and_one_with_errors() -> None:
    still = (
        "0: hpcstack-port: n1 mlx5_0/1 port_xmit_data 0 port_rcv_data 0 local_ack_timeout_err 5\n"
    )
    said = summarise_activity(parse_activity(still))
    assert said == [
        "ports: 0 of 1 move data, nobody sends",
        "errors within a second on mlx5_0/1 of n1: local_ack_timeout_err +5",
    ]
    said = summarise_activity(parse_activity(still.replace("xmit_data 0", "xmit_data 250000000")))
    assert said[0] == "ports: 1 of 1 move data, 1.0 GB/s in all"
    assert summarise_activity(parse_activity("0: hpcstack-port: n1 mlx5_0/1\n")) == [
        "ports: 0 of 1 move data, nobody sends"
    ]


SMI = "#!/bin/sh\nprintf '0, 100, 300.10, 1980, 50\\n1, 0, 80.00, 345, 33\\n'\n"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_shell_reads_gpus_ports_and_asks_for_flights(shell: str, tmp_path: Path) -> None:
    """A rank with a pipe of torch's recorder, played here: who reads it writes a file of a real
    recorder.
    """
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for name, value in (("counters/port_xmit_data", 5), ("hw_counters/packet_seq_err", 1)):
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(f"{value}\n")
    # Between the two readings the node goes on: the pause is where the counters move
    (tmp_path / "sleep").write_text(
        f"#!/bin/sh\necho 12 >{port}/counters/port_xmit_data\necho 3 "
        f">{port}/hw_counters/packet_seq_err\n"
    )
    (tmp_path / "sleep").chmod(0o755)
    job, pipe, file = f"88{os.getpid()}", tmp_path / "ask", tmp_path / "flight-"
    os.mkfifo(f"{pipe}3.pipe")
    environ = {**os.environ, "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "RANK": "3", "WORLD_SIZE": "4",
               "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(pipe), "TORCH_FR_DUMP_TEMP_FILE": str(file)}  # fmt: skip
    environ.pop("SLURMD_NODENAME", None)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environ)

    def dumps() -> None:
        with Path(f"{pipe}3.pipe").open("rb") as asked:
            if asked.read(1) == b"1":
                for rank in range(4):
                    Path(f"{file}{rank}").write_bytes((DATA / f"sleeps-{rank}").read_bytes())

    threading.Thread(target=dumps, daemon=True).start()
    try:
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/nvidia0").touch()
        env |= {"HPCSTACK_DEV": str(tmp_path / "dev")}
        env |= {"PATH": f"{tmp_path}:{env['PATH']}", "HPCSTACK_SYS": str(tmp_path / "sys")}
        argv = [shell, "-c", data.read_script("on-node/stacks.sh"), "stacks", job, "", "no-spy"]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60)
    finally:
        process.kill()
        process.wait()
    time.sleep(0.2)
    found = parse_activity(done.stdout)
    host = os.uname().nodename
    assert found.gpus[host, "1"] == (0.0, 80.0), done.stdout + done.stderr
    assert found.ports[host, "mlx5_0/1"] == {"port_xmit_data": 7, "packet_seq_err": 2}
    report = report_hang(done.stdout)
    assert report.document["flights"]["ranks"] == [0, 1, 2, 3]
    # the root stands before its victims
    assert report.lines[1].startswith(f"ROOT: rank 3 ({host}) has not come to all_reduce 4")
    json.dumps(report.document)


def test_a_rank_of_a_node_that_did_not_answer_is_unknown_and_not_gone(tmp_path: Path) -> None:
    for rank in (0, 1, 2):  # the fourth left no record
        (tmp_path / f"flight-{rank}").write_bytes((DATA / f"sleeps-{rank}").read_bytes())
    text = "".join(
        f"hpcstack: rank {rank} of 4 on n1 is process {rank + 1} of step 0, state S: python\n"
        for rank in (0, 1, 2)
    )
    text += f"hpcstack-flights: 5 {tmp_path}/flight-\n"
    for silent, kind, said in ((0, "absent", "is not there"), (1, "unknown", "has left no record")):
        (root,) = report_hang(text, silent).document["flights"]["roots"]
        assert (root["kind"], root["ranks"]) == (kind, [3])
        assert said in root["text"]


def test_older_files_of_another_run_are_not_this_ones(tmp_path: Path) -> None:
    (tmp_path / "flight-0").write_bytes((DATA / "sleeps-0").read_bytes())
    late = int(time.time()) + 100
    assert (
        report_hang(f"0: hpcstack-flights: {late} {tmp_path}/flight-\n").document["flights"] is None
    )
    assert report_hang(f"0: hpcstack-flights: 5 {tmp_path}/flight-\n").document["flights"][
        "ranks"
    ] == [0]
