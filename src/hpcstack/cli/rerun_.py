"""`hpcstack rerun`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_rerun.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option, say


@click.command("rerun")
@click.argument("job", metavar="JOB")
@click.option(
    "--tasks",
    default="",
    metavar="TASKS",
    help="Submit these tasks of the array, such as 3,7-9, however they ended.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be submitted.")
@json_option
@click.pass_obj
def command(session: Session, job: str, tasks: str, dry_run: bool, as_json: bool) -> None:
    """Submit again what failed of a batch job: of an array, its failed tasks.

    It runs the same script, in the same image, with the same options. Tasks that were cancelled or
    reached their time limit count as failed. Exit code 1: nothing is known to have failed.
    """
    from hpcstack.launch.rerun import plan_rerun, submit_again
    from hpcstack.slurm.array import join_tasks

    found = plan_rerun(job, tasks, session.runner)
    document = {
        "again": found.launch.job_or_array,
        "tasks": list(found.tasks),
        "unknown": list(found.unknown),
        "submitted": not dry_run,
    }
    lines = [f"task {task}: {state or 'nobody knows'}" for task, state in found.states.items()]
    if found.unknown:
        say(
            f"NOTE: nobody knows how tasks {join_tasks(found.unknown)} ended; they are not submitted: "
            "--tasks names them"
        )
    if dry_run:
        lines.append(f"would be submitted: sbatch {' '.join(found.options)} {found.script}")
        answer(document, as_json, lambda: "\n".join(lines))
        return
    for line in lines:
        say(line)
    new, folder, output = submit_again(found, session.runner)
    say(f"it writes to {output}: hpcstack logs {new}")
    answer({**document, "job": new, "folder": str(folder), "output": output}, as_json, lambda: new)
