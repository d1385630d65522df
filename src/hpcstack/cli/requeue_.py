"""`hpcstack requeue`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_requeue.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option


@click.command("requeue")
@click.argument("job", metavar="JOB")
@click.option(
    "--without",
    default="",
    metavar="NODES",
    help="Leave out these nodes, without asking which one is to blame.",
)
@click.option("--dry-run", is_flag=True, help="Only say which nodes would be left out.")
@json_option
@click.pass_obj
def command(session: Session, job: str, without: str, dry_run: bool, as_json: bool) -> None:
    """Start a running batch job again, without the nodes that its failure is blamed on.

    A node is blamed if its health check fails, if its rank stands out where the job hangs, or if the
    job's log has an error of a machine there. A program's own errors blame no node. Exit code 1: no
    node is to blame, and the job goes on.
    """
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.diagnose.blame import find_blamed, name_blamed
    from hpcstack.launch.requeue import find_requeueable, ignoring_the_end, requeue_without

    found = find_requeueable(job, session.runner)
    if without:
        blamed, why_not = name_blamed(without), f"{without} names no node"
    else:
        blamed, why_not = find_blamed(found, session.site, session.runner)
    if not blamed:
        raise AnswerIsNo(
            f"job {job} is not requeued: {why_not}",
            f"hpcstack explain {job}; hpcstack requeue {job} --without NODE",
            page="start-despite-a-bad-node",
        )
    done = "would be requeued" if dry_run else "is requeued"
    names = ", ".join(one.node for one in blamed)
    lines = [f"job {job} {done} without {names}"]
    lines += [f"  {one.node}: {one.why} ({one.by})" for one in blamed]
    document = {
        "job": job,
        "requeued": not dry_run,
        "without": [{"node": one.node, "by": one.by, "why": one.why} for one in blamed],
    }
    with ignoring_the_end():
        if not dry_run:
            requeue_without(found, [one.node for one in blamed], session.runner)
        answer(document, as_json, lambda: "\n".join(lines))
