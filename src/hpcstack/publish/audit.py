"""Hold the packages of images against a database of vulnerabilities, and judge by the site's policy.

What could not be held against it is named: conda's packages, of which OSV has no records, archives
that the database lacks, versions that cannot be compared. So an image is never called clean for
want of looking.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import BuildError, InputError, format_count
from hpcstack.publish.osv import SEVERITIES, Affected, Database, Target, read_database
from hpcstack.releases.inputs import stamp_today
from hpcstack.store.contents import Distribution, read_distribution, read_image_file
from hpcstack.store.package import Package, list_packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcstack.site.load import Site
    from hpcstack.site.model import Waiver
    from hpcstack.store.artifact import Artifact

STATUS = "var/lib/dpkg/status"
FAMILIES = {"ubuntu": "Ubuntu", "debian": "Debian"}
OLD_DAYS = 30  # a database whose newest record is older is said to be old


@dataclass(frozen=True)
class Subject:
    """A package of an image, and under which name and version its records would have it."""

    package: Package
    target: Target
    version: str


@dataclass(frozen=True)
class Vulnerability:
    """A vulnerability of a package of an image."""

    id: str  # a CVE's where it has one
    ids: tuple[str, ...]  # of all records of it
    package: Package
    severity: str
    fixed: str  # in which version; `-` for none
    published: str
    summary: str
    note: str = ""  # what makes it doubtful
    waived: str = ""  # the site's reason to let it pass, while its day has not come


@dataclass
class Audit:
    """What is known of one image."""

    artifact: Artifact
    findings: list[Vulnerability] = field(default_factory=list)  # the worst first
    refused: list[Vulnerability] = field(default_factory=list)  # what policy.max_severity refuses
    unknown: list[str] = field(default_factory=list)  # what was not held against the database

    def count(self) -> dict[str, int]:
        """Return {severity: findings of it that nobody waived}, the worst first."""
        counts = Counter(one.severity for one in self.findings if not one.waived)
        return {word: counts[word] for word in reversed(SEVERITIES) if counts[word]}

    def describe(self) -> str:
        """Return the counts in words: `1 critical, 3 high`."""
        return ", ".join(f"{count} {word}" for word, count in self.count().items()) or "none"


@dataclass
class Audits:
    """The audits of several images against one database."""

    database: str
    newest: str  # the day of its newest record
    records: int
    damaged: int
    today: str
    audits: list[Audit]

    def warn_of_age(self) -> str:
        """Return that the database is old; empty where it is not."""
        try:
            age = (date.fromisoformat(self.today) - date.fromisoformat(self.newest)).days
        except ValueError:
            return "the day of the database is not known"
        return f"the database is {age} days old" if age > OLD_DAYS else ""


def audit_images(artifacts: Sequence[Artifact], site: Site, path: str = "") -> Audits:
    """Hold ARTIFACTS against the database in PATH, by default the site's.

    InputError where there is none.
    """
    today = stamp_today()
    path = path or site.audit.database
    if not path:
        raise InputError(
            "this site has no database of vulnerabilities",
            "audit.database in site.yaml, or --database FOLDER",
            page="audit-images",
        )
    audits = [Audit(one) for one in artifacts]
    subjects = [_list_subjects(audit) for audit in audits]
    targets = {one.target for each in subjects for one in each}
    database = read_database(Path(path), targets)

    for audit, each in zip(audits, subjects, strict=True):
        _judge(audit, each, database, site.policy.waivers, today)
        audit.refused = _list_refused(audit, site.policy.max_severity)
    return Audits(path, database.newest, database.records, database.damaged, today, audits)


def _list_refused(audit: Audit, most: str) -> list[Vulnerability]:
    """Return the findings of AUDIT that are worse than the severity MOST, and not waived.

    None where MOST is empty.
    """
    if not most:
        return []
    limit = SEVERITIES.index(most)
    return [
        one for one in audit.findings if not one.waived and SEVERITIES.index(one.severity) > limit
    ]


def explain_shut_gate(artifact: Artifact, site: Site) -> list[str]:
    """Return why the site's policy keeps ARTIFACT from production; empty where it does not.

    A site without `policy.max_severity` has no such gate. Where the audit cannot be made, or leaves
    an archive out, the gate stays shut: what nobody looked at is not known to be well.
    """
    if not site.policy.max_severity:
        return []
    try:
        audits = audit_images([artifact], site)
    except InputError as error:
        return [f"policy.max_severity: {error}"]
    [audit] = audits.audits

    out = [
        f"{one.id} of {one.package.name} {one.package.version} is {one.severity}"
        + (f", fixed in {one.fixed}" if one.fixed != "-" else ", and there is no fix")
        for one in audit.refused
    ]
    out += [f"policy.max_severity: {one}" for one in audit.unknown]
    age = audits.warn_of_age()
    if age:
        out.append(f"policy.max_severity: {age}")
    return out


def _list_subjects(audit: Audit) -> list[Subject]:
    """Return the packages of the image as records name them; note in AUDIT what cannot be."""
    artifact = audit.artifact
    distribution = read_distribution(artifact.image)
    family = FAMILIES.get(distribution.name, "")
    sources: dict[str, tuple[str, str]] = {}
    if artifact.apt and family:
        try:
            sources = parse_status(read_image_file(artifact.image, STATUS))
        except BuildError as error:
            audit.unknown.append(f"its Debian packages: {error}")
    elif artifact.apt:
        audit.unknown.append(
            f"its {format_count(len(artifact.apt), 'package')} of {distribution.name}"
        )
    if artifact.conda:
        audit.unknown.append(
            f"its {format_count(len(artifact.conda), 'conda package')}: OSV has no records of them"
        )

    out = []
    for package in list_packages(artifact):
        if package.ecosystem == "pypi":
            name = re.sub(r"[-_.]+", "-", package.name).lower()
            out.append(Subject(package, Target("PyPI", name), package.version))
        elif package.ecosystem == "deb" and sources:
            out.append(_make_debian_subject(package, sources, family, distribution))
    return out


def _make_debian_subject(
    package: Package, sources: dict[str, tuple[str, str]], family: str, distribution: Distribution
) -> Subject:
    """Return PACKAGE under the name of its source. What dpkg does not list is its own source."""
    name = package.name.partition(":")[0]
    source, version = sources.get(name, (name, package.version))
    return Subject(package, Target(family, source, distribution.version), version)


def parse_status(text: str) -> dict[str, tuple[str, str]]:
    """Return {package: (its source, the source's version)} of TEXT, dpkg's status file.

    https://man7.org/linux/man-pages/man5/deb-control.5.html, `Source`
    """
    out = {}
    for stanza in text.split("\n\n"):
        found = re.findall(r"^(Package|Version|Source): *(\S.*)$", stanza, re.MULTILINE)
        fields: dict[str, str] = dict(found)
        name, version = fields.get("Package"), fields.get("Version")
        if not name or not version:
            continue
        match = re.fullmatch(r"(\S+)(?: \((\S+)\))?\s*", fields.get("Source", name))
        if match:
            out[name] = (match[1], match[2] or version)
    return out


def _judge(
    audit: Audit, subjects: list[Subject], database: Database, waivers: Sequence[Waiver], today: str
) -> None:
    """Add to AUDIT what DATABASE has of SUBJECTS, and of what it has nothing."""
    for ecosystem in sorted({one.target.ecosystem for one in subjects}):
        of_it = [one for one in subjects if one.target.ecosystem == ecosystem]
        if not any(database.has(one.target) for one in of_it):
            release = of_it[0].target.release
            name = f"{ecosystem}:{release}" if release else ecosystem
            audit.unknown.append(
                f"its {format_count(len(of_it), 'package')} of {name}: the database has no records "
                "of it"
            )

    for subject in subjects:
        hits: list[tuple[Affected, str]] = []
        for affected in database.affected.get(subject.target, ()):
            try:
                fix = affected.find_fix(subject.package.ecosystem, subject.version)
            except ValueError as error:
                audit.unknown.append(f"{affected.id} of {subject.package.name}: {error}")
                continue
            if fix is not None:
                hits.append((affected, fix))
        audit.findings += _merge(subject, hits, waivers, today)

    def make_key(one: Vulnerability) -> tuple[int, str, str]:
        return -SEVERITIES.index(one.severity), one.package.name, one.id

    audit.findings.sort(key=make_key)


def _merge(
    subject: Subject, hits: list[tuple[Affected, str]], waivers: Sequence[Waiver], today: str
) -> Iterable[Vulnerability]:
    """Yield one finding for each vulnerability in HITS: several records may be of the same.

    A notice that is of several CVEs is left out where each of these has a record of its own.
    """
    single = {one.cves[0] for one, _ in hits if len(one.cves) == 1}
    groups: dict[str, list[tuple[Affected, str]]] = {}
    for affected, fix in hits:
        cves = affected.cves
        if len(cves) > 1 and set(cves) <= single:
            continue
        if len(cves) > 1:
            name = affected.id
        else:
            name = cves[0] if cves else min(affected.aliases)
        groups.setdefault(name, []).append((affected, fix))

    for name, group in groups.items():
        records = [affected for affected, _ in group]
        fixes = [fix for _, fix in group if fix != "-"]
        ids = sorted({one for record in records for one in record.aliases})
        yield Vulnerability(
            id=name,
            ids=tuple(ids),
            package=subject.package,
            severity=max((one.severity for one in records), key=SEVERITIES.index),
            fixed=fixes[0] if fixes else "-",
            published=min(one.published for one in records),
            summary=next((one.summary for one in records if one.summary), ""),
            note=_doubt(subject),
            waived=_find_waiver(ids, waivers, today),
        )


def _doubt(subject: Subject) -> str:
    """Return why the version of SUBJECT may not tell whether the fix is in it."""
    if subject.package.ecosystem == "pypi" and "+" in subject.version:
        return "a build of its own: a fix may be in it that its number does not tell"
    return ""


def _find_waiver(ids: list[str], waivers: Sequence[Waiver], today: str) -> str:
    """Return the reason of the waiver that holds TODAY for one of IDS; empty where none does."""
    for waiver in waivers:
        if waiver.id in ids and today <= waiver.until:
            return f"{waiver.reason} (until {waiver.until})"
    return ""
