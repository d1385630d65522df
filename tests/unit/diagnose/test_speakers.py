"""Who says an unknown line: by its form, and what the system's own words in it mean."""

from __future__ import annotations

import re

import pytest

from hpcstack.cli import VERBS
from hpcstack.diagnose.examine_log import examine_text
from hpcstack.diagnose.signatures import read_signatures
from hpcstack.diagnose.speakers import (
    MOST_CLUES,
    find_clues,
    make_clue,
    read_reasons,
    read_speakers,
)
from support.clock import processor_seconds

# a line of each form, its speaker, and how its meaning begins
LINES = [
    (
        "n1:12:34 [0] transport/net_ib.cc:99 NCCL WARN strange: Connection timed out",
        "nccl-infiniband",
        "no answer came in time",
    ),
    ("n1:12:34 [0] misc/socket.cc:9 NCCL WARN odd: Broken pipe", "nccl-socket", "the program at"),
    ("n1:12:34 [0] bootstrap.cc:9 NCCL WARN odd", "nccl-bootstrap", ""),
    ("n1:12:34 [0] transport/nvls.cc:9 NCCL WARN odd", "nccl-nvls", ""),
    ("n1:12:34 [0] NCCL WARN NET/OFI odd", "nccl-ofi", ""),
    ("n1:12:34 [0] init.cc:9 NCCL WARN odd", "nccl", ""),
    ("[1.5] [n1:12:0]   ib_device.c:9    UCX  ERROR odd", "ucx-infiniband", ""),
    (
        "[1.5] [n1:12:0]   sock.c:9    UCX  ERROR odd: Connection refused",
        "ucx",
        "the other machine",
    ),
    ("libfabric:12:1700000000::cxi:ep_ctrl:f():9<warn> n1: odd", "libfabric-cxi", ""),
    ("libfabric:12:1700000000::efa:cq:f():9<warn> odd", "libfabric-efa", ""),
    ("libfabric:12:1700000000::verbs:cq:f():9<warn> odd", "libfabric", ""),
    ("MPICH ERROR [Rank 3] [job id 1.0] odd", "mpich", ""),
    ("[n1:12] *** An error occurred in MPI_Odd", "open-mpi", ""),
    ("slurmstepd: error: pyxis:     odd", "pyxis", ""),
    ("slurmstepd: error: odd", "slurm-step", ""),
    ("srun: error: odd", "slurm-commands", ""),
    ("slurmctld: error: Munge decode odd", "munge", ""),
    ("[2026-01-02T03:04:05.678] error: odd", "slurm-log", ""),
    ("FATAL:   odd: Permission denied", "apptainer", "this user may not"),
    ("[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1", "enroot", ""),
    ("nvidia-container-cli: odd error", "nvidia-container-cli", ""),
    ("[  1.5] NVRM: Xid (PCI:0000:01:00): 250, odd", "xid", ""),
    ("[  1.5] mlx5_core 0000:01:00.0: odd failed", "mlx5", ""),
    ("LustreError: 1:0:(odd.c:9:odd()) odd", "lustre", ""),
    ("[  1.5] nvme nvme0: odd error", "disk", ""),
    ("[  1.5] EDAC MC0: 1 UE odd", "machine-check", ""),
    ("[rank3]:[E1 ProcessGroupNCCL.cpp:9] odd", "torch-nccl", ""),
    ("odd.OddError: cudaErrorNoDevice", "cuda", "the process sees no GPU"),
    ("pkg.OddError: odd", "python-error", ""),
    # what reads alike and is another's
    ("torch.distributed.DistNetworkError: odd", "torch-rendezvous", ""),
    ("ERROR: No matching distribution found for odd", "python-packages", ""),
    ("ImportError: /x/odd.so: undefined symbol: _Zodd", "dynamic-loader", ""),
    ("Abort(1) on node 0 (rank 0 in comm 0): application called MPI_Abort(odd)", "mpich", ""),
    ("KeyError: 'll_odd'", "python-error", ""),
    ("RuntimeError: Failed to start worker", "python-error", ""),
    ("odd.cu(12): error: odd", "compiler", ""),
    ("modprobe: FATAL: Module odd not found", "kernel-modules", ""),
    (
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
        "cuda",
        "it cannot be done while",
    ),
    ("torch.OutOfMemoryError: CUDA out of memory.", "cuda", "the memory of the GPU"),
    ("OddError: NCCL communicator was aborted", "python-error", ""),
]


@pytest.mark.parametrize(("line", "speaker", "means"), LINES, ids=[row[0][:40] for row in LINES])
def test_a_line_is_known_by_its_form(line: str, speaker: str, means: str) -> None:
    clue = make_clue(line, 1)
    assert clue.speaker
    assert clue.speaker.id == speaker
    assert clue.means.startswith(means)


def test_every_speaker_says_what_it_is_for_and_where_that_is_written() -> None:
    assert len({one.id for one in read_speakers()}) == len(read_speakers())
    for one in read_speakers():
        assert one.who
        assert one.about
        assert one.next.endswith((".", "`"))
        assert one.source.startswith("https://")


@pytest.mark.parametrize(
    "line",
    [
        "train.py: error: the following arguments are required: --odd",
        "[ERROR] odd",  # NeMo-RL 1022: "said by Enroot"
        "[2026-01-02 03:04:05,678] [ERROR] [launch.py:434:odd] odd",
        "Error: could not find layer 3 of the model",
        "the sigkill_handler of Profile exists",
    ],
)
def test_what_anybody_may_say_is_nobodys(line: str) -> None:
    clue = make_clue(line, 1)
    assert (clue.speaker, clue.means) == (None, "")


def test_each_verb_that_is_named_is_one() -> None:
    texts = [one.next for one in read_speakers()]
    texts += [f"{one.cause} {one.remedy}" for one in read_signatures()]
    named = {verb for text in texts for verb in re.findall(r"`hpcstack ([a-z]+)", text)}
    assert "doctor" in named
    assert named - set(VERBS) == set()


def test_the_first_lines_that_read_like_an_error_are_shown() -> None:
    log = "\n".join(
        [
            "epoch 1 loss 0.5",
            "pkg.OddError: odd",
            "pkg.OddError: odd again",  # of the same speaker
            "libfabric:12:1::cxi:ep_ctrl:f():9<warn> failed oddly",
            "srun: error: odd",
            "[1.5] [n1:12:0]   sock.c:9    UCX  ERROR odd",
        ]
    )
    assert [
        (clue.number, clue.speaker and clue.speaker.id)
        for clue in find_clues(examine_text(log).suspects)
    ] == [
        (2, "python-error"),
        (4, "libfabric-cxi"),
        (5, "slurm-commands"),
    ]
    assert MOST_CLUES == 3


def test_a_warning_counts_where_there_is_no_error() -> None:
    warning = "W1 torch/_inductor/odd.py:9] warning: odd"
    assert [clue.line for clue in find_clues(examine_text(f"{warning}\n").suspects)] == [warning]
    assert [
        clue.number for clue in find_clues(examine_text(f"{warning}\nsrun: error: odd\n").suspects)
    ] == [2]


def test_of_a_log_without_errors_nothing_is_said() -> None:
    assert find_clues(examine_text("step 1 loss 0.5\nstep 2 loss 0.4\n").suspects) == []


def test_no_form_slows_down_on_a_hostile_line() -> None:
    texts = (
        "error: ",
        "NCCL WARN ",
        "net_ib",
        "x" * 60 + " ",
        "libfabric:1:",
        "a.b_",
        "::",
        "[[1]",
    )
    for text in texts:
        line = (text * 4096)[:4096]
        patterns = [one.pattern for one in read_speakers()]
        patterns += [one.words for one in read_reasons()]
        for pattern in patterns:
            began = processor_seconds()
            pattern.search(line)
            assert processor_seconds() - began < 0.05, (text, pattern.pattern)


def test_a_long_log_is_read_in_seconds() -> None:
    log = "step 1000 loss 2.7 error 0.1\n" * 300_000
    began = processor_seconds()
    find_clues(examine_text(log).suspects)
    assert processor_seconds() - began < 20
