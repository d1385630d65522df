"""`hpcstack sync`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_syncing.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.published import make_publisher
from hpcstack.cli.session import (
    Session,
    answer,
    echo,
    events_option,
    format_table,
    json_option,
    show_progress,
)

if TYPE_CHECKING:
    from hpcstack.core.progress import Progress
    from hpcstack.sync.look import Means
    from hpcstack.sync.result import SyncResult


@click.command("sync")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only show what differs, and what would be done.")
@click.option("--check", is_flag=True, help="As --dry-run, and exit 1 if anything differs.")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Only this name of the declaration. May be given several times.",
)
@click.option("--html", default="", metavar="FILE", help="Also write one self-contained HTML page.")
@click.option("--markdown", default="", metavar="FILE", help="Also write Markdown.")
@click.option("--quiet", is_flag=True, help="Print only what was done and what is wrong: for cron.")
@events_option
@json_option
@click.pass_obj
def command(
    session: Session,
    folder: Path,
    dry_run: bool,
    check: bool,
    only: tuple[str, ...],
    html: str,
    markdown: str,
    quiet: bool,
    events: str,
    as_json: bool,
) -> None:
    """Publish what a folder declares.

    Stacks are locked, built, tested, published in testing and promoted where the gate opens;
    versions that are not declared any more are retired; damage is repaired. Run it again after
    anything: it goes on where it is. Names that the folder does not declare are left alone.
    """
    from hpcstack.core.progress import Progress
    from hpcstack.sync.converge import converge_releases, foretell_sync
    from hpcstack.sync.folder import read_folder
    from hpcstack.sync.result import make_document

    declared = read_folder(folder)
    only_shows = dry_run or check
    act = foretell_sync if only_shows else converge_releases
    if quiet:
        result = act(declared, _make_means(session, Progress()), only)
    else:
        doing = "comparing" if only_shows else "syncing"
        with show_progress(f"{doing} {folder}", events) as progress:
            result = act(declared, _make_means(session, progress), only)

    _write_forms(session, result, html, markdown)
    is_shown = not quiet or result.exit_code or result.has_done_something
    if is_shown and "-" not in (html, markdown):
        answer(make_document(result), as_json, lambda: _format_text(result))
    if check and result.differs:
        raise click.exceptions.Exit(1)
    if not only_shows and result.exit_code:
        raise click.exceptions.Exit(result.exit_code)


def _make_means(session: Session, progress: Progress) -> Means:
    """Return what sync works with, which reports to PROGRESS."""
    from dataclasses import replace

    from hpcstack.sync.look import Means

    publisher = replace(make_publisher(session), say=progress)
    bench = session.workbench(progress)
    return Means(session.catalog, publisher, bench, tuple(session.words()))


def _write_forms(session: Session, result: SyncResult, html: str, markdown: str) -> None:
    """Write the report in the forms that are asked for; to stdout where FILE is `-`."""
    from hpcstack.core.outputs import write_output
    from hpcstack.sync.page import render_sync_markdown, render_sync_page

    for path, render in ((html, render_sync_page), (markdown, render_sync_markdown)):
        if path == "-":
            echo(render(result).rstrip("\n"))
        elif path:
            with session.store.acting(f"{path} was not written"):
                write_output(Path(path), render(result))


def _format_text(result: SyncResult) -> str:
    from hpcstack.sync.result import (
        list_deeds,
        list_steps,
        list_sync_rows,
        list_wrong,
        summarise_result,
    )

    lines = [format_table(list_sync_rows(result), ("RELEASE", "STATUS", "WHY")).rstrip("\n"), ""]
    for head, items in (
        ("done:", list_deeds(result)),
        ("would do:" if result.dry_run else "left to do:", list_steps(result)),
        ("look at:", list_wrong(result)),
    ):
        if items:
            lines += [head, *(f"  {one}" for one in items), ""]
    if result.undeclared:
        lines += [f"not declared, and left alone: {', '.join(result.undeclared)}", ""]
    lines.append(summarise_result(result))
    return "\n".join(lines)
