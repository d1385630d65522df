"""`hpcstack project`: a user's own packages on top of a stack.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_projects.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.interactive import Interactive, start_program
from hpcstack.cli.session import Session, answer, json_option, say, show_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.project.added import Added
    from hpcstack.project.lock_file import ProjectLock
    from hpcstack.store.artifact import Artifact


@click.group("project")
def command() -> None:
    """Put your own packages on top of a stack (project lock, build, shell).

    FOLDER has a pylock.toml, a uv.lock with its pyproject.toml, a requirements.txt, a
    pyproject.toml, or an environment.yml.
    """


def project_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add FOLDER and the options that choose image, extras and groups."""
    decorators = (
        click.argument("folder", metavar="[FOLDER]", default=".", type=click.Path(path_type=Path)),
        click.option(
            "-s",
            "--stack",
            default="",
            metavar="STACK",
            show_default="the loaded module's",
            help="The stack that it is for.",
        ),
        click.option(
            "--extra",
            "extras",
            multiple=True,
            metavar="NAME",
            help="Take these optional dependencies of pyproject.toml, too.",
        ),
        click.option(
            "--group",
            "groups",
            multiple=True,
            metavar="NAME",
            help="Take this dependency group of pyproject.toml, too.",
        ),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


@command.command("lock")
@project_options
@click.option("--upgrade", is_flag=True, help="Choose the newest versions that fit.")
@click.option("--check", is_flag=True, help="Only say whether the lock is current; exit 1 if not.")
@json_option
@click.pass_obj
def lock_(
    session: Session,
    folder: Path,
    stack: str,
    extras: tuple[str, ...],
    groups: tuple[str, ...],
    upgrade: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Choose a version of each package that the project in FOLDER needs besides the image's.

    The lock is pylock.STACK.toml in FOLDER. Keep it in git, so that others get the same packages.
    """
    from hpcstack.project.added import make_lock_file

    artifact, planned = _plan(session, folder, stack, extras, groups)
    lock = planned.lock
    if check:
        is_current = lock is not None
        said = "is current" if is_current else "is not there, or not current"
        document = {"path": str(planned.lock_path), "current": is_current}
        answer(document, as_json, lambda: f"{planned.lock_path} {said}")
        raise click.exceptions.Exit(0 if is_current else 1)

    if lock is None or upgrade:
        with show_progress("locking") as progress:
            lock = make_lock_file(
                planned, artifact, session.site, session.runner, progress, upgrade=upgrade
            )
    answer(_describe_lock(planned, lock), as_json, lambda: _render_lock(planned, lock))


@command.command("build")
@project_options
@json_option
@click.pass_obj
def build_(
    session: Session,
    folder: Path,
    stack: str,
    extras: tuple[str, ...],
    groups: tuple[str, ...],
    as_json: bool,
) -> None:
    """Install and pack what the project in FOLDER needs, before the first launch does it."""
    from hpcstack.project.added import make_added

    artifact, planned = _plan(session, folder, stack, extras, groups)
    with show_progress("adding") as progress:
        make_added(planned, artifact, session.site, session.runner, progress, os.environ)
    packed = planned.file.resolve()
    document = {
        "path": str(packed),
        "size": packed.stat().st_size,
        "lock": str(planned.lock_path),
        "stack": artifact.stack,
    }
    answer(
        document,
        as_json,
        lambda: f"{packed}\n  {document['size'] / 1e6:.0f} MB, on top of {artifact.stack}",
    )


@command.command(
    "shell",
    cls=Interactive,
    options_metavar="FOLDER [STACK] [OPTIONS OF launch] [-- ARGUMENTS...]",
)
@click.pass_context
def shell_(ctx: click.Context) -> None:
    """Open a shell in which the project in FOLDER can be used, on a compute node.

    It is `hpcstack shell --project FOLDER`.
    """
    own = ctx.meta["own"]
    folder = "."
    if own and not own[0].startswith("-") and Path(own[0]).is_dir():
        folder, *own = own
    ctx.meta["own"] = [*own, "--project", folder]
    start_program(ctx, "bash")


def _plan(
    session: Session, folder: Path, stack: str, extras: tuple[str, ...], groups: tuple[str, ...]
) -> tuple[Artifact, Added]:
    """Return the image that STACK means, and what the project in FOLDER adds to it."""
    from hpcstack.launch.image import choose_image
    from hpcstack.project.added import plan_added

    chosen, layer = choose_image(stack, lambda: session.catalog, session.site, os.environ, "")
    say(f"{chosen.artifact.stack} ({chosen.why})")
    planned = plan_added(chosen.artifact, folder, layer, os.environ, extras, groups)
    return chosen.artifact, planned


def _describe_lock(planned: Added, lock: ProjectLock) -> dict[str, Any]:
    return {
        "path": str(planned.lock_path),
        "packages": {one["name"]: one.get("version", "") for one in lock.packages},
        "of_the_image": lock.about["of-the-image"],
        "instead": lock.about["instead"],
    }


def _render_lock(planned: Added, lock: ProjectLock) -> str:
    about = lock.about
    lines = [
        str(planned.lock_path),
        f"  to install: {len(lock.packages)}; of the image: {len(about['of-the-image'])}",
    ]
    lines += [f"  {name}: the image's {said}" for name, said in about["instead"].items()]
    return "\n".join(lines)
