"""`hpcstack project`: a user's own packages on top of a stack.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_projects.py.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.interactive import Interactive, start_program, takes_launch
from hpcstack.cli.session import (
    Session,
    answer,
    format_table,
    json_option,
    say,
    show_progress,
)
from hpcstack.core.errors import format_count
from hpcstack.core.sizes import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.launch.own_project import OwnProject
    from hpcstack.publish.project_packages import KeptPackages


@click.group("project")
def command() -> None:
    """Put your own packages on top of a stack (project lock, build, list).

    FOLDER has a pylock.toml, a uv.lock with its pyproject.toml, a pixi.lock with its manifest, a
    requirements.txt, a pyproject.toml, or an environment.yml.
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
            help="Stack that the project runs on.",
        ),
        click.option(
            "--extra",
            "extras",
            multiple=True,
            metavar="NAME",
            help="Include these optional dependencies of pyproject.toml. May be given several times.",
        ),
        click.option(
            "--group",
            "groups",
            multiple=True,
            metavar="NAME",
            help="Include this dependency group of pyproject.toml. May be given several times.",
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
    project = _open(session, folder, stack, extras, groups)
    if check:
        path = project.planned.lock_path
        said = "is current" if project.is_locked else "is not there, or not current"
        document = {"path": str(path), "current": project.is_locked}
        answer(document, as_json, lambda: f"{path} {said}")
        raise click.exceptions.Exit(0 if project.is_locked else 1)

    with show_progress("locking") as progress:
        locked = project.lock(progress, upgrade=upgrade)
    answer(locked, as_json, lambda: _render_lock(locked))


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
    project = _open(session, folder, stack, extras, groups)
    with show_progress("adding") as progress:
        built = project.build(progress)
    size = f"{built['size'] / 1e6:.0f} MB, on top of {built['stack']}"
    answer(built, as_json, lambda: f"{built['path']}\n  {size}")


@command.command(
    "shell",
    cls=Interactive,
    options_metavar="[FOLDER] [STACK] [OPTIONS OF launch] [-- ARGUMENTS...]",
)
@click.argument("folder", default="")
@takes_launch
@click.pass_context
def shell_(
    ctx: click.Context, /, folder: str, name: str, argv: tuple[str, ...], **options: Any
) -> None:
    """Open a shell in which the project in FOLDER can be used, on a compute node.

    It is `hpcstack shell --project FOLDER`.
    """
    if folder and not Path(folder).is_dir():  # it is left out, and the first word is the STACK
        folder, name = "", folder
    start_program(ctx, "bash", name, argv, {**options, "project": Path(folder or ".")})


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List what is kept for your projects: packed packages, and uv's caches.

    The last used comes first. `hpcstack project clear` removes what no job uses.
    """
    from hpcstack.publish.project_packages import list_packages_of_projects

    kept = list_packages_of_projects()
    total = show_bytes(sum(one.size for one in kept))
    document = [_make_document(one) for one in kept]
    answer(document, as_json, lambda: f"{_format_kept(kept)}{total} in all\n")


@command.command("clear")
@click.option(
    "--older-than",
    "days",
    default=0.0,
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Keep what was used within so many days.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
@click.pass_obj
def clear(session: Session, days: float, dry_run: bool, as_json: bool) -> None:
    """Remove what is kept for your projects and no job uses.

    The next launch of a project installs its packages again, by its lock. Locks stay.
    """
    from hpcstack.publish.project_packages import clear_packages, judge_packages

    judged = judge_packages(days, session.runner)
    going = [one for one, stays in judged.items() if not stays]
    if not dry_run:
        with show_progress("removing") as progress:
            clear_packages(judged, progress)
    done = "would remove" if dry_run else "removed"
    size = sum(one.size for one in going)
    document = {
        "would_remove" if dry_run else "removed": [_make_document(one) for one in going],
        "kept": [{**_make_document(one), "why": stays} for one, stays in judged.items() if stays],
        "bytes": size,
    }

    def show() -> str:
        stays = [f"{one.path}: kept, {why}\n" for one, why in judged.items() if why]
        last = f"{done} {format_count(len(going), 'item')}, {show_bytes(size)}\n"
        return _format_kept(going) + "".join(stays) + last

    answer(document, as_json, show)


def _make_document(kept: KeptPackages) -> dict[str, Any]:
    return {**asdict(kept), "path": str(kept.path)}


def _format_kept(kept: list[KeptPackages]) -> str:
    """Return a table of what is KEPT; empty for none."""
    rows = [
        (
            "packages" if one.kind == "packed" else "uv's cache",
            show_bytes(one.size),
            f"{datetime.fromtimestamp(one.used):%Y-%m-%d %H:%M}",
            one.stack or "-",
            ", ".join(one.wanted)[:60] or "-",
            str(one.path),
        )
        for one in kept
    ]
    if not rows:
        return ""
    return format_table(rows, ("WHAT", "SIZE", "USED", "STACK", "FOR", "PATH"))


def _open(
    session: Session, folder: Path, stack: str, extras: tuple[str, ...], groups: tuple[str, ...]
) -> OwnProject:
    """Return what the project in FOLDER adds to the image that STACK means."""
    from hpcstack.launch.own_project import open_project

    project = open_project(
        folder, stack, extras, groups, lambda: session.catalog, session.site, session.runner
    )
    say(f"{project.artifact.stack} ({project.why})")
    return project


def _render_lock(locked: dict[str, Any]) -> str:
    lines = [
        locked["path"],
        f"  to install: {len(locked['packages'])}; of the image: {len(locked['of_the_image'])}",
    ]
    lines += [f"  {name} {said}" for name, said in locked["instead"].items()]
    return "\n".join(lines)
