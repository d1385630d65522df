"""The one reader and writer of ledger.json.

Whoever may publish may write that file, and whoever reads it, root too, makes paths of what it
says: of names, versions, releases and keys. So each field is checked against what it may be, and an
unknown field is refused. A ledger of a newer hpcstack is read, so that its users can go on loading
and launching, but it is not changed.

Tested in tests/unit/releases/test_ledger.py and tests/hostile/test_shared_folders.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from hpcstack.core.errors import StoreError
from hpcstack.core.records import Format, Key, Record, Text
from hpcstack.recipe.fields import NAME, VERSION
from hpcstack.releases.ledger import Dates, Entry, Event, Ledger

RELEASE = VERSION.removesuffix("$") + r"-r[1-9][0-9]{0,7}$"
RESTORE = "restore it from a backup of the module tree"
VersionName = Annotated[str, StringConstraints(pattern=VERSION, max_length=128)]
ReleaseName = Annotated[str, StringConstraints(pattern=RELEASE, max_length=140)]
Day = Annotated[str, StringConstraints(pattern=r"^(?:[0-9]{4}-[0-9]{2}-[0-9]{2})?$")]


class _Entry(Record):
    release: ReleaseName
    version: VersionName
    channel: Literal["testing", "production"]
    key: Key
    sha256: Text
    made: Text
    by: Text
    shown: Text = ""
    tested: dict[Text, Text] = Field(default_factory=dict)
    override: Text = ""
    state: Literal["live", "withdrawn", "retired", "removed", "gone"] = "live"
    since: Text = ""


class _Dates(Record):
    deprecate: Day = ""
    remove: Day = ""
    successor: Text = ""
    reason: Text = ""
    origin: Literal["retire", "recipe"] = "retire"


class _Before(Record):
    """What an event changed, as it was before; None for what was not there."""

    states: dict[ReleaseName, Text] = Field(default_factory=dict)
    aliases: dict[VersionName, ReleaseName | None] = Field(default_factory=dict)
    dates: dict[VersionName, _Dates | None] = Field(default_factory=dict)
    pinned: VersionName | Literal[""] = ""


class _Event(Record):
    at: Text
    by: Text
    verb: Text
    release: Text
    alias: Text = ""
    default: Text = ""
    reason: Text = ""
    version: Text = ""
    before: _Before | None = None


class _Ledger(Record):
    format: Text
    name: Annotated[str, StringConstraints(pattern=NAME, max_length=64)]
    entries: list[_Entry]
    aliases: dict[VersionName, ReleaseName]
    default: ReleaseName | Literal[""]
    pinned: VersionName | Literal[""] = ""
    dates: dict[VersionName, _Dates]
    events: list[_Event]


LEDGER = Format("hpcstack/modules", 1, _Ledger)


def as_json(ledger: Ledger) -> dict[str, Any]:
    """Return the document that ledger.json holds."""
    document = asdict(ledger)
    return {
        "format": LEDGER.name,
        **document,
        "entries": list(document["entries"]),
        "events": list(document["events"]),
    }


def parse_ledger(document: Any, where: str, name: str = "", *, to_change: bool = False) -> Ledger:
    """Return the ledger of DOCUMENT, which the file WHERE holds.

    StoreError where it is damaged, has fields that a ledger does not have, or is not that of NAME,
    where one is given. With TO_CHANGE also where a newer hpcstack wrote it.
    """
    if LEDGER.number_of(document, where, RESTORE) > LEDGER.number:
        # A newer format may have events that we cannot read, and loading needs none of them.
        document = {**document, "events": []}
    found = LEDGER.read(document, where, RESTORE, to_change=to_change)
    ledger = _convert(found)
    why = _find_contradiction(ledger, name)
    if why:
        raise StoreError(f"{where} is damaged: {why}", RESTORE, page="repair-what-is-published")
    return ledger


def check_ledger(ledger: Ledger) -> None:
    """Raise StoreError where LEDGER, which is about to be written, could not be read again."""
    parse_ledger(as_json(ledger), f"the new ledger of {ledger.name}", ledger.name, to_change=True)


def _convert(found: _Ledger) -> Ledger:
    return Ledger(
        name=found.name,
        entries=tuple(Entry(**one.model_dump()) for one in found.entries),
        aliases=found.aliases,
        default=found.default,
        pinned=found.pinned,
        dates={version: Dates(**one.model_dump()) for version, one in found.dates.items()},
        events=tuple(Event(**one.model_dump(exclude_unset=True)) for one in found.events),
    )


def _find_contradiction(ledger: Ledger, name: str) -> str:
    """Return what in LEDGER contradicts itself or NAME; empty where nothing does."""
    if name and ledger.name != name:
        return f"it is the ledger of {ledger.name}"
    releases = [one.release for one in ledger.entries]
    if len(set(releases)) < len(releases):
        return "it names a release twice"
    for one in ledger.entries:
        if one.release.rpartition("-r")[0] != one.version:
            return f"{one.release} is no release of {one.version}"
    for version, release in ledger.aliases.items():
        if release not in releases or release.rpartition("-r")[0] != version:
            return f"{version} means {release}, which is no release of it"
    if ledger.default and ledger.default not in releases:
        return f"its default, {ledger.default}, is no release of it"
    return ""
