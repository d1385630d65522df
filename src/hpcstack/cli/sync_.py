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
    from hpcstack.core.errors import InputError
    from hpcstack.core.progress import Progress
    from hpcstack.sync.converge import converge_releases, foretell_sync
    from hpcstack.sync.folder import read_folder
    from hpcstack.sync.result import make_document

    if quiet and events:
        raise InputError(
            "--quiet reports no progress, and --events writes it",
            f"hpcstack sync {folder} --events {events}",
            page="declare-releases",
        )
    _check_outputs(html, markdown)
    declared = read_folder(folder)
    only_shows = dry_run or check
    act = foretell_sync if only_shows else converge_releases
    if quiet:
        result = act(declared, _make_means(session, Progress()), only)
    else:
        doing = "comparing" if only_shows else "syncing"
        with show_progress(f"{doing} {folder}", events) as progress:
            result = act(declared, _make_means(session, progress), only)

    status = 0 if only_shows else result.exit_code
    if check and result.differs:
        status = 1
    is_shown = not quiet or result.exit_code or result.has_done_something
    if is_shown and "-" not in (html, markdown):
        document = {**make_document(result), "status": status}
        answer(document, as_json, lambda: _format_text(result, quiet=quiet))
    _write_forms(session, result, html, markdown)
    if status:
        raise click.exceptions.Exit(status)


def _make_means(session: Session, progress: Progress) -> Means:
    """Return what sync works with, which reports to PROGRESS."""
    from dataclasses import replace

    from hpcstack.sync.look import Means

    publisher = replace(make_publisher(session), say=progress)
    bench = session.workbench(progress)
    return Means(session.catalog, publisher, bench, tuple(session.words()))


def _check_outputs(*paths: str) -> None:
    """Raise InputError or StoreError for an output that could not be written in the end."""
    from hpcstack.core.outputs import is_special, new_file

    for path in paths:
        if path not in ("", "-") and not is_special(Path(path)):
            new_file(Path(path), force=True)


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


def _format_text(result: SyncResult, *, quiet: bool) -> str:
    """Return the answer as text. A QUIET one leaves out what is as declared."""
    from hpcstack.sync.result import (
        list_deeds,
        list_steps,
        list_sync_rows,
        list_wrong,
        summarise_result,
    )

    rows = list_sync_rows(result)
    if quiet:
        rows = [row for row in rows if row.status != "done"]
    lines = []
    if rows:
        cells = [row.cells for row in rows]
        lines += [format_table(cells, ("RELEASE", "STATUS", "WHY")).rstrip("\n"), ""]
    for head, items in (
        ("done:", list_deeds(result)),
        ("would do:" if result.dry_run else "left to do:", list_steps(result)),
        ("look at:", list_wrong(result)),
    ):
        if items:
            lines += [head, *(f"  {one}" for one in items), ""]
    if result.undeclared and not quiet:
        lines += [f"not declared, and left alone: {', '.join(result.undeclared)}", ""]
    lines.append(summarise_result(result))
    return "\n".join(lines)
