"""`hpcstack audit`.

Tested in tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import tree_of
from hpcstack.cli.session import Session, answer, format_table, json_option, say

if TYPE_CHECKING:
    from hpcstack.publish.audit import Audit, Audits, Vulnerability
    from hpcstack.publish.holdings import HeldImage

SHOWN = 20  # findings of an image that are shown without --all


@click.command("audit")
@click.argument("images", metavar="[IMAGE]...", nargs=-1)
@click.option("--stored", is_flag=True, help="Audit every image in the store, not releases alone.")
@click.option(
    "--database",
    default="",
    metavar="PATH",
    show_default="audit.database in site.yaml",
    help="Use this folder of OSV's archives.",
)
@click.option("--all", "every", is_flag=True, help="Show every vulnerability of each image.")
@click.option(
    "--check",
    is_flag=True,
    help="Exit 1 if an image has what policy.max_severity refuses, or something is unknown.",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    images: tuple[str, ...],
    stored: bool,
    database: str,
    every: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Check images against a database of known vulnerabilities.

    Without an IMAGE, every image is audited that is published. The database is a folder of OSV's
    archives, which the site fetches: nothing is asked of the network. What is in none of them is
    shown as unknown.
    """
    from hpcstack.publish.audit import audit_images
    from hpcstack.publish.holdings import list_holdings

    holdings = list_holdings(session.store, tree_of(session))
    held = [one for one in holdings.images if one.releases or stored]
    if images:
        keys = {session.find_image(one).key for one in images}
        held = [one for one in holdings.images if one.artifact.key in keys]

    say(f"auditing {len(held)} images")
    audits = audit_images([one.artifact for one in held], session.site, database)
    notes = [*holdings.unread, *audits.doubts]
    if not held:
        notes.append("nothing is published here; --stored audits what is in the store")

    document = {
        "database": audits.database,
        "newest": audits.newest,  # of each ecosystem that it covers
        "records": audits.records,
        "notes": notes,
        "images": [_make_row(one, audit) for one, audit in zip(held, audits.audits, strict=True)],
    }
    answer(document, as_json, lambda: _format_text(held, audits, notes, every=every))
    if check and (notes or any(one.refused or one.unknown for one in audits.audits)):
        raise click.exceptions.Exit(1)


def _make_row(image: HeldImage, audit: Audit) -> dict[str, Any]:
    return {
        "stack": image.artifact.stack,
        "platform": image.artifact.platform,
        "key": image.artifact.key,
        "releases": [one.name for one in image.releases],
        "counts": audit.count(),
        "refused": [one.id for one in audit.refused],
        "unknown": [asdict(one) for one in audit.unknown],
        "findings": [asdict(one) for one in audit.findings],
    }


def _format_text(held: list[HeldImage], audits: Audits, notes: list[str], *, every: bool) -> str:
    """Return a block for each image: its releases, its counts, and its worst findings."""
    days = ", ".join(f"{name} of {day or 'no day'}" for name, day in sorted(audits.newest.items()))
    lines = [f"database: {audits.database}, {audits.records} records: {days}"]
    lines += [f"NOTE: {one}" for one in notes]
    if not held:
        lines.append("nothing was audited")
    for image, audit in zip(held, audits.audits, strict=True):
        names = ", ".join(one.describe() for one in image.releases) or "stored"
        lines += [
            "",
            f"{image.artifact.stack} ({image.artifact.key[:12]}): {names}",
            f"  known vulnerabilities: {audit.describe()}",
        ]
        lines += [f"  UNKNOWN: {' '.join(one.what.split())}" for one in audit.unknown[:SHOWN]]
        shown = audit.findings if every else audit.findings[:SHOWN]
        if shown:
            head = ("SEVERITY", "ID", "PACKAGE", "FIXED IN", "SINCE", "")
            table = format_table([_make_line(one) for one in shown], head)
            lines += [f"  {line}" for line in table.splitlines()]
        left = len(audit.findings) - len(shown)
        if left:
            lines.append(f"  and {left} more: --all")
    return "\n".join(lines)


def _make_line(one: Vulnerability) -> tuple[str, ...]:
    remark = f"waived: {one.waived}" if one.waived else one.note
    fixed = one.fixed if one.fixed != "-" else "no fix"
    package = f"{one.package.name} {one.package.version}{one.package.where}"
    return one.severity, one.id, package, fixed, one.published, remark
