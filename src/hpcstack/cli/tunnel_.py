"""`hpcstack tunnel`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pages_of_jobs.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option, say, show_progress


@click.command("tunnel")
@click.argument("job", default="", metavar="[JOB]")
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Also listen on this port of this machine: for a browser that runs here.",
)
@json_option
@click.pass_obj
def command(session: Session, job: str, port: int, as_json: bool) -> None:
    """Reach JupyterLab or TensorBoard of a job, and print its address for a browser.

    JOB is by default your newest launch of one. It is waited for. The tunnel stays open until Ctrl-C, or
    until the job ends; Ctrl-C does not end the job.

    `hpcstack jupyter` and `hpcstack tensorboard` print the line with which your own machine starts
    it.
    """
    from hpcstack.launch.tunnel import (
        OpenPage,
        find_page_job,
        find_socket,
        hold_tunnel,
        wait_for_rank,
    )

    asked = find_page_job(job)
    with show_progress("waiting") as progress:
        rank = wait_for_rank(asked, session.runner, progress, for_reader=True)
    asked = find_page_job(job)  # its step is known now
    name = f"{asked.job}.{asked.step}" if asked.step else asked.job
    proxy = [*session.command_on(""), "enter", "--ssh", name, "--rank", rank.number]

    def say_open(page: OpenPage) -> None:
        say(f"{page.name} of job {asked.job} on {rank.node}; Ctrl-C closes the tunnel")
        document = {"job": asked.job, "url": page.address, "socket": str(find_socket(asked.job))}
        answer(document, as_json, lambda: page.address)

    try:
        runs = hold_tunnel(asked, rank, proxy, port, session.runner, say, say_open)
    except KeyboardInterrupt:
        say(f"the tunnel is closed; job {asked.job} still runs")
        raise click.exceptions.Exit(0) from None
    say(f"job {asked.job} {'still runs: type the same again' if runs else 'has ended'}")
    raise click.exceptions.Exit(1 if runs else 0)
