"""The report of a sync as one self-contained page, and as Markdown for a merge request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.render.template import fill_page, read_data_file
from hpcstack.sync.result import (
    list_deeds,
    list_steps,
    list_sync_rows,
    list_wrong,
    summarise_result,
)

if TYPE_CHECKING:
    from hpcstack.sync.plan import Status
    from hpcstack.sync.result import SyncResult

# {status: class of catalog.css}
CLASSES: dict[Status, str] = {
    "done": "PASS",
    "todo": "",
    "waits": "soft",
    "held": "WARN",
    "failed": "FAIL",
}


def render_sync_page(result: SyncResult) -> str:
    """Return the report as an HTML page that needs no other file."""
    return fill_page(
        "modules",
        "sync.html.j2",
        result=result,
        style=read_data_file("modules", "catalog.css"),
        summary=summarise_result(result),
        rows=[(*row.cells, CLASSES[row.status]) for row in list_sync_rows(result)],
        steps=list_steps(result),
        deeds=list_deeds(result),
        wrong=list_wrong(result),
    )


def render_sync_markdown(result: SyncResult) -> str:
    """Return the report as Markdown, with what was written by others in code spans."""
    title = "What would change" if result.dry_run else "What was done"
    lines = [f"## {title}: {summarise_result(result)}", ""]
    if result.commit:
        lines += [f"`{result.folder}` at `{result.commit}`", ""]
    rows = [row.cells for row in list_sync_rows(result)]
    if rows:
        lines += ["| release | status | |", "|---|---|---|"]
        lines += [f"| {_code(name)} | {status} | {_code(why)} |" for name, status, why in rows]
        lines.append("")
    for head, items in (
        ("Steps that are left", list_steps(result)),
        ("Done", list_deeds(result)),
        ("What to look at", list_wrong(result)),
    ):
        if items:
            lines += [f"### {head}", "", *(f"- {_code(one)}" for one in items), ""]
    return "\n".join(lines)


def _code(text: str) -> str:
    """Return TEXT as a code span, which may stand in a table."""
    plain = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""
