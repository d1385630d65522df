"""Jobs that serve a page for a browser: `hpcstack jupyter` and `hpcstack tensorboard`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pages_of_jobs.py.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcstack.cli.interactive import request_program
from hpcstack.cli.launch_options import starts_by_srun
from hpcstack.cli.launching import plan_request, prepare_launch, run_launch, say_notes, show_plan
from hpcstack.cli.session import Session, answer, say

if TYPE_CHECKING:
    import click


def serve_page(
    ctx: click.Context,
    page: str,
    name: str,
    command: tuple[str, ...],
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Submit a job that serves PAGE by COMMAND, and print how to reach it.

    Where there is no Slurm, COMMAND runs here, and says itself how it is reached.
    """
    from hpcstack.launch.page import PAGES
    from hpcstack.launch.request import Served
    from hpcstack.launch.tunnel import find_socket, make_tunnel_line

    session: Session = ctx.obj
    about = PAGES[page]
    is_job = starts_by_srun(session, options["runtime"])
    if is_job:
        # What was typed comes later, and wins.
        extra = (f"--job-name={page}", *options["extra"])
        options = {**options, "batch": True, "extra": extra}
    # Without Slurm it serves as it does by default: on a port of this machine's loopback address.
    served = Served(page) if is_job else None
    asked = request_program(ctx, name, command, options)
    request = replace(asked, serves=served, needs=(about.package,))
    launch = plan_request(session, request)
    if request.only_shown:
        show_plan(launch, as_json)
        return

    if is_job:
        find_socket("1234567")  # raises here rather than when the job has waited
    prepare_launch(launch)
    if not is_job:
        run_launch(launch, quiet=False)

    done = launch.submit()
    say_notes(launch, quiet=False)
    say(f"job {done.job} is submitted; it writes to {done.output}")
    line = make_tunnel_line(
        done.job, about.port, [*session.command_on(""), "tunnel", done.job], os.environ
    )
    document = {
        "job": done.job,
        "folder": str(done.folder),
        "output": str(done.output),
        "socket": str(find_socket(done.job)),
        "tunnel": line,
    }
    text = [
        "On your own machine, type:",
        f"  {line}",
        f"It waits until {about.name} runs, and prints the address for your browser.",
        "",
        f"With a browser on this machine:  hpcstack tunnel {done.job} --port {about.port}",
        f"End the job:                     hpcstack cancel {done.job}",
    ]
    answer(document, as_json, lambda: "\n".join(text))
