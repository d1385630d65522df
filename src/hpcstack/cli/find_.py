"""`hpcstack find`.

Tested in tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.published import tree_of
from hpcstack.cli.session import Session, answer, format_table, json_option, say
from hpcstack.core.clock import read_clock
from hpcstack.core.errors import format_count

if TYPE_CHECKING:
    from hpcstack.publish.holdings import Holdings
    from hpcstack.publish.search import Hit

DAYS = 90  # in which a person used it
MOST = 5  # images that a note names


@click.command("find")
@click.argument("what", metavar="PACKAGE|file:NAME")
@click.option("--published", is_flag=True, help="Search only the images of releases.")
@json_option
@click.pass_obj
def command(session: Session, what: str, published: bool, as_json: bool) -> None:
    """Find which images, releases and locks have a package or a file.

    PACKAGE is a name, with conditions on its version if you like: torch, 'urllib3<2.8',
    'deb:libssl3<3.0.15', 'libnccl*'. NAME is the name or the path of a file: file:libnccl.so.2,
    'file:/usr/lib/*/libcuda.so*'.

    Of a lock only the packages are known that its recipe adds to the base. Exit code 1: nothing has
    it, or something could not be searched.
    """
    from hpcstack.publish.holdings import list_holdings
    from hpcstack.publish.search import find_hits

    catalog = None if published else session.catalog
    holdings = list_holdings(session.store, tree_of(session), catalog, session.site)
    if published:
        holdings.images = [one for one in holdings.images if one.releases]

    found = find_hits(what, holdings, say)
    hits, notes = _count_people(session, found)
    notes += _note_shorter_lists(holdings)
    document = {
        "hits": [_make_row(hit) for hit in hits],
        "unread": holdings.unread,
        "notes": notes,
    }
    answer(document, as_json, lambda: _format_text(what, hits, holdings.unread, notes))
    if not hits or holdings.unread:
        raise click.exceptions.Exit(1)


def _count_people(session: Session, hits: list[Hit]) -> tuple[list[Hit], list[str]]:
    """Return HITS, each release with how many people used it where the site logs that, and notes.

    Whoever may not read the logs finds what they look for all the same.
    """
    from hpcstack.core.errors import HpcstackError
    from hpcstack.publish.usage import count_people, count_usage

    if not any(hit.releases for hit in hits) or not session.site.usage.files:
        return hits, []
    try:
        usage = count_usage(session.site, tree_of(session), DAYS, read_clock())
    except HpcstackError as error:
        return hits, [f"who uses them is not known: {error.message}"]
    notes = [f"people are counted since {usage.since}"]
    return [replace(hit, releases=count_people(hit.releases, usage)) for hit in hits], notes


def _note_shorter_lists(holdings: Holdings) -> list[str]:
    """Return the note that an older hpcstack stored some images of HOLDINGS; [] where none did."""
    keys = [f"{one.stack} ({one.key[:12]})" for one in holdings.by_older]
    if not keys:
        return []
    more = f" and {len(keys) - MOST} more" if len(keys) > MOST else ""
    return [
        f"of {format_count(len(keys), 'image')} only the packages of the system and of its own "
        f"python3 are known: {', '.join(keys[:MOST])}{more}. An older hpcstack stored them. `hpcstack build "
        "STACK --no-cache` makes a list of all Pythons"
    ]


def _make_row(hit: Hit) -> dict[str, Any]:
    package = hit.package
    return {
        "ecosystem": package.ecosystem if package else "",
        "name": package.name if package else "",
        "version": package.version if package else "",
        "path": hit.path,
        "folder": package.folder if package else "",
        "stack": hit.stack,
        "platform": hit.platform,
        "key": hit.key,
        "releases": [asdict(one) for one in hit.releases],
        "undecided": hit.undecided,
    }


def _format_text(what: str, hits: list[Hit], unread: list[str], notes: list[str]) -> str:
    """Return a table of HITS, and after it what could not be searched."""
    lines = []
    if hits:
        rows = [
            (_describe(hit), hit.stack, hit.platform, hit.key[:12] or "-", hit.where)
            for hit in hits
        ]
        lines.append(format_table(rows, ("WHAT", "STACK", "PLATFORM", "IMAGE", "WHERE")))
    else:
        lines.append(f"nothing that could be searched has {what}")
    if any(hit.undecided for hit in hits):
        lines.append("?: its version cannot be compared with the one that was asked for")
    lines += [f"not searched: {one}" for one in unread]
    lines += [f"NOTE: {one}" for one in notes]
    return "\n".join(lines)


def _describe(hit: Hit) -> str:
    if not hit.package:
        return hit.path
    mark = "?" if hit.undecided else ""
    return (
        f"{hit.package.ecosystem}:{hit.package.name} {hit.package.version}{mark}{hit.package.where}"
    )
