"""Jobs that serve a page for a browser: `hpcstack jupyter` and `hpcstack tensorboard`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pages_of_jobs.py.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.cli.interactive import parse_words, runs_under_slurm
from hpcstack.cli.launching import plan_request, prepare_launch, run_launch, say_notes, show_plan
from hpcstack.cli.session import Session, answer, say

if TYPE_CHECKING:
    import click


def serve_page(ctx: click.Context, page: str, command: tuple[str, ...]) -> None:
    """Submit a job that serves PAGE by COMMAND, and print how to reach it.

    Where there is no Slurm, COMMAND runs here, and says itself how it is reached.
    """
    from hpcstack.launch.page import PAGES
    from hpcstack.launch.request import Served
    from hpcstack.launch.tunnel import find_socket, make_tunnel_line

    session: Session = ctx.obj
    about = PAGES[page]
    own = list(ctx.meta["own"])
    as_json = "--json" in own
    is_job = runs_under_slurm(session, own)
    as_job = [f"--job-name={page}", "--batch", "-N", "1"] if is_job else []
    options = [word for word in own if word != "--json"]
    # What was typed comes later, and wins.
    words = [*as_job, *options, "--mode", "plain", "--", *command, *ctx.meta["arguments"]]
    # Without Slurm it serves as it does by default: on a port of this machine's loopback address.
    served = Served(page) if is_job else None
    request = replace(parse_words(session, words), serves=served, needs=(about.package,))
    launch = plan_request(session, request)
    if "--dry-run" in own:
        show_plan(launch, as_json, batch=is_job, every="--all" in own)
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
