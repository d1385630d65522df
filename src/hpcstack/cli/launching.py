"""What verbs do with a launch: plan it, show it, prepare it, run it.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_launching.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hpcstack.cli.session import Session, answer, say, show_progress
from hpcstack.core.errors import sanitize_for_terminal

if TYPE_CHECKING:
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.launch.run import PlannedLaunch


def plan_request(session: Session, request: LaunchRequest) -> PlannedLaunch:
    """Return REQUEST with its image and its plan, for this session's site."""
    from hpcstack.launch.plan_launch import plan_launch

    return plan_launch(request, lambda: session.catalog, session.site, session.runner)


def show_plan(launch: PlannedLaunch, as_json: bool) -> None:
    """Print what LAUNCH would run."""
    batch = launch.request.batch
    shown = launch.script if launch.request.all_stderr else launch.outline
    why = launch.plan.slurm_refuses
    if why:
        say(f"NOTE: Slurm would refuse it today: {why}")
    for warning in launch.plan.warnings:
        say(f"NOTE: {warning}")
    answer(launch.document(), as_json, lambda: shown(batch=batch))


def prepare_launch(launch: PlannedLaunch) -> None:
    """Make what LAUNCH adds to its image. Raise InputError where its image or command is missing."""
    from hpcstack.core.errors import InputError
    from hpcstack.launch.commands import advise

    missing = launch.missing()
    if missing:
        raise InputError(
            missing, advise(launch.command, Path.cwd()), page="bring-data-and-images-to-nodes"
        )

    if launch.added:
        with show_progress("adding") as progress:
            launch.prepare(progress)


def say_notes(launch: PlannedLaunch, *, quiet: bool) -> None:
    """Say which image is run and how, unless QUIET; then what its user may not expect."""
    if not quiet:
        for note in launch.notes():
            say(note)
    for warning in launch.warnings():
        say(f"NOTE: {warning}")


def run_launch(launch: PlannedLaunch, *, quiet: bool) -> NoReturn:
    """Run LAUNCH and wait for it; end with the command's status."""
    say_notes(launch, quiet=quiet)
    fit = launch.plan.fit
    if fit and fit.kind != "native" and not (quiet and fit.certain):
        say(f"driver and image: {fit}")

    status, summary = launch.run()
    if summary:
        click.echo(sanitize_for_terminal(summary), err=True)
    raise click.exceptions.Exit(status)
