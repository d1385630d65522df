"""Vulnerabilities of packages, read from records of OSV that the site has as files.

The form: https://ossf.github.io/osv-schema/. OSV publishes an archive for each ecosystem:
https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip, .../Ubuntu:24.04:LTS/all.zip. A
database is a folder with a folder for each ecosystem, named as OSV names it, in which its archive
or its records (*.json) lie. Nothing is asked of the network.

What the database covers is told by these names alone: a record names every release that it is
about, also those whose archive is not there.

Debian's and Ubuntu's records name source packages, PyPI's names are in small letters. Records are
from anywhere: each is bounded, and one that is not in the form is counted, not believed.
"""

from __future__ import annotations

import functools
import json
import lzma
import re
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from hpcstack.core.budget import Budget
from hpcstack.core.errors import InputError
from hpcstack.store.package import Package, compare_versions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.store.package import Ecosystem

MAX_RECORD = 16 << 20  # bytes of one record
MAX_RECORDS = 2_000_000
MAX_EVENTS = 1000  # of one range
TEXT = 64  # characters that are counted as one entry
MAX_NAME = 500  # characters of a name or a version
MAX_NAMED = 10_000  # versions, ranges and names that one record has of one package
# Of all records together: bytes that are read, and versions, ranges and names that are kept.
MAX_BYTES, MAX_KEPT = 16 << 30, 5_000_000
# from harmless to worst; what no record says of is `unknown`
SEVERITIES = ("unknown", "negligible", "low", "medium", "high", "critical")
# what a record can be unreadable by, and an archive
NOT_IN_THE_FORM = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
BROKEN_ARCHIVE = (
    OSError,
    EOFError,
    RuntimeError,  # one that is encrypted
    NotImplementedError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    lzma.LZMAError,
)
MALICIOUS = "MAL-"  # how the ids of packages begin that were made to do harm
WORDS = {
    "moderate": "medium",
    "important": "high",
    "none": "negligible",
    "unimportant": "negligible",  # Debian's urgency
}
# keys of what a database says of a package on its own: Debian's, GitHub's, Ubuntu's until 2025
OWN_WORDS = ("urgency", "severity", "ubuntu_priority")
OF_A_CVE = re.compile(r"(?:[A-Z]+-)?(CVE-\d{4}-\d{4,})")


@dataclass(frozen=True)
class Target:
    """What records are looked for: a package's name in an ecosystem, as OSV spells both.

    RELEASE is that of the distribution, `24.04`; empty where the ecosystem has none.
    """

    ecosystem: str  # PyPI, Ubuntu, Debian
    name: str
    release: str = ""


@dataclass(frozen=True)
class Affected:
    """What a record says of one package."""

    id: str
    aliases: frozenset[str]  # the record's own id among them
    severity: str  # see `SEVERITIES`
    published: str  # the day
    summary: str
    versions: frozenset[str]
    ranges: tuple[tuple[tuple[str, str], ...], ...]  # of each, its events: (introduced, 1.2)

    def count_entries(self) -> int:
        """Return how many versions, events and names are kept of it; a long one counts as several.

        One is about a hundred bytes of memory.
        """
        events = [mark for one in self.ranges for _, mark in one]
        texts = (*self.aliases, *self.versions, *events)
        return 1 + sum(1 + len(text) // TEXT for text in texts)

    @property
    def cves(self) -> list[str]:
        """The CVEs that it is of. Distributions put a word before a CVE: `UBUNTU-CVE-2026-1234`."""
        found = (OF_A_CVE.fullmatch(one) for one in self.aliases)
        return sorted({match[1] for match in found if match})

    def find_fix(self, ecosystem: Ecosystem, version: str) -> str | None:
        """Return the version that mends VERSION, `-` where none does; None where it is not affected.

        Raise ValueError where VERSION cannot be compared.
        """
        for events in self.ranges:
            fix = _find_fix_in_range(ecosystem, version, events)
            if fix is not None:
                return fix
        package = Package(ecosystem, "", version)
        if version in self.versions or any(_is_equal(package, one) for one in self.versions):
            return "-"
        return None


@dataclass
class Database:
    """The records of the targets that were asked for."""

    affected: dict[Target, list[Affected]] = field(default_factory=lambda: defaultdict(list))
    # {ecosystem that it covers: the day on which its newest record was changed}
    newest: dict[str, str] = field(default_factory=dict)
    records: int = 0
    damaged: int = 0  # records that are not in the form

    def find_day(self, target: Target) -> str | None:
        """Return the day of the newest record of the ecosystem of TARGET, of that release of it.

        None where the database does not cover it.
        """
        # OSV also has an archive of all releases of a distribution, under its name alone
        days = [
            day
            for one, day in self.newest.items()
            if one == target.ecosystem or _is_of(one, target)
        ]
        return max(days, default=None)


def read_database(path: Path, targets: set[Target], today: str) -> Database:
    """Return what the database in PATH has of TARGETS. InputError where there is none.

    Records that claim to be of a day after TODAY do not make it newer.
    """
    out = Database()
    budget = Budget(
        str(path), InputError, "look who wrote it: osv.dev's own is smaller", MAX_BYTES, MAX_KEPT
    )
    wanted: dict[tuple[str, str], list[Target]] = defaultdict(list)
    for target in targets:
        wanted[target.ecosystem, target.name].append(target)

    try:
        for covered, content in _read_records(path):
            out.newest.setdefault(covered, "")
            out.records += 1
            budget.take_bytes(len(content))
            if out.records > MAX_RECORDS:
                raise InputError(f"{path} has more than {MAX_RECORDS} records", page="audit-images")
            try:
                record = json.loads(content)
                day = date.fromisoformat(str(record["modified"])[:10]).isoformat()
                if out.newest[covered] < day <= today:
                    out.newest[covered] = day
                _take_record(record, wanted, out, budget)
            except NOT_IN_THE_FORM:
                out.damaged += 1
    except BROKEN_ARCHIVE as error:
        raise InputError(
            f"{path} cannot be read: {error}",
            "it is a folder of OSV's archives",
            page="audit-images",
        ) from None
    if not out.records:
        raise InputError(
            f"{path} has no records of OSV",
            "it has a folder for each ecosystem, such as PyPI, with its all.zip",
            page="audit-images",
        )
    return out


def _read_records(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (the ecosystem whose folder it lies in, the record) of each record below PATH."""
    if not path.is_dir():
        raise InputError(
            f"{path}: no such folder",
            "fetch https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip into it",
            page="audit-images",
        )
    for file in sorted(path.rglob("*")):
        if file.suffix in (".zip", ".json") and file.is_file():
            for content in _read_file(file):
                yield file.parent.name, content


def _read_file(path: Path) -> Iterator[bytes]:
    """Yield the records in the file PATH; one that is too large is yielded empty."""
    if path.suffix == ".json":
        yield b"" if path.stat().st_size > MAX_RECORD else path.read_bytes()
        return
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".json"):
                continue
            with archive.open(member) as opened:
                # the size in the archive's list may not be true
                content = opened.read(MAX_RECORD + 1)
            yield b"" if len(content) > MAX_RECORD else content


def _take_record(
    record: dict[str, Any],
    wanted: dict[tuple[str, str], list[Target]],
    out: Database,
    budget: Budget,
) -> None:
    """Add to OUT what RECORD says of what is WANTED, as far as BUDGET reaches."""
    withdrawn = bool(record.get("withdrawn"))
    for row in record.get("affected") or ():
        package = row.get("package")
        if not package:
            continue  # of a repository alone
        ecosystem = str(package["ecosystem"])
        family = ecosystem.partition(":")[0]
        for target in wanted.get((family, _spell(family, str(package["name"]))), ()):
            if not withdrawn and _is_of(ecosystem, target):
                affected = _make_affected(record, row)
                budget.take_entries(affected.count_entries())
                out.affected[target].append(affected)


def _spell(family: str, name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower() if family == "PyPI" else name


def _is_of(ecosystem: str, target: Target) -> bool:
    """Whether ECOSYSTEM, such as `Ubuntu:24.04:LTS`, is that of TARGET.

    Others of the same release are others: `Ubuntu:Pro:24.04:LTS` is of packages that only
    subscribers get, and there are some of single devices.
    """
    if not target.release:
        return ecosystem == target.ecosystem
    own = f"{target.ecosystem}:{target.release}"
    return ecosystem in (own, f"{own}:LTS")


def _make_affected(record: dict[str, Any], row: dict[str, Any]) -> Affected:
    names = [str(record["id"]), *(record.get("aliases") or ()), *(record.get("upstream") or ())]
    if names[0].startswith("USN-"):
        names += record.get("related") or ()  # where older notices of Ubuntu's have their CVEs
    versions = row.get("versions") or ()
    if max(len(names), len(versions), len(row.get("ranges") or ())) > MAX_NAMED:
        raise ValueError("more versions, ranges or names than any record has")
    ranges = []
    for one in row.get("ranges") or ():
        if one["type"] not in ("ECOSYSTEM", "SEMVER"):
            continue  # commits of a repository
        if len(one["events"]) > MAX_EVENTS:
            raise ValueError("a range of more events than any has")
        events = [
            (str(what)[:MAX_NAME], str(version)[:MAX_NAME])
            for event in one["events"]
            for what, version in event.items()
        ]
        ranges.append(tuple(events))
    return Affected(
        id=str(record["id"]),
        aliases=frozenset(str(name)[:MAX_NAME] for name in names),
        severity=_read_severity_safely(record, row),
        published=str(record.get("published") or record["modified"])[:10],
        summary=str(record.get("summary") or record.get("details") or "")[:200],
        versions=frozenset(str(version)[:MAX_NAME] for version in versions),
        ranges=tuple(ranges),
    )


def _read_severity_safely(record: dict[str, Any], row: dict[str, Any]) -> str:
    """Return the same; `unknown` where what says it is not in the form: the rest still counts."""
    if str(record["id"]).startswith(MALICIOUS):
        return SEVERITIES[-1]
    try:
        return _read_severity(record, row)
    except NOT_IN_THE_FORM:
        return "unknown"


def _read_severity(record: dict[str, Any], row: dict[str, Any]) -> str:
    """Return how severe RECORD is for the package of ROW: a word of `SEVERITIES`.

    A distribution's own word counts before the vector, for which its way of building is unknown.
    """
    in_row = [row.get("ecosystem_specific") or {}, row.get("database_specific") or {}]
    rows = [*(row.get("severity") or ()), *(record.get("severity") or ())]
    for part in in_row:
        # a notice of Ubuntu's has the severities of its CVEs
        cves = (part.get("cves_map") or {}).get("cves", ())
        rows += [one for cve in cves for one in cve.get("severity") or ()]

    words = [str(one["score"]) for one in rows if one["type"] == "Ubuntu"]
    words = sorted(words, key=_rank_word, reverse=True)
    for part in in_row:
        words += [str(part[key]) for key in OWN_WORDS if key in part]
    own = record.get("database_specific") or {}
    words += [str(own["severity"])] if "severity" in own else []
    for word in words:
        if _rank_word(word) > 0:
            return SEVERITIES[_rank_word(word)]

    found = [_rate_vector(str(one["type"]), str(one["score"])) for one in rows]
    return max(found, key=SEVERITIES.index, default="unknown")


def _rank_word(word: str) -> int:
    """Return the place of WORD in `SEVERITIES`; 0 for one that is not there."""
    small = WORDS.get(word.lower(), word.lower())
    return SEVERITIES.index(small) if small in SEVERITIES else 0


def _rate_vector(kind: str, vector: str) -> str:
    """Return what VECTOR, a text of CVSS, comes to."""
    import cvss

    try:
        if kind == "CVSS_V4":
            word = cvss.CVSS4(vector).severity
        elif kind == "CVSS_V3":
            word = cvss.CVSS3(vector).severities()[0]
        elif kind == "CVSS_V2":
            word = cvss.CVSS2(vector).severities()[0]
        else:
            return "unknown"
    except cvss.CVSSError:
        return "unknown"
    return SEVERITIES[_rank_word(str(word))]


def _find_fix_in_range(
    ecosystem: Ecosystem, version: str, events: tuple[tuple[str, str], ...]
) -> str | None:
    """Return the version that mends VERSION, if it lies in the range of EVENTS; `-` for none.

    As https://ossf.github.io/osv-schema/#evaluation has it. Raise ValueError where a version cannot
    be compared.
    """
    affected = False
    fixes = []
    for what, mark in _sort_events(ecosystem, events):
        order = 1 if mark == "0" else compare_versions(ecosystem, version, mark)
        if order is None:
            raise ValueError(f"{version[:80]} and {mark[:80]} cannot be compared")
        if what == "introduced" and order >= 0:
            affected = True
        elif what == "fixed":
            if order >= 0:
                affected = False
            else:
                fixes.append(mark)
        elif what == "last_affected" and order > 0:
            affected = False
    if not affected:
        return None
    return fixes[0] if fixes else "-"


def _sort_events(
    ecosystem: Ecosystem, events: tuple[tuple[str, str], ...]
) -> list[tuple[str, str]]:
    """Return EVENTS in the order of their versions. Raise ValueError where they have none."""

    def compare(left: tuple[str, str], right: tuple[str, str]) -> int:
        if "0" in (left[1], right[1]):  # it stands for the first version of all
            return (left[1] != "0") - (right[1] != "0")
        order = compare_versions(ecosystem, left[1], right[1])
        if order is None:
            raise ValueError(f"{left[1][:80]} and {right[1][:80]} cannot be compared")
        return order

    return sorted(events, key=functools.cmp_to_key(compare))


def _is_equal(package: Package, version: str) -> bool:
    return compare_versions(package.ecosystem, package.version, version) == 0
