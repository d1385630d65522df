"""What is published, as tables and differences. Reads only."""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import StoreError
from hpcstack.publish.damage import Damage, find_damage, names_with_traces, touched_images
from hpcstack.publish.modulefile import Release, render_wrappers
from hpcstack.publish.publishable import check_publishable, dates_of
from hpcstack.releases.changes import describe_changes, publish_entry, refused_default
from hpcstack.releases.inputs import stamp_today
from hpcstack.releases.ledger import Dates, Event, Ledger, make_version_key
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
    """What is not as it was written, of NAME or of all."""
    names = [name] if name else names_with_traces(tree)
    return [damage for one in names for damage in find_damage(tree, store, one)]


def list_rows(
    tree: Tree, store: Store, name: str = "", damage: list[Damage] | None = None
) -> list[dict[str, Any]]:
    """Each release that is not hidden, with what is wrong with it; of NAME alone, all of them.

    DAMAGE is what `find_all_damage` says, where somebody knows it already.
    """
    out = []
    damage = find_all_damage(tree, store, name) if damage is None else damage
    of_release: dict[str, list[str]] = {}
    for each in damage:
        of_release.setdefault(each.subject, []).append(f"{each.what}: {each.remedy}")
    for one in [name] if name else tree.names():
        try:
            ledger = tree.ledger(one)
        except StoreError:
            continue  # find_damage says so; the others are shown
        hidden = set(ledger.hidden())
        for entry in sorted(
            ledger.entries, key=lambda entry: (make_version_key(entry.version), entry.number)
        ):
            if entry.release in hidden and not name:
                continue
            dates = ledger.dates.get(entry.version, Dates())
            out.append(
                {
                    "release": f"{one}/{entry.release}",
                    "channel": entry.channel,
                    "state": entry.state,
                    "alias": f"{one}/{entry.version}"
                    if ledger.aliases.get(entry.version) == entry.release
                    else "",
                    "default": ledger.default == entry.release,
                    "hidden": entry.release in hidden,
                    "made": entry.made,
                    "by": entry.by,
                    "sha256": entry.sha256,
                    "tested": entry.tested,
                    "override": entry.override,
                    "deprecate": dates.deprecate,
                    "remove": dates.remove,
                    "successor": dates.successor,
                    "load": tree.how(one, entry.release),
                    "wrong": [
                        *_wrong_dates(ledger, entry.release, dates),
                        *of_release.get(f"{one}/{entry.release}", []),
                    ],
                }
            )
    return out


def _wrong_dates(ledger: Ledger, release: str, dates: Dates) -> list[str]:
    """What the dates of a RELEASE refuse to users, though nobody has said so; its files are
    publish/damage.py's.
    """
    entry = ledger.entry(release)
    if entry.state == "gone":  # gc has taken it, as it should
        return []
    out = []
    if dates.refuses(stamp_today()) and entry.state != "retired":
        out.append(f"past its date: hpcstack retire {ledger.name}/{entry.version} --now")
    if (
        ledger.default == release
        and (day := refused_default(ledger, stamp_today()))
        and day <= stamp_today()
    ):
        out.append(
            f"it is the default, and refused from {day} on: hpcstack default {ledger.name}/VERSION"
        )
    return out


def notes_of_images(tree: Tree, store: Store, name: str = "") -> list[str]:
    """Images that nobody has read since somebody touched them."""
    return [
        note
        for one in ([name] if name else tree.names())
        for note in touched_images(tree, store, one)
    ]


def notes_of_dates(tree: Tree, name: str = "") -> list[str]:
    """What will be wrong one day, and is not yet: a default that is refused from then on."""
    out = []
    for one in [name] if name else tree.names():
        with contextlib.suppress(StoreError):
            ledger = tree.ledger(one)
            day = refused_default(ledger, stamp_today())
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
    """(what publishing would change, a line each; the module tree's and the release's files as a
    unified diff).

    Nothing is written.
    """
    tree = publisher.tree
    ledger = tree.ledger(stack.name)
    check_publishable(ledger, stack)
    release, entry = publisher.prepared(ledger, stack, artifact, channel, report, override)
    if publisher.already(ledger, entry):
        return [], ""
    ledger = ledger if pinned is None else replace(ledger, pinned=pinned)
    after = publish_entry(
        ledger, entry, dates_of(stack), Event(entry.made, entry.by, "publish", entry.release)
    )
    out = []
    for suffix in (".lua", ""):
        template = "modulerc.lua.j2" if suffix else "modulerc.tcl.j2"
        old = render_modulerc(ledger, (), template) if ledger.entries else ""
        name = f"{tree.homes(stack.name)[suffix].relative_to(tree.root)}/{stack.name}/.modulerc{suffix}"
        out += _diff(name, old, render_modulerc(after, (), template))
    for path, text in {**publisher.files(release), **_scripts(release)}.items():
        out += _diff(path, "", text)
    return describe_changes(ledger, after), "".join(out)


def _scripts(release: Release) -> dict[str, str]:
    return {f"{release.folder}/{path}": text for path, text in render_wrappers(release).items()}


def _diff(name: str, old: str, new: str) -> list[str]:
    before = f"a/{name.lstrip('/')}" if old else "/dev/null"
    return list(
        difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            before,
            f"b/{name.lstrip('/')}",
        )
    )


def find_unsigned(tree: Tree, store: Store, keys: tuple[str, ...], runner: Runner) -> list[str]:
    """What is wrong with the signatures of live releases, at a site that runs only what is signed."""
    from hpcstack.store.signing import why_untrusted

    out = []
    for name in tree.names():
        for entry in tree.ledger(name).entries:
            with contextlib.suppress(StoreError):
                artifact = store.artifact(entry.key) if entry.state == "live" else None
                if artifact and (why := why_untrusted(artifact, keys, runner)):
                    what = f"{name}/{entry.release}: hpcstack launch refuses it: {why}"
                    out.append(f"{what}: hpcstack sign {entry.key[:12]}")
    return out


def list_history(tree: Tree, name: str, version: str = "") -> list[dict[str, Any]]:
    """What was done to NAME, the oldest first; of VERSION alone, what was done to it."""
    events = tree.ledger(name).events
    return [
        {
            "number": number,  # for `undo --event`
            **{key: value for key, value in asdict(one).items() if key != "before"},
            "subject": one.subject,
        }
        for number, one in enumerate(events, 1)
        if version in ("", *one.versions)
    ]
