"""Shows what is published, and what a verb would change, as rows and differences. Reads only.

Tested in tests/unit/releases/test_changes.py and tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import StoreError
from hpcstack.publish.damage import Damage, find_damage, find_touched_images, list_names_with_traces
from hpcstack.publish.modulefile import render_wrappers
from hpcstack.publish.publishable import check_publishable, choose_dates
from hpcstack.releases.changes import describe_changes, find_refused_default, publish_entry
from hpcstack.releases.inputs import stamp_today
from hpcstack.releases.ledger import Dates, Entry, Event, Ledger, make_version_key
from hpcstack.releases.modulerc import render_modulerc

if TYPE_CHECKING:
    from hpcstack.core.process import Runner
    from hpcstack.publish.publisher import Publisher
    from hpcstack.recipe.model import Stack
    from hpcstack.releases.tree import Tree
    from hpcstack.report import Report
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store


def find_all_damage(tree: Tree, store: Store, name: str = "") -> list[Damage]:
    """Return what is not as it was written, of NAME or, where it is empty, of all names."""
    names = [name] if name else list_names_with_traces(tree)
    return [damage for one in names for damage in find_damage(tree, store, one)]


def list_rows(
    tree: Tree, store: Store, name: str = "", damage: list[Damage] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each release that is not hidden; with NAME, for all releases of NAME.

    DAMAGE is what `find_all_damage` returns, for a caller that knows it already.
    """
    if damage is None:
        damage = find_all_damage(tree, store, name)
    wrong: dict[str, list[str]] = {}  # by NAME/RELEASE
    for each in damage:
        wrong.setdefault(each.subject, []).append(f"{each.what}: {each.remedy}")

    names = [name] if name else tree.names()
    out = []
    for one in names:
        try:
            ledger = tree.ledger(one)
        except StoreError:
            continue  # `find_damage` reports it, and the others are shown
        hidden = set(ledger.hidden())
        by_version = sorted(
            ledger.entries, key=lambda entry: (make_version_key(entry.version), entry.number)
        )
        for entry in by_version:
            if name or entry.release not in hidden:
                row = _make_row(tree, ledger, entry, is_hidden=entry.release in hidden)
                row["wrong"] += wrong.get(f"{one}/{entry.release}", [])
                out.append(row)
    return out


def _make_row(tree: Tree, ledger: Ledger, entry: Entry, *, is_hidden: bool) -> dict[str, Any]:
    """Return the row of one release; of what is `wrong` it has what its dates say."""
    has_alias = ledger.aliases.get(entry.version) == entry.release
    dates = ledger.dates.get(entry.version, Dates())
    return {
        "release": f"{ledger.name}/{entry.release}",
        "channel": entry.channel,
        "state": entry.state,
        "alias": f"{ledger.name}/{entry.version}" if has_alias else "",
        "default": ledger.default == entry.release,
        "hidden": is_hidden,
        "made": entry.made,
        "by": entry.by,
        "sha256": entry.sha256,
        "tested": entry.tested,
        "override": entry.override,
        "deprecate": dates.deprecate,
        "remove": dates.remove,
        "successor": dates.successor,
        "load": tree.how(ledger.name, entry.release),
        "wrong": _find_wrong_dates(ledger, entry, dates),
    }


def _find_wrong_dates(ledger: Ledger, entry: Entry, dates: Dates) -> list[str]:
    """Return what is wrong where DATES refuse a release and no verb has taken that into account."""
    if entry.state == "gone":  # gc has taken it, as it should
        return []
    out = []
    if dates.refuses(stamp_today()) and entry.state != "retired":
        out.append(f"past its date: hpcstack retire {ledger.name}/{entry.version} --now")
    if ledger.default == entry.release:
        day = find_refused_default(ledger, stamp_today())
        if day and day <= stamp_today():
            what = f"it is the default, and refused from {day} on"
            out.append(f"{what}: hpcstack default {ledger.name}/VERSION")
    return out


def list_notes_of_images(tree: Tree, store: Store, name: str = "") -> list[str]:
    """Return a note for each image that was touched and that nobody has read since."""
    names = [name] if name else tree.names()
    return [note for one in names for note in find_touched_images(tree, store, one)]


def list_notes_of_dates(tree: Tree, name: str = "") -> list[str]:
    """Return a note for each default that will be refused from a coming day on."""
    names = [name] if name else tree.names()
    out = []
    for one in names:
        with contextlib.suppress(StoreError):
            ledger = tree.ledger(one)
            day = find_refused_default(ledger, stamp_today())
            if day and day > stamp_today():
                what = f"{one}/{ledger.default} is the default, and refused from {day} on"
                out.append(f"{what}: before that, hpcstack default {one}/VERSION")
    return out


def foretell_changes(
    publisher: Publisher,
    stack: Stack,
    artifact: Artifact,
    channel: str,
    report: Report | None,
    override: str,
    pinned: str | None = None,
) -> tuple[list[str], str]:
    """Return (a line for each thing that publishing would change, a unified diff).

    The diff is of the module tree's and the release's files. Nothing is written.
    """
    tree = publisher.tree
    ledger = tree.ledger(stack.name)
    check_publishable(ledger, stack)
    release, entry = publisher.prepared(ledger, stack, artifact, channel, report, override)
    if publisher.already(ledger, entry):
        return [], ""

    if pinned is not None:
        ledger = replace(ledger, pinned=pinned)
    event = Event(entry.made, entry.by, "publish", entry.release)
    after = publish_entry(ledger, entry, choose_dates(stack), event)

    out = []
    homes = tree.homes(stack.name)
    for suffix in (".lua", ""):
        template = "modulerc.lua.j2" if suffix else "modulerc.tcl.j2"
        old = render_modulerc(ledger, (), template) if ledger.entries else ""
        home = homes[suffix].relative_to(tree.root)
        path = f"{home}/{stack.name}/.modulerc{suffix}"
        out += _diff(path, old, render_modulerc(after, (), template))
    for path, text in publisher.files(release).items():
        out += _diff(path, "", text)
    for path, text in render_wrappers(release).items():
        out += _diff(f"{release.folder}/{path}", "", text)
    return describe_changes(ledger, after), "".join(out)


def _diff(name: str, old: str, new: str) -> list[str]:
    """Return the lines of a unified diff of the file NAME, which is new where OLD is empty."""
    path = name.lstrip("/")
    before = f"a/{path}" if old else "/dev/null"
    lines = (old.splitlines(keepends=True), new.splitlines(keepends=True))
    return list(difflib.unified_diff(*lines, before, f"b/{path}"))


def find_unsigned(tree: Tree, store: Store, keys: tuple[str, ...], runner: Runner) -> list[str]:
    """Return a line for each live release whose image none of KEYS has signed.

    For sites that run only what is signed.
    """
    from hpcstack.store.signing import explain_distrust

    out = []
    for name in tree.names():
        for entry in tree.ledger(name).entries:
            with contextlib.suppress(StoreError):
                artifact = store.artifact(entry.key) if entry.state == "live" else None
                why = explain_distrust(artifact, keys, runner) if artifact else ""
                if why:
                    what = f"{name}/{entry.release}: hpcstack launch refuses it: {why}"
                    out.append(f"{what}: hpcstack sign {entry.key[:12]}")
    return out


def list_history(tree: Tree, name: str, version: str = "") -> list[dict[str, Any]]:
    """Return what was done to NAME, the oldest first; with VERSION, only what was done to it."""
    out = []
    for number, event in enumerate(tree.ledger(name).events, 1):
        if version in ("", *event.versions):
            row = asdict(event)
            del row["before"]  # what `undo` needs, and nobody reads
            # `undo --event` takes the number.
            out.append({"number": number, **row, "subject": event.subject})
    return out
