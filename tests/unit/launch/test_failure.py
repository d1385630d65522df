"""How a step ended, read out of what it said: by Python, and by awk in job scripts, which must
agree.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcstack.launch.script import render_failure_reader
from support.log_reading import find_failure

TRACE = """Traceback (most recent call last):
  File "/home/me/train.py", line 17, in <module>
    step(batch)
  File "/usr/local/lib/python3.12/dist-packages/torch/nn/modules/module.py", line 1740, in _call_impl
    return forward_call(*args)
ValueError: bad sample 17
"""
TORCHRUN = """Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 33, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
OTHER = TRACE.replace(
    "ValueError: bad sample 17", "RuntimeError: Connection closed by peer"
).replace("17, in", "9, in")


def rank(number: int, host: str, status: int, at: float, again: int = 0) -> str:
    return f"hpcstack: rank {number} on {host} ended with {status} [{again} {at:.9f}]\n"


def ranked(number: int, text: str) -> str:
    return "".join(f"[rank{number}]: {line}\n" for line in text.splitlines())


def tasks(number: int, text: str) -> str:
    return "".join(f"{number:2}: {line}\n" for line in text.splitlines())


CASES = {
    "nothing": ("", 0, 0, ""),
    "no word": ("hello\n", 9, 9, "it failed"),
    "one rank": (TRACE + rank(1, "node1", 1, 10.5), 143, 1,
                 "rank 1 on node1 failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "the earlier moment counts": (rank(2, "node2", 1, 20.25) + rank(0, "node1", 3, 20.125), 143, 3, "rank 0 on node1 failed first"),
    "a rank's own traceback": (ranked(0, OTHER) + ranked(1, TRACE) + rank(1, "b", 1, 1.0) + rank(0, "a", 1, 1.5), 1, 1,
                               "rank 1 on b failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "interrupted, then something else": (
        TRACE.replace("ValueError: bad sample 17", "KeyboardInterrupt") * 2 + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + OTHER + TRACE.replace("ValueError: bad sample 17", "KeyboardInterrupt") + rank(2, "b", 1, 1.0), 130, 1,
        "rank 2 on b failed first: RuntimeError: Connection closed by peer (/home/me/train.py, line 9)"),
    "killed": (ranked(0, OTHER) + rank(1, "b", 137, 1.0) + rank(0, "a", 1, 1.5), 137, 137, "rank 1 on b failed first: killed by SIGKILL"),
    "started anew": (rank(1, "a", 9, 1.0) + rank(0, "b", 7, 5.0, 1), 1, 7, "rank 0 on b failed first"),
    "srun alone": ("srun: error: node2: task 3: Exited with exit code 3\nsrun: error: node1: task 0: Terminated\n", 143, 3,
                   "task 3 on node2 failed first"),
    "srun, several": ("srun: error: node2: tasks 2-3: Exited with exit code 2\n", 2, 2, "task 2 on node2 failed first"),
    "srun's own failure": ("srun: error: node2: task 3: Exited with exit code 3\n", 125, 125, "it failed"),
    "launchers are echoes": (TRACE + TORCHRUN, 1, 1, "ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "cancelled": ("slurmstepd: error: *** STEP 5.0 ON node1 CANCELLED AT 2026-11-22T06:00:00 ***\n", 143, 143, "it was cancelled"),
    "time": ("slurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026-11-22T06:00:00 DUE TO TIME LIMIT ***\n", 143, 143,
             "the time limit was reached"),
    "time, then what ends of it": (
        "slurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026-11-22T06:00:00 DUE TO TIME LIMIT ***\nsrun: error: n: task 0: Exited with exit code 2\n",
        2, 143, "the time limit was reached"),
    "a failure, then what is cancelled of it": (
        "srun: error: n: task 1: Exited with exit code 3\nslurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026-11-22T06:00:00 ***\n", 143, 3,
        "task 1 on n failed first"),
    "time, said after what ended of it": (
        "srun: error: n2: task 1: Exited with exit code 143\nTerminated\n"
        "slurmstepd-n1: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-22T06:00:00 DUE TO TIME LIMIT ***\n", 143, 143,
        "the time limit was reached"),
    "cancelled, said after what ended of it": (
        "srun: error: n2: task 1: Exited with exit code 143\nslurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026-11-22T06:00:00 ***\n",
        143, 143, "it was cancelled"),
    "a task that was killed, and what is cancelled of it": (
        "srun: error: n2: task 1: Exited with exit code 137\nslurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026-11-22T06:00:00 ***\n",
        137, 137, "task 1 on n2 failed first: killed by SIGKILL"),
    "node": ("srun: error: Node failure on node2\nslurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026 DUE TO NODE FAILURE ***\n", 137, 137, "a node failed"),
    "labels and bars": ("0: 10%\r 20%\r" + "".join(f"1: {line}\n" for line in TRACE.splitlines()) + rank(1, "a", 1, 1.0), 1, 1,
                        "rank 1 on a failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "after a progress bar": (
        "\r 45%|#### | 43.1it/s]" + rank(3, "n1", 137, 1.0) + "srun: error: n2: tasks 0-1: Exited with exit code 1\n", 1, 137,
        "rank 3 on n1 failed first: killed by SIGKILL"),
    "told to end, and ended with a status of its own": (
        "slurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026 DUE TO TIME LIMIT ***\n" + rank(3, "n1", 1, 1.0), 1, 143,
        "the time limit was reached"),
    "a watchdog that went on": ("hpcstack: silent for 60 s: the ranks are asked what they do\n" + rank(1, "a", 9, 1.0), 9, 9,
                                "rank 1 on a failed first"),
    "a watchdog": ("hpcstack: nothing was written for 60 s: what\n" + rank(1, "a", 9, 1.0), 124, 124, "nothing was written for 60 s"),
    "a program's own words": ("my order was CANCELLED AT noon\n" + rank(0, "a", 2, 1.0), 2, 2,
                            "rank 0 on a failed first; the last line before: my order was CANCELLED AT noon"),
    "no fraction": ("hpcstack: rank 0 on a ended with 5 [0 17.N]\nhpcstack: rank 1 on a ended with 6 [0 1.2.3]\n", 5, 5,
                    "rank 0 on a failed first"),
    "no traceback": ("ValueError: said only\n" + rank(0, "a", 1, 1.0), 1, 1, "rank 0 on a failed first"),
    "a wrong program": ('  File "/x/t.py", line 3\n    foo(\n       ^\nSyntaxError: \'(\' was never closed\n' + rank(0, "a", 1, 1.0), 1, 1,
                        "rank 0 on a failed first: SyntaxError: '(' was never closed (/x/t.py, line 3)"),
    "a program that is not there": (
        "python3: can't open file '/x/t.py': [Errno 2] No such file or directory\n" + rank(0, "a", 2, 1.0), 2, 2,
        "rank 0 on a failed first: python3: can't open file '/x/t.py': [Errno 2] No such file or directory"),
    "one that may not be run": ("env: 'x': Permission denied\n" + rank(0, "a", 126, 1.0), 126, 126,
                                "rank 0 on a failed first: env: 'x': Permission denied"),
    "a word of a shell that is no cause": ("sh: 1: nvidia-smi: not found\n" + rank(0, "a", 1, 1.0), 1, 1, "rank 0 on a failed first"),
    "Pyxis refuses": (
        "slurmstepd-node1: error: pyxis: couldn't start container\nslurmstepd: error: pyxis: --container-mounts: source path does not exist: /x\n"
        "srun: error: n1: task 0: Exited with exit code 1\n", 1, 1,
        "task 0 on n1 failed first: --container-mounts: source path does not exist: /x"),
    "what a launcher says of it": (rank(1, "a", 3, 1.0) + TRACE, 1, 3, "rank 1 on a failed first"),
    "an error of logging": (
        "--- Logging error ---\n" + OTHER + "Message: 'x'\n" + TRACE + rank(1, "a", 1, 1.0), 1, 1,
        "rank 1 on a failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "an exception of any name": (
        'Traceback (most recent call last):\n  File "/x/t.py", line 3, in <module>\n    raise BadData("row 17")\nBadData: row 17\n'
        + rank(0, "a", 1, 1.0), 1, 1, "rank 0 on a failed first: BadData: row 17 (/x/t.py, line 3)"),
    "one of another module, without a text": (
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/x/t.py", line 3, in <module>\n[rank2]:     raise x.Bad\n[rank2]: x.Bad\n'
        "a word of another rank\n" + rank(2, "a", 1, 1.0), 1, 1, "rank 2 on a failed first: x.Bad (/x/t.py, line 3)"),
    "wrong options": ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --zzz\n" + rank(1, "a", 2, 1.0), 2, 2,
                      "rank 1 on a failed first: t.py: error: unrecognized arguments: --zzz"),
    "sys.exit of a text": (
        "loading\nthe data is bad\n\n[W1125 02:13:24.3 socket.cpp:207] [c10d] The hostname cannot be retrieved\n" + rank(1, "a", 1, 1.0)
        + "RuntimeError: Connection closed\n", 1, 1, "rank 1 on a failed first; the last line before: the data is bad"),
    "warnings are no last words": ("x.py:3: UserWarning: deprecated\n 50%|####| 3/6 [00:01, 2it/s]\n" + rank(1, "a", 3, 1.0), 3, 3,
                                   "rank 1 on a failed first"),
    "nor is what Slurm's programs say": ("srun: job 7 has been allocated resources\n" + rank(1, "a", 3, 1.0), 3, 3,
                                         "rank 1 on a failed first"),
    "a module that is not there": ("/usr/bin/python3: No module named wrong\n" + rank(0, "a", 1, 1.0), 1, 1,
                                   "rank 0 on a failed first: /usr/bin/python3: No module named wrong"),
    "MPI_Abort": (
        "-----\nMPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 7.\n-----\n"
        "slurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026-11-22T06:00:00 ***\n", 143, 143,
        "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD"),
    "MPICH's": ("Abort(3) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1\n"
                + rank(1, "a", 137, 1.0), 137, 137, "rank 1 on a failed first: Abort(3) on node 1 (rank 1 in comm 0): "
                "application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1"),
    "the memory limit": (rank(1, "a", 137, 1.0) + "slurmstepd-n2: error: Detected 1 oom_kill event in StepId=7.0. Some of the step "
                         "tasks have been OOM Killed.\n", 137, 137, "rank 1 on a failed first: killed by SIGKILL: the job's memory limit was reached"),
    "lines of a terminal": (TRACE.replace("\n", "\r\n") + rank(0, "a", 1, 1.0), 1, 1,
                            "rank 0 on a failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "preempted": ("slurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026-11-22T06:00:00 DUE TO PREEMPTION ***\n", 143, 143,
                  "it was preempted"),
    "last words before the first end count": (
        "its own\n" + rank(1, "b", 1, 2.0) + "an echo\n" + rank(0, "a", 1, 1.0), 1, 1,
        "rank 0 on a failed first; the last line before: its own"),
    "a task that failed, and those that Slurm ends for it": (
        rank(1, "node2", 3, 1.0) + "srun: error: node2: task 1: Exited with exit code 1\nsrun: Terminating StepId=99.0\n"
        "[2026-11-26T12:48:12.236] error: *** STEP 99.0 ON node1 CANCELLED AT 2026-11-26T12:48:12 DUE TO TASK FAILURE ***\n"
        "srun: error: node1: task 0: Terminated\nsrun: Force Terminated StepId=99.0\n", 1, 3, "rank 1 on node2 failed first"),
    "a task that was told to end from elsewhere, and those that Slurm ends for it": (
        "srun: error: node2: task 1: Exited with exit code 143\n"
        "[2026-11-26T12:48:12.236] error: *** STEP 99.0 ON node1 CANCELLED AT 2026-11-26T12:48:12 DUE TO TASK FAILURE ***\n",
        143, 143, "task 1 on node2 failed first: killed by SIGTERM"),
    "a task that Slurm killed, and those that it ends for it": (
        "srun: error: n1: task 3: Segmentation fault (core dumped)\n"
        "slurmstepd: error: *** STEP 9.0 ON n0 CANCELLED AT 2026-11-26T12:48:12 DUE TO TASK FAILURE ***\n"
        "srun: error: n0: tasks 0-1: Exited with exit code 143\n", 139, 139, "task 3 on n1 failed first: killed by SIGSEGV"),
    "the memory limit, behind a progress bar": (
        "\r 45%|#### | 43.1it/s]slurmstepd-n2: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks "
        "have been OOM Killed.\n" + rank(1, "a", 137, 1.0), 137, 137,
        "rank 1 on a failed first: killed by SIGKILL: the job's memory limit was reached"),
    "what slurmstepd says is nobody's last word": (
        "its own\nslurmstepd-n1: error: Unable to create TMPDIR [/x]: No such file or directory\n" + rank(1, "a", 1, 1.0), 1, 1,
        "rank 1 on a failed first; the last line before: its own"),
    "a cause counts behind the words": (
        "slurmstepd: error: *** STEP 5.0 ON n DUE TO TIME LIMIT CANCELLED AT 2026 ***\n", 143, 143, "it was cancelled"),
    "all is well": (TRACE + rank(0, "a", 1, 1.0), 0, 0, ""),
    "a message of several lines": (
        ranked(0, OTHER)
        + ranked(
            1,
            TRACE.replace(
                "bad sample 17",
                "Error(s) in loading:\n\tMissing key(s): a.b\nFor debugging consider x=1",
            ),
        ),
        1,
        1,
        "ValueError: Error(s) in loading: (/home/me/train.py, line 17)",
    ),
    "a launcher ends the others": (
        TRACE
        + "[2026-11-20 10:00:00,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 7\n",
        1,
        1,
        "ValueError: bad sample 17 (/home/me/train.py, line 17)",
    ),
    "its program went on": (
        TRACE + "step 7 loss 2.0\n" + "srun: error: n1: task 0: Bus error\n",
        135,
        135,
        "task 0 on n1 failed first: killed by SIGBUS",
    ),
    "MPI_Abort after an exception": (
        TRACE
        + "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n",
        1,
        1,
        "ValueError: bad sample 17 (/home/me/train.py, line 17)",
    ),
    "MPI_Abort after another one's": (
        OTHER + "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n",
        1,
        1,
        "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD",
    ),
    "a trap": (
        "srun: error: gpu04: task 2: Trace/breakpoint trap (core dumped)\n",
        133,
        133,
        "task 2 on gpu04 failed first: killed by SIGTRAP",
    ),
    "a signal of the user's": (
        "srun: error: gpu04: task 2: User defined signal 1\n",
        138,
        138,
        "task 2 on gpu04 failed first: killed by SIGUSR1",
    ),
    "a status that is no signal": (
        "bad config\nsrun: error: n1: task 0: Exited with exit code 255\n",
        255,
        255,
        "task 0 on n1 failed first; the last line before: bad config",
    ),
    "a rank with a status that is no signal": (
        rank(3, "n1", 255, 1.0),
        255,
        255,
        "rank 3 on n1 failed first",
    ),
    "who aborts says why": (
        "what():  negative volume in cell 12\nsrun: error: n1: task 0: Aborted (core dumped)\n",
        134,
        134,
        "task 0 on n1 failed first: killed by SIGABRT; the last line before: what():  negative volume in cell 12",
    ),
    "a rank of another task": (
        ranked(5, TRACE)
        + ranked(0, OTHER)
        + "srun: error: gpu01: task 0: Exited with exit code 1\nsrun: error: gpu02: task 1: Exited with exit code 1\n",
        1,
        1,
        "rank 5 failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)",
    ),
    "NCCL's own cause": (
        ranked(
            0,
            OTHER.replace(
                "RuntimeError: Connection closed by peer",
                "torch.distributed.DistBackendError: NCCL error: remote process exited",
            ),
        )
        + ranked(
            3,
            TRACE.replace(
                "ValueError: bad sample 17",
                "torch.distributed.DistBackendError: NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'",
            ),
        ),
        1,
        1,
        "torch.distributed.DistBackendError: NCCL error: unhandled cuda error, Cuda failure 2 'out of memory' (/home/me/train.py, line 17)",
    ),
    "what points above": (
        TRACE.replace(
            "ValueError: bad sample 17",
            "RuntimeError: Engine core initialization failed. See root cause above.",
        )
        + ranked(1, TRACE),
        1,
        1,
        "ValueError: bad sample 17 (/home/me/train.py, line 17)",
    ),
}  # fmt: skip

SRUN = "srun: error: gpu07: task 0: Exited with exit code 1\n"
VICTIM = TRACE.replace(
    "ValueError: bad sample 17",
    "torch.distributed.DistBackendError: NCCL error: remote process exited",
)
BAD = "task 0 on gpu07 failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"


def labelled(label: str, text: str) -> str:
    return "".join(f"{label}{line}\n" for line in text.splitlines())


LABELLED = {
    "torch": ("[rank3]: ", "[rank0]: "),
    "torchrun --tee": ("[default3]:", "[default0]:"),
    "mpirun": ("[1,3]<stderr>: ", "[1,0]<stderr>: "),
    "Ray": ("(train_fn pid=812, ip=10.0.0.7) ", "(train_fn pid=640) "),
    "kubectl": ("[pod/job-1/main] ", "[pod/job-0/main] "),
    "pdsh": ("gpu12: ", "gpu11: "),
    "times, and torch": ("2026-03-01T10:00:00.123Z [rank3]: ", "2026-03-01T10:00:01Z [rank0]: "),
    "srun, and torch": ("3: [rank3]: ", "0: [rank0]: "),
    "foreman, and torch": ("10:00:00 worker.1 | [rank3]: ", "10:00:00 worker.0 | [rank0]: "),
    "ts": ("Mar 01 10:00:00 [rank3]: ", "Mar 01 10:00:01 [rank0]: "),
}
for name, (first, second) in LABELLED.items():
    CASES[f"labels of {name}"] = (
        labelled(first, TRACE) + labelled(second, VICTIM) + SRUN,
        1,
        1,
        BAD,
    )
    CASES[f"labels of {name}, a victim first"] = (
        labelled(second, VICTIM) + labelled(first, TRACE) + SRUN,
        1,
        1,
        BAD,
    )
CASES |= {
    "colours": (TRACE.replace("ValueError", "\x1b[1;35mValueError\x1b[0m").replace('"/home', '\x1b[35m"/home') + VICTIM + SRUN, 1, 1, BAD),
    "a box of Rich's": (
        "╭──── Traceback (most recent call last) ────╮\n│ /home/me/train.py:17 in <module>          │\n│ ❱ 17 main()                               │\n"
        "│ /opt/lib/python3.12/x.py:4 in f           │\n╰───────────────────────────────────────────╯\nValueError: bad sample 17\n" + SRUN, 1, 1, BAD),
    "another one's log line in the middle": (TRACE.replace("    step(batch)\n", "    step(batch)\nINFO: step 41, loss 2.3\n") + SRUN, 1, 1, BAD),
    "one that was caught": (
        OTHER.replace("Connection closed by peer", "no answer") + "2026-03-01 10:00:06 | INFO | hub | downloaded\nstep 9000 loss 2.2\n" + TRACE + SRUN, 1, 1, BAD),
    "a chain": (
        TRACE + "\nDuring handling of the above exception, another exception occurred:\n\n" + OTHER.replace("Connection closed by peer", "more") + SRUN, 1, 1, BAD),
    "what Python cleans up": (TRACE + "Exception ignored in: <function f at 0x1>\n" + OTHER.replace("Connection closed by peer", "late") + SRUN, 1, 1, BAD),
    "what a rank writes as it ends": (
        TRACE + "[W1128 10:00:00.1 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group() was not called\nwandb: View run\n"
        "Exception in thread Thread-3 (watch):\n" + OTHER.replace("Connection closed by peer", "late") + SRUN, 1, 1, BAD),
    "an echo after a line of another": (TRACE + "step 12\n" + VICTIM + SRUN, 1, 1, BAD),
    "put back into the queue": (
        OTHER + "slurmstepd: error: *** JOB 77 ON gpu07 CANCELLED AT 2026-03-01T03:12:44 DUE TO PREEMPTION ***\n"
        "slurmstepd: error: *** JOB 77 ON gpu07 CANCELLED AT 2026-03-01T03:13:44 DUE TO JOB REQUEUE ***\n" + TRACE + SRUN, 1, 1, BAD),
    "faulthandler has the innermost first": (
        'Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f2 (most recent call first):\n  File "/d/ext.py", line 12 in kernel\n'
        '  File "/d/train.py", line 88 in <module>\nsrun: error: gpu07: task 0: Exited with exit code 139\n', 139, 139, "task 0 on gpu07 failed first: killed by SIGSEGV"),
    "what a program was started for": (
        'Traceback (most recent call last):\n  File "/usr/lib/python3/dist-packages/torch/utils/cpp_extension.py", line 2209, in _run_ninja_build\n'
        "    subprocess.run(\nsubprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n\n"
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        '  File "/d/train.py", line 30, in <module>\n    engine = deepspeed.initialize(model)\n'
        "RuntimeError: Error building extension 'cpu_adam'\nhpcstack: rank 0 on n1 ended with 1 [0 5.0]\n", 1, 1,
        "rank 0 on n1 failed first: RuntimeError: Error building extension 'cpu_adam' (/d/train.py, line 30)"),
    "an exception group": (
        '  + Exception Group Traceback (most recent call last):\n  |   File "/d/train.py", line 9, in main\n'
        '  |     async with asyncio.TaskGroup() as group:\n'
        '  |   File "/usr/lib/python3.12/asyncio/taskgroups.py", line 71, in __aexit__\n'
        "  |     return await self._aexit(et, exc)\n  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)\n"
        '  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File "/d/load.py", line 4, in load\n'
        "    |     raise RuntimeError(\"x: Connection closed by peer\")\n    | RuntimeError: x: Connection closed by peer\n"
        '    +---------------- 2 ----------------\n    | Traceback (most recent call last):\n    |   File "/d/load.py", line 5, in load\n'
        "    |     raise KeyError(\"shard\")\n    | KeyError: 'shard'\n    +------------------------------------\n"
        "hpcstack: rank 2 on n1 ended with 1 [0 5.0]\n", 1, 1,
        "rank 2 on n1 failed first: KeyError: 'shard' (/d/load.py, line 5)"),
    "an exception group of no traces": (
        "[rank1]:   + Exception Group Traceback (most recent call last):\n[rank1]:   |   File \"/d/t.py\", line 3, in <module>\n"
        "[rank1]:   |     raise ExceptionGroup(\"several\", [ValueError(1), KeyError(2)])\n"
        "[rank1]:   | ExceptionGroup: several (2 sub-exceptions)\n[rank1]:   +-+---------------- 1 ----------------\n"
        "[rank1]:     | ValueError: 1\n[rank1]:     +---------------- 2 ----------------\n[rank1]:     | KeyError: 2\n"
        "[rank1]:     +------------------------------------\nhpcstack: rank 1 on n1 ended with 1 [0 5.0]\n", 1, 1,
        "rank 1 on n1 failed first: ValueError: 1 (/d/t.py, line 3)"),
    "one that left early": (
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"/d/t.py\", line 3, in <module>\n"
        "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:4711\n"
        "hpcstack: rank 3 on n1 had left before [0 4.9]\nhpcstack: rank 0 on n1 ended with 1 [0 5.0]\n", 1, 1,
        "rank 3 on n1 had ended before, without an error; then rank 0 on n1 failed: RuntimeError: "
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:4711 (/d/t.py, line 3)"),
    "one that was ended of a failure": (
        TRACE.replace("ValueError: bad sample 17", "RuntimeError: Connection closed by peer") +
        "hpcstack: rank 0 on n1 ended with 1 [0 5.0]\nhpcstack: rank 3 on n2 had left before [0 9.0]\n", 1, 1,
        "rank 0 on n1 failed first: RuntimeError: Connection closed by peer (/home/me/train.py, line 17)"),
    "one that left, and a failure of one's own": (
        TRACE + "hpcstack: rank 3 on n1 had left before [0 4.9]\nhpcstack: rank 0 on n1 ended with 1 [0 5.0]\n", 1, 1,
        "rank 0 on n1 failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    # -- labels of srun, whose victims and causes are told apart
    "srun -l, a victim first": (
        tasks(0, OTHER) + tasks(3, TRACE) + "srun: error: n02: task 3: Exited with exit code 1\n", 1, 1,
        "task 3 on n02 failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "srun -l, which names the victim": (
        tasks(0, OTHER) + tasks(3, TRACE) + "srun: error: n01: task 0: Exited with exit code 1\n", 1, 1,
        "task 3 failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "two at once, without labels": (
        'Traceback (most recent call last):\n  File "/d/run.py", line 30, in <module>\nTraceback (most recent call last):\n'
        '  File "/d/run.py", line 18, in fit\n    y = batch["labels"]\ntorch.distributed.DistBackendError: NCCL error in: x.cpp:1691, '
        "remote process exited\nKeyError: 'labels'\n", 1, 1, "KeyError: 'labels' (/d/run.py, line 18)"),
    # -- what srun says of a task, and of the step that it ends for it
    "out of memory, and the rest is ended": (
        "srun: error: c002: task 2: Out Of Memory\nsrun: Terminating StepId=191.0\n"
        "slurmstepd: error: *** STEP 191.0 ON c001 CANCELLED AT 2021-09-12T10:00:00 ***\nsrun: error: c001: tasks 0-1: Killed\n",
        137, 137, "task 2 on c002 failed first: killed by SIGKILL: the job's memory limit was reached"),
    "an older Slurm's memory limit": (
        "slurmstepd: error: Step 12.0 exceeded memory limit (9 > 8), being killed\n"
        "slurmstepd: error: *** STEP 12.0 ON c001 CANCELLED AT 2016-09-12T10:00:00 ***\n", 137, 137, "the job's memory limit was reached"),
    "srun ends the step before it says of which task": (
        TRACE + "slurmstepd: error: *** STEP 7.0 ON n01 CANCELLED AT 2025-05-05T05:05:05 ***\n"
        "srun: error: n02: task 3: Exited with exit code 1\n", 1, 1,
        "task 3 on n02 failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "cancelled, and ended with a status of its own": (
        "slurmstepd: error: *** STEP 7.0 ON n01 CANCELLED AT 2025-05-05T05:05:05 ***\n"
        "srun: error: n02: task 3: Exited with exit code 1\n", 1, 143, "it was cancelled"),
    "the last words of a task": (
        "loaded\nno data in /scratch/x\nsrun: error: n01: task 0: Exited with exit code 1\n", 1, 1,
        "task 0 on n01 failed first; the last line before: no data in /scratch/x"),
    # -- what was caught, and what came behind it
    "caught, then a signal": (
        TRACE + "step 10 loss 2.0\n/var/spool/slurmd/job8/slurm_script: line 12: 4242 Segmentation fault      (core dumped) python t.py\n",
        139, 139, "killed by SIGSEGV"),
    "caught, then the memory limit": (
        TRACE + "step 10 loss 2.0\nslurmstepd: error: Detected 1 oom_kill event in StepId=8.batch. Some of the step tasks have been OOM Killed.\n"
        "slurm_script: line 12: 4242 Killed                  python t.py\n", 137, 137, "killed by SIGKILL: the job's memory limit was reached"),
    "a worker of a data loader": (
        TRACE.replace("ValueError: bad sample 17", "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
                      '  File "/home/me/ds.py", line 27, in __getitem__\n    return self.labels[i]\nKeyError: 4711'), 1, 1,
        "KeyError: 4711 (/home/me/ds.py, line 27)"),
    "torchrun starts the workers again": (
        OTHER.replace("RuntimeError: Connection closed by peer", "OSError: Stale file handle") +
        "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. 2/3 attempts left; will restart worker group\nstep 4\n" + TRACE, 1, 1,
        "ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "a report in elastic's summary": (
        TORCHRUN + "====\nRoot Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n"
        + "  traceback : " + TRACE.replace("\n", "\n  ") + "\n====\n", 1, 1, "ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "the root cause of elastic's summary": (
        TORCHRUN + "Failures:\n[1]:\n  traceback : " + OTHER.replace("RuntimeError: Connection closed by peer", "OSError: gone").replace("\n", "\n  ")
        + "\nRoot Cause (first observed failure):\n[0]:\n  traceback : " + TRACE.replace("\n", "\n  ") + "\n", 1, 1,
        "ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "wrong options of a worker": (
        "usage: train.py [-h] --data DATA\ntrain.py: error: the following arguments are required: --data\n"
        "E0307 23:55:15.000000 999 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 2) local_rank: 0 (pid: 1000) of binary: python\n",
        1, 1, "train.py: error: the following arguments are required: --data"),
    "wrong options of a task": (
        "Usage: train.py [OPTIONS]\n\nError: No such option: --lr-rate\nsrun: error: n01: task 0: Exited with exit code 2\n", 2, 2,
        "task 0 on n01 failed first: Error: No such option: --lr-rate"),
    # -- a job that was put back into the queue without a word of it
    "preempted, and failed since": (
        "step 41\nslurmstepd: error: *** JOB 77 ON gpu07 CANCELLED AT 2026-03-01T03:12:44 DUE TO PREEMPTION ***\nloading\n"
        + TRACE + "srun: error: gpu09: task 0: Exited with exit code 1\n", 1, 1,
        "task 0 on gpu09 failed first: ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "preempted, and ended of that": (
        "slurmstepd: error: *** JOB 77 ON gpu07 CANCELLED AT 2026-03-01T03:12:44 DUE TO PREEMPTION ***\n"
        + TRACE.replace("ValueError: bad sample 17", "SystemExit: told to") + "srun: error: gpu09: task 0: Exited with exit code 1\n", 1, 143, "it was preempted"),
    # -- labels that nobody has a table of
    "logged, and then another one": (
        "".join(f"2026-11-28 10:00:01 ERROR {line}\n" for line in OTHER.replace("RuntimeError: Connection closed by peer", "OSError: retrying").splitlines())
        + "2026-11-28 10:00:02 INFO epoch 1\n" + TRACE, 1, 1, "ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "logged, beside one that was raised": (
        "".join(f"[2026-11-28 10:00:01] [ERROR] [rank 1] {line}\n" for line in OTHER.replace("RuntimeError: Connection closed by peer", "OSError: retrying").splitlines())
        + TRACE, 1, 1, "ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "hosts whose heads are interleaved": (
        "alpha: Traceback (most recent call last):\nbeta: Traceback (most recent call last):\n"
        'alpha:   File "/d/a.py", line 1, in <module>\nbeta:   File "/d/b.py", line 2, in <module>\n'
        "alpha: torch.distributed.DistBackendError: gone\nbeta: ValueError: real\n", 1, 1, "ValueError: real (/d/b.py, line 2)"),
    "labels of Intel MPI": (
        "".join(f"[0] {line}\n" for line in OTHER.splitlines()) + "".join(f"[13] {line}\n" for line in TRACE.splitlines()), 1, 1,
        "ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "labels with a time and a level": (
        "".join(f"[2025-05-05 10:00:0{n}] [ERROR] [rank 1] {line}\n" for n, line in enumerate(TRACE.splitlines())), 1, 1,
        "ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "labels of a log file of Kubernetes": (
        "".join(f"2025-06-01T10:00:0{n}.123456789Z stderr F {line}\n" for n, line in enumerate(TRACE.splitlines())), 1, 1,
        "ValueError: bad sample 17 (/home/me/train.py, line 17)"),
    "an old Pyxis": (
        "slurmstepd: error: pyxis: printing contents of log file ...\nslurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash\n" + SRUN, 1, 1,
        "task 0 on gpu07 failed first: enroot-switchroot: failed to execute: /bin/bash"),
}  # fmt: skip


def by_python(text: str, status: int) -> tuple[int, str, str]:
    """The status that counts, what is said, and the state in Slurm's word."""
    failure = find_failure(text)
    return *failure.end(status), failure.read_state(status).word


def by_awk(text: str, status: int, folder: Path, awk: str = "awk") -> tuple[int, str, str]:
    (folder / "status").write_text(f"{status}\n")
    done = subprocess.run(
        [awk, "-v", f"ended_in={folder / 'status'}", render_failure_reader()], input=text.encode(),
        capture_output=True, check=True,
    )  # fmt: skip
    *said, line = done.stdout.decode(errors="replace").splitlines()
    last, word = line.split()
    assert not done.stderr and len(said) == (last != "0"), done
    head, _, tail = said[0].rpartition("; exit ") if said else ("hpcstack: ", "", last)
    assert tail == last
    return int(last), head.removeprefix("hpcstack: "), word


@pytest.mark.parametrize("awk", ["gawk", "mawk"])
@pytest.mark.parametrize("name", CASES)
def test_the_first_failure_is_named(name: str, awk: str, tmp_path: Path) -> None:
    import shutil

    text, status, counts, said = CASES[name]
    found = by_python(text, status)
    assert found[:2] == (counts, said)
    program = awk if shutil.which(awk) else "awk"
    assert by_awk(text, status, tmp_path, program) == found


# On Slurm 25.05 and newer by default, with LogTimeFormat=omit, rfc5424_ms and thread_id
FORMS = ("[2026-11-26T12:48:15.248] ", "", "[2026-11-26T12:48:15.248+01:00] ",
         "[Nov 26 12:48:15.248123 1234567 slurmstepd-extern 0x7f0123456789] ")  # fmt: skip


OF_SLURMSTEPD = [name for name in CASES if "slurmstepd" in CASES[name][0]]
# Only a time in the form of ISO 8601 tells slurmstepd's words from those of the program itself.
WRITTEN = [
    (name, form)
    for name in OF_SLURMSTEPD
    for form in FORMS
    if "last word" not in name or form.startswith("[2026")
]


@pytest.mark.parametrize(("name", "form"), WRITTEN)
def test_what_newer_versions_of_slurm_write_says_the_same(
    name: str, form: str, tmp_path: Path
) -> None:
    text, status, counts, said = CASES[name]
    text = re.sub(r"slurmstepd\S*: ", form, text)
    assert "slurmstepd-n" not in text
    found = by_python(text, status)
    assert found[:2] == (counts, said)
    assert by_awk(text, status, tmp_path) == found


LINES = st.sampled_from(
    [line for text, *_ in CASES.values() for line in text.splitlines(keepends=True)]
    + ["--- Logging error ---\n", "step 1\n", "\n", "  File\n"]
)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(LINES, max_size=30), status=st.sampled_from([0, 1, 125, 143]))
def test_awk_and_python_agree(
    lines: list[str], status: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = "".join(lines)
    assert by_awk(text, status, tmp_path_factory.mktemp("awk")) == by_python(text, status)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("cancelled", "CANCELLED"), ("time", "TIMEOUT"), ("node", "NODE_FAIL"), ("preempted", "PREEMPTED"),
        ("the memory limit", "OUT_OF_MEMORY"), ("Pyxis refuses", "FAILED"), ("MPI_Abort", "FAILED"),
    ],
)  # fmt: skip
def test_an_end_has_slurms_word(name: str, word: str) -> None:
    text, status, *_ = CASES[name]
    assert by_python(text, status)[2] == word
