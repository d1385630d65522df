"""`hpcstack status`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_rebuilding.py.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from hpcstack.cli.published import add_optional_name, split_published, tree_of
from hpcstack.cli.session import Session, answer, format_table, json_option, say
from hpcstack.core.clock import read_clock
from hpcstack.core.errors import format_count

# A note where the site requires signatures: which ways to an image do not ask for them.
UNASKED = (
    "signatures are checked by publish, launch and --container-image=hpcstack/STACK, but not by a "
    "module's own commands, by srun --container-image=PATH, or under somebody's own site.yaml"
)


@click.command("status")
@add_optional_name
@click.option("--check", is_flag=True, help="Exit 1 if anything is wrong.")
@click.option(
    "--deep", is_flag=True, help="Also read every byte of every image, as `verify --all` (--check)."
)
@click.option(
    "--prometheus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write counts for Prometheus' textfile collector to this file (*.prom).",
)
@json_option
@click.pass_obj
def command(
    session: Session, name: str, check: bool, deep: bool, prometheus: Path | None, as_json: bool
) -> None:
    """Show what is published, as users see it, and what is wrong with it.

    With a NAME, hidden releases are shown too. Each published file is compared with what was
    written, and the size, inode and times of each image with what they were when it was last read.
    `hpcstack repair` restores what can be restored.
    """
    from hpcstack.core.errors import AnswerIsNo, InputError
    from hpcstack.publish.spider import is_cache_missing
    from hpcstack.publish.status import (
        find_all_damage,
        find_unsigned,
        list_notes_of_dates,
        list_notes_of_images,
        list_rows,
    )
    from hpcstack.releases.tree import open_tree

    if prometheus and name:
        raise InputError(
            "--prometheus is about all that is published", "hpcstack status --prometheus FILE"
        )
    if deep and not check:
        raise InputError(
            "--deep goes with --check", "hpcstack status --check --deep, or hpcstack verify --all"
        )

    tree = open_tree(session.site)
    chosen = _find_name(session, name) if name else ""
    damage = find_all_damage(tree, session.store, chosen)
    found = list_rows(tree, session.store, chosen, damage)

    wrong = [f"{one['release']}: {what}" for one in found for what in one["wrong"]]
    shown_releases = {one["release"] for one in found}
    wrong += [str(one) for one in damage if one.subject not in shown_releases]
    if deep:
        wrong += _read_images(session, chosen)
    wrong += [
        f"{one}: a change was interrupted; the next verb that writes finishes it"
        for one in tree.pending()
    ]
    if session.site.signatures.required:
        wrong += find_unsigned(tree, session.store, session.site.signatures.keys, session.runner)
    if tree.stale:
        wrong.append("the spider cache is older than the tree: hpcstack repair")
    if is_cache_missing(tree):
        wrong.append(f"the spider cache is gone from {tree.root / 'spider/cache'}: hpcstack repair")
    crowd = tree.crowded()
    if crowd:
        wrong.append(
            f"{tree.core} contains {crowd} modulefiles, which every load looks at: "
            f"`modules.direct` in site.yaml"
        )

    notes = [UNASKED] if session.site.signatures.required else []
    notes += [
        *list_notes_of_images(tree, session.store, chosen),
        *list_notes_of_dates(tree, chosen),
    ]

    document = {"modulepath": str(tree.core), "releases": found, "wrong": wrong, "notes": notes}
    answer(document, as_json, lambda: show_status(document))
    if prometheus:
        _write_metrics(session, prometheus, len(wrong))
    if check and wrong:
        raise AnswerIsNo(
            f"{format_count(len(wrong), 'thing')} wrong with what is published: {wrong[0]}",
            "each line above says what to type",
            page="on-call",
        )


def _write_metrics(session: Session, path: Path, wrong: int) -> None:
    """Write the counts of all that is published and stored to PATH; WRONG things are wrong."""
    from hpcstack.core.errors import HpcstackError, StoreError
    from hpcstack.core.outputs import write_output
    from hpcstack.publish.audit import audit_images
    from hpcstack.publish.holdings import list_holdings
    from hpcstack.publish.metrics import render_metrics

    tree = tree_of(session)
    holdings = list_holdings(session.store, tree)
    ledgers = []
    for name in tree.names():
        with contextlib.suppress(StoreError):  # it is one of the things that are wrong
            ledgers.append(tree.ledger(name))

    published = [one.artifact for one in holdings.images if one.releases]
    audits = None
    if session.site.audit.database:
        try:
            audits = audit_images(published, session.site)
        except HpcstackError as error:
            say(f"NOTE: {error.message}")
    images = [one.artifact for one in holdings.images]
    has_database = bool(session.site.audit.database)
    text = render_metrics(
        ledgers, images, wrong, audits, read_clock().timestamp(), has_database=has_database
    )
    write_output(path, text)


def _find_name(session: Session, said: str) -> str:
    """Return the published name that SAID means, also where its ledger cannot be read."""
    from hpcstack.publish.damage import list_names_with_traces
    from hpcstack.releases.tree import open_tree

    if said in list_names_with_traces(open_tree(session.site)):
        return said

    return split_published(session, said)[0].name


def _read_images(session: Session, name: str) -> list[str]:
    """Read the images of NAME, or all. Return a line for each whose bytes are wrong."""
    from hpcstack.cli.reading import read_released_images

    found = read_released_images(session, name=name)
    return [
        f"{one.release}: {one.wrong}: hpcstack repair {one.release} --images"
        for one in found
        if one.wrong
    ]


def show_status(document: dict[str, Any]) -> str:
    """Return DOCUMENT as text: a table of releases, then what is wrong, then notes."""
    rows = document["releases"]
    wrong = [f"WRONG {one}" for one in document["wrong"]]
    if not rows:
        return "\n".join(["nothing is published here; hpcstack publish STACK", *wrong])

    head = ("release", "alias", "channel", "tested", "dates")
    table = format_table([_make_row(one) for one in rows], head)
    lines = [table, "", f"  module use {document['modulepath']}"]
    return "\n".join([*lines, *wrong, *(f"NOTE: {one}" for one in document["notes"])])


def _make_row(one: dict[str, Any]) -> tuple[str, ...]:
    default = " (D)" if one["default"] else ""  # as `module avail` marks it
    channel = one["channel"] if one["state"] == "live" else one["state"]
    tested = one["tested"].get("verdict", "not tested")
    days = ((one["deprecate"], "warned"), (one["remove"], "refused"))
    dates = " ".join(f"{what} from {when}" for when, what in days if when)
    return (one["release"] + default, one["alias"], channel, tested, dates)
