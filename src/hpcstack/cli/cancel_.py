"""`hpcstack cancel`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option


@click.command("cancel")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@json_option
@click.pass_obj
def command(session: Session, jobs: tuple[str, ...], as_json: bool) -> None:
    """Cancel jobs of yours, by number; of an array also by NUMBER_TASK."""
    import re

    from hpcstack.errors import InputError, SlurmError

    for job in jobs:
        if not re.fullmatch(r"[0-9]+(_[0-9]+)?(\.[0-9]+)?", job):
            raise InputError(f"{job!r} is not the number of a job", "hpcstack jobs lists yours")
    done = session.runner.output(["scancel", "--verbose", *jobs])
    if done.status:
        raise SlurmError(f"scancel refused: {' '.join(done.tail[-2:])}", "hpcstack jobs lists yours")
    answer({"cancelled": list(jobs)}, as_json, lambda: f"cancelled: {', '.join(jobs)}")
