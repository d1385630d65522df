"""Put a running batch job back into the queue, so that it starts again without some of its nodes.

Tested in tests/unit/diagnose/test_blame.py and tests/integration/test_requeue.py.
"""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, SlurmError
from hpcstack.slurm.client import Client
from hpcstack.slurm.gpus import count_job_gpus
from hpcstack.slurm.job_id import parse_job_id
from hpcstack.slurm.nodelist import expand_nodelist

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcstack.core.process import Runner

TRIES = 20  # to tell Slurm the nodes, half a second apart: the job is busy being ended


@dataclass(frozen=True)
class Requeueable:
    """A running batch job: its number, its NODES, and those that it must not or must have."""

    job: str
    nodes: tuple[str, ...]
    excluded: str = ""
    required: str = ""
    partition: str = ""
    gpus: int = 0  # that it has on each node


def find_requeueable(job: str, runner: Runner) -> Requeueable:
    """Return JOB. Raise InputError where it is not running, or cannot start again."""
    client = Client(runner)
    records = client.query_records(job) if parse_job_id(job) else None
    named = {record.name: record.fields for record in records or ()}
    fields = named.get(job)
    # A heterogeneous job is put back as a whole, by the number of its first part.
    parts = [record.fields for record in records or () if record.fields.get("HetJobId") == job]
    if fields is None and parts:
        fields = next((part for part in parts if part.get("JobId") == job), None)
    if fields is None:
        tasks = f": name a task of the array, {next(iter(named))}" if named else ""
        raise InputError(f"Slurm knows no job {job!r}{tasks}", "squeue --me lists yours")
    state = fields.get("JobState", "unknown")
    if state != "RUNNING":
        raise InputError(
            f"job {job} is {state}: only a running job can start again without a node",
            f"hpcstack explain {job}",
            page="start-despite-a-bad-node",
        )
    if fields.get("BatchFlag") == "0" or fields.get("Requeue") == "0":
        raise InputError(
            f"job {job} cannot start again: it is no batch job, or was submitted with --no-requeue",
            "hpcstack launch --batch --requeue-without",
            page="start-despite-a-bad-node",
        )
    return Requeueable(
        job=job,
        nodes=expand_nodelist(fields.get("NodeList", "")),
        excluded=fields.get("ExcNodeList", ""),
        required=fields.get("ReqNodeList", ""),
        partition=fields.get("Partition", ""),
        gpus=count_job_gpus(fields) or 0,
    )


@contextlib.contextmanager
def ignoring_the_end() -> Iterator[None]:
    """Ignore SIGTERM inside. A job may requeue itself, and Slurm then ends what runs in it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def requeue_without(job: Requeueable, nodes: Sequence[str], runner: Runner) -> None:
    """Requeue JOB and exclude NODES, besides what it excludes already.

    Slurm takes other nodes for a pending job only, and lets a requeued one start after two minutes
    at the earliest. So it is requeued first, and told then. Raise InputError where the job asks for
    one of NODES by name, and SlurmError where Slurm refuses.
    """
    client = Client(runner)
    required = set(expand_nodelist(job.required))
    asked_for = sorted(required.intersection(nodes))
    if asked_for:
        raise InputError(
            f"job {job.job} asks for {', '.join(asked_for)} by name (-w): it cannot start without",
            "submit it again without -w",
            page="start-despite-a-bad-node",
        )
    refusal = client.requeue(job.job)
    if refusal:
        raise SlurmError(f"scontrol requeue {job.job}: {refusal}", "ask your administrators")
    excluded = ",".join(filter(None, (job.excluded, *nodes)))
    for _ in range(TRIES):
        refusal = client.exclude_nodes(job.job, excluded)
        if not refusal:
            return
        time.sleep(0.5)
    raise SlurmError(
        f"job {job.job} is requeued, but Slurm does not exclude {excluded}: {refusal}",
        f"scontrol update JobId={job.job} ExcNodeList={excluded}",
        page="start-despite-a-bad-node",
    )
