"""`hpcstack cancel`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_job_verbs.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option


@click.command("cancel")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@json_option
@click.pass_obj
def command(session: Session, jobs: tuple[str, ...], as_json: bool) -> None:
    """Cancel your own jobs.

    JOB is a job's number. NUMBER_TASK is one task of a job array.
    """
    from hpcstack.core.errors import InputError, SlurmError
    from hpcstack.launch.jobs import find_states
    from hpcstack.slurm.client import Client
    from hpcstack.slurm.job_id import read_job_id

    whole = {job: read_job_id(job).without_step for job in jobs}
    known = find_states(list(whole.values()), session.runner)
    unknown = [job for job in jobs if whole[job] not in known]
    if unknown:
        raise InputError(
            f"Slurm knows no job {', '.join(unknown)}; nothing was cancelled",
            "squeue --me lists yours",
        )

    ended = [job for job in jobs if known[whole[job]].has_ended]
    going = [job for job in jobs if job not in ended]
    if going:
        refusal = Client(session.runner).cancel(*going)
        if refusal:
            raise SlurmError(f"scancel refused: {refusal}", "squeue --me lists yours")

    lines = [f"cancelled: {', '.join(going)}"] if going else []
    lines += [f"{job} had already ended: {known[whole[job]]}" for job in ended]
    answer({"cancelled": going, "ended": ended}, as_json, lambda: "\n".join(lines))
