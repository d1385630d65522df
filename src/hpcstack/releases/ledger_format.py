"""The one reader and writer of ledger.json. Whoever may publish may write that file: its data is
believed, paths never.

What a ledger says becomes paths (names, versions, releases, keys) in the hands of whoever reads it,
root too. So each field is held against what it may be, and a field that is not known is refused. A
ledger of a newer hpcstack may be read, so that its users can go on loading and launching; it is not
changed.
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
    """What an event changed, as it was; None for what was not there."""

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
    document = asdict(ledger)
    return {
        "format": LEDGER.name,
        **document,
        "entries": list(document["entries"]),
        "events": list(document["events"]),
    }


def parse_ledger(document: Any, where: str, name: str = "", *, to_change: bool = False) -> Ledger:
    """The ledger that the file WHERE holds, which is that of NAME, if that is known.

    StoreError where it is damaged, says more than a ledger can, or is of another name; where it is
    of a newer hpcstack and is to be changed, too.
    """
    if LEDGER.number_of(document, where, RESTORE) > LEDGER.number:
        document = {**document, "events": []}  # of no use for loading and launching
    found = LEDGER.read(document, where, RESTORE, to_change=to_change)
    ledger = _made_of(found)
    if why := _contradiction(ledger, name):
        raise StoreError(f"{where} is damaged: {why}", RESTORE)
    return ledger


def check_ledger(ledger: Ledger) -> None:
    """StoreError where LEDGER, which is about to be written, is none that could be read again."""
    parse_ledger(as_json(ledger), f"the new ledger of {ledger.name}", ledger.name, to_change=True)


def _made_of(found: _Ledger) -> Ledger:
    return Ledger(
        name=found.name,
        entries=tuple(Entry(**one.model_dump()) for one in found.entries),
        aliases=found.aliases,
        default=found.default,
        pinned=found.pinned,
        dates={version: Dates(**one.model_dump()) for version, one in found.dates.items()},
        events=tuple(Event(**one.model_dump(exclude_unset=True)) for one in found.events),
    )


def _contradiction(ledger: Ledger, name: str) -> str:
    """What of LEDGER cannot be, if it is that of NAME; empty where all can."""
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
