"""The one reader and writer of ledger.json. Whoever may publish may write that file: its data is believed, paths never.

What a ledger says becomes paths (names, versions, releases, keys) in the hands of whoever reads it, root too. So each
field is held against what it may be, and a field that is not known is refused. A ledger of a newer hpcstack may be
read, so that its users can go on loading and launching; it is not changed.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from hpcstack.core.characters import CONTROL
from hpcstack.core.errors import StoreError
from hpcstack.recipe.fields import NAME, VERSION
from hpcstack.releases.ledger import FORMAT, Dates, Entry, Event, Ledger

NUMBERED = re.compile(r"hpcstack/modules/v([0-9]{1,4})")
NUMBER = 1  # of the format that this hpcstack writes
RELEASE = VERSION.removesuffix("$") + r"-r[1-9][0-9]{0,7}$"
MOST_EVENTS, MOST_TEXT = 100_000, 2000
RESTORE = "restore it from a backup of the module tree"


def _plain(text: str) -> str:
    if CONTROL.search(text):
        raise ValueError("it holds a control character")
    return text


Text = Annotated[str, StringConstraints(max_length=MOST_TEXT), AfterValidator(_plain)]
VersionName = Annotated[str, StringConstraints(pattern=VERSION, max_length=128)]
ReleaseName = Annotated[str, StringConstraints(pattern=RELEASE, max_length=140)]
Day = Annotated[str, StringConstraints(pattern=r"^(?:[0-9]{4}-[0-9]{2}-[0-9]{2})?$")]
Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-z]{1,64}$")]


class _Known(BaseModel):
    """A part of a ledger; what is not named here is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Entry(_Known):
    release: ReleaseName
    version: VersionName
    channel: Literal["testing", "production"]
    key: Key
    sha256: Text
    made: Text
    by: Text
    shown: Text = ""
    tested: dict[Text, Text] = {}
    override: Text = ""
    state: Literal["live", "withdrawn", "retired", "removed", "gone"] = "live"
    since: Text = ""


class _Dates(_Known):
    deprecate: Day = ""
    remove: Day = ""
    successor: Text = ""
    reason: Text = ""
    origin: Literal["retire", "recipe"] = "retire"


class _Before(_Known):
    """What an event changed, as it was; None for what was not there."""

    states: dict[ReleaseName, Text] = {}
    aliases: dict[VersionName, ReleaseName | None] = {}
    dates: dict[VersionName, _Dates | None] = {}
    pinned: VersionName | Literal[""] = ""


class _Event(_Known):
    at: Text
    by: Text
    verb: Text
    release: Text
    alias: Text = ""
    default: Text = ""
    reason: Text = ""
    version: Text = ""
    before: _Before | None = None


class _Ledger(_Known):
    format: Text
    name: Annotated[str, StringConstraints(pattern=NAME, max_length=64)]
    entries: list[_Entry]
    aliases: dict[VersionName, ReleaseName]
    default: ReleaseName | Literal[""]
    pinned: VersionName | Literal[""] = ""
    dates: dict[VersionName, _Dates]
    events: list[_Event]


READER: TypeAdapter[_Ledger] = TypeAdapter(_Ledger)


def as_json(ledger: Ledger) -> dict[str, Any]:
    document = asdict(ledger)
    return {"format": FORMAT, **document, "entries": list(document["entries"]), "events": list(document["events"])}


def from_json(document: Any, where: str, name: str = "", *, to_change: bool = False) -> Ledger:
    """The ledger that the file WHERE holds, which is that of NAME, if that is known.

    StoreError where it is damaged, says more than a ledger can, or is of another name; where it is of a newer hpcstack
    and is to be changed, too.
    """
    number = _number_of(document, where)
    if number > NUMBER and to_change:
        raise StoreError(
            f"{where} was written by a newer hpcstack (format {number}; this one writes {NUMBER})",
            "change it with that version: what is published can be loaded and launched with this one",
        )
    if number > NUMBER:
        document = _known_part(document)
    try:
        found = READER.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise StoreError(f"{where} is damaged: {place}: {first['msg']}"[:500], RESTORE) from None
    ledger = _made_of(found)
    if why := _contradiction(ledger, name):
        raise StoreError(f"{where} is damaged: {why}", RESTORE)
    return ledger


def check_ledger(ledger: Ledger) -> None:
    """StoreError where LEDGER, which is about to be written, is none that could be read again."""
    from_json(as_json(ledger), f"the new ledger of {ledger.name}", ledger.name, to_change=True)


def _number_of(document: Any, where: str) -> int:
    said = document.get("format") if isinstance(document, dict) else None
    match = NUMBERED.fullmatch(said) if isinstance(said, str) else None
    if not match:
        raise StoreError(f"{where} is damaged, or of another hpcstack: its format is {said!r}"[:300], RESTORE)
    return int(match[1])


def _known_part(document: dict[str, Any]) -> dict[str, Any]:
    """Of a newer format's DOCUMENT what this one has fields for."""

    def only(kind: type[_Known], found: Any) -> Any:
        if not isinstance(found, dict):
            return found  # and is refused as what it is
        return {key: value for key, value in found.items() if key in kind.model_fields}

    out: dict[str, Any] = only(_Ledger, document)
    if isinstance(out.get("entries"), list):
        out["entries"] = [only(_Entry, one) for one in out["entries"]]
    if isinstance(out.get("dates"), dict):
        out["dates"] = {version: only(_Dates, one) for version, one in out["dates"].items()}
    return {**out, "events": []}  # of no use for loading and launching


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
