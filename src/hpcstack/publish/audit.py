"""Check the packages of images against a database of vulnerabilities, and judge by the site's policy.

What could not be checked is named: conda's packages, of which OSV has no records, archives that
the database lacks or that are old, packages that dpkg does not list, versions that cannot be
compared, distributions other than Debian and Ubuntu. So an image is never called clean for want of
looking.
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
from hpcstack.store.contents import read_distribution, read_image_file
from hpcstack.store.package import Package, list_packages, list_packages_elsewhere
from hpcstack.store.package_lists import parse_dpkg_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcstack.site.load import Site
    from hpcstack.site.model import PolicySite, Waiver
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.package import Ecosystem

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


@dataclass(frozen=True)
class Unaudited:
    """What was not checked, in words, and of which ecosystem its packages are.

    `may_pass`: the site can let it pass (policy.unaudited). A database that lacks something or is
    old never passes: it is to be fetched.
    """

    ecosystem: Ecosystem
    what: str
    may_pass: bool = True


@dataclass
class Audit:
    """What is known of one image."""

    artifact: Artifact
    findings: list[Vulnerability] = field(default_factory=list)  # the worst first
    refused: list[Vulnerability] = field(default_factory=list)  # what policy.max_severity refuses
    unknown: list[Unaudited] = field(default_factory=list)

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
    newest: dict[str, str]  # {ecosystem: the day of its newest record}
    records: int
    doubts: list[str]  # about the database
    audits: list[Audit]


def audit_images(artifacts: Sequence[Artifact], site: Site, path: str = "") -> Audits:
    """Check ARTIFACTS against the database in PATH, by default the site's.

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
    database = read_database(Path(path), targets, today)

    for audit, each in zip(audits, subjects, strict=True):
        _judge(audit, each, database, site.policy.waivers, today)
        audit.refused = _list_refused(audit, site.policy)
    doubts = []
    if database.damaged:
        doubts.append(
            f"{format_count(database.damaged, 'record')} of the database cannot be understood"
        )
    return Audits(path, database.newest, database.records, doubts, audits)


def _list_refused(audit: Audit, policy: PolicySite) -> list[Vulnerability]:
    """Return the findings of AUDIT that POLICY refuses: what is worse than it allows, not waived."""
    if not policy.max_severity:
        return []
    limit = SEVERITIES.index(policy.max_severity)
    out = []
    for one in audit.findings:
        is_worse = SEVERITIES.index(one.severity) > limit
        may_be_worse = one.severity == "unknown" and policy.unknown_severity == "refuse"
        if (is_worse or may_be_worse) and not one.waived:
            out.append(one)
    return out


def describe_vulnerabilities(artifacts: Sequence[Artifact], site: Site) -> dict[str, str]:
    """Return {key of an image: what a page or a module says of its known vulnerabilities, today}.

    Empty where the site has no database.
    """
    if not site.audit.database or not artifacts:
        return {}
    today = stamp_today()
    try:
        audits = audit_images(artifacts, site)
    except InputError as error:
        return {one.key: f"UNKNOWN on {today}: {error.message}" for one in artifacts}

    out = {}
    for audit in audits.audits:
        unknown = [one.what for one in audit.unknown] + audits.doubts
        not_checked = f"; UNKNOWN: {'; '.join(unknown[:3])}" if unknown else ""
        out[audit.artifact.key] = f"{audit.describe()} on {today}{not_checked}"
    return out


def explain_shut_gate(artifact: Artifact, site: Site) -> list[str]:
    """Return why the site's policy keeps ARTIFACT from production; empty where it does not.

    A site without `policy.max_severity` has no such gate. Where the audit cannot be made, or leaves
    something out that `policy.unaudited` does not name, the gate stays shut: what nobody looked at
    is not known to be well.
    """
    if not site.policy.max_severity:
        return []
    try:
        audits = audit_images([artifact], site)
    except InputError as error:
        return [f"policy.max_severity: {error}"]
    [audit] = audits.audits

    out = [
        f"{hole.id} of {hole.package.name} {hole.package.version}{hole.package.where} is "
        + ("of unknown severity" if hole.severity == "unknown" else hole.severity)
        + (f", fixed in {hole.fixed}" if hole.fixed != "-" else ", and there is no fix")
        for hole in audit.refused
    ]
    for one in audit.unknown:
        if not (one.may_pass and one.ecosystem in site.policy.unaudited):
            out.append(f"policy.max_severity: not audited: {one.what}")
    return out + [f"policy.max_severity: {one}" for one in audits.doubts]


def _list_subjects(audit: Audit) -> list[Subject]:
    """Return the packages of the image as records name them; note in AUDIT what cannot be."""
    artifact = audit.artifact
    out = []
    elsewhere = list_packages_elsewhere(artifact)
    if elsewhere.doubt:
        audit.unknown.append(Unaudited("other", elsewhere.doubt))
    for package in (*list_packages(artifact), *elsewhere.packages):
        if package.ecosystem == "pypi":
            name = re.sub(r"[-_.]+", "-", package.name).lower()
            out.append(Subject(package, Target("PyPI", name), package.version))
    for one in artifact.unlisted:
        audit.unknown.append(Unaudited("other", one))
    if artifact.other:
        count = format_count(len(artifact.other), "package")
        what = f"{count} of rpm or apk: they are not looked up"
        audit.unknown.append(Unaudited("other", what))
    if artifact.conda:
        what = f"{format_count(len(artifact.conda), 'conda package')}: OSV has no records of them"
        audit.unknown.append(Unaudited("conda", what))
    return out + _list_debian_subjects(audit)


def _list_debian_subjects(audit: Audit) -> list[Subject]:
    """Return the packages of the distribution under their sources' names, as records have them."""
    artifact = audit.artifact
    distribution = read_distribution(artifact.image)
    family = FAMILIES.get(distribution.name, "")
    if not family or not distribution.version:
        name = f"{distribution.name} {distribution.version}".strip()
        what = "which distribution it is of cannot be told"
        if not family:
            what = f"the packages of {name}: only Debian's and Ubuntu's are looked up"
        audit.unknown.append(Unaudited("deb", what))
        return []
    try:
        sources, torn = parse_dpkg_status(read_image_file(artifact.image, STATUS))
    except BuildError as error:
        audit.unknown.append(Unaudited("deb", f"the packages of {family}: {error}"))
        return []

    if torn:
        what = f"{format_count(torn, 'package')}, of which dpkg's status does not say what they are"
        audit.unknown.append(Unaudited("deb", what))

    out = []
    missing = []
    for package in list_packages(artifact):
        if package.ecosystem != "deb":
            continue
        name = package.name.partition(":")[0]
        if name in sources:
            found = sources[name]
            target = Target(family, found.source, distribution.version)
            out.append(Subject(package, target, found.source_version))
        else:
            missing.append(name)
    unlisted = set(sources) - {one.package.name.partition(":")[0] for one in out}
    if missing or unlisted:
        names = ", ".join([*missing, *sorted(unlisted)][:10])
        count = format_count(len(missing) + len(unlisted), "package")
        what = f"{count}: what dpkg lists in the image is not what its build wrote down ({names})"
        audit.unknown.append(Unaudited("deb", what))
    return out


def _judge(
    audit: Audit, subjects: list[Subject], database: Database, waivers: Sequence[Waiver], today: str
) -> None:
    """Add to AUDIT what DATABASE has of SUBJECTS, and of what it has nothing."""
    for ecosystem in sorted({one.target.ecosystem for one in subjects}):
        of_it = [one for one in subjects if one.target.ecosystem == ecosystem]
        doubt = _doubt_records(of_it[0].target, database, today)
        if doubt:
            what = f"{format_count(len(of_it), 'package')} of {doubt}"
            audit.unknown.append(Unaudited(of_it[0].package.ecosystem, what, may_pass=False))

    for subject in subjects:
        hits: list[tuple[Affected, str]] = []
        for affected in database.affected.get(subject.target, ()):
            try:
                fix = affected.find_fix(subject.package.ecosystem, subject.version)
            except ValueError as error:
                what = f"{affected.id} of {subject.package.name}: {error}"
                audit.unknown.append(Unaudited(subject.package.ecosystem, what))
                continue
            if fix is not None:
                hits.append((affected, fix))
        audit.findings += _merge(subject, hits, waivers, today)

    def make_key(one: Vulnerability) -> tuple[int, str, str]:
        return -SEVERITIES.index(one.severity), one.package.name, one.id

    audit.findings.sort(key=make_key)


def _doubt_records(target: Target, database: Database, today: str) -> str:
    """Return why what DATABASE has of the ecosystem of TARGET does not do; empty where it does."""
    name = f"{target.ecosystem}:{target.release}" if target.release else target.ecosystem
    day = database.find_day(target)
    if day is None:
        return f"{name}: the database has no folder of it"
    if not day:
        return f"{name}: no record of it has a day"
    age = (date.fromisoformat(today) - date.fromisoformat(day)).days
    return f"{name}: its newest record is {age} days old" if age > OLD_DAYS else ""


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
        cves = sorted({cve for record in records for cve in record.cves})
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
            waived=_find_waiver(name, ids, cves, waivers, today),
        )


def _doubt(subject: Subject) -> str:
    """Return why the version of SUBJECT may not tell whether the fix is in it."""
    if subject.package.ecosystem == "pypi" and "+" in subject.version:
        return "a build of its own: a fix may be in it that its number does not tell"
    return ""


def _find_waiver(
    name: str, ids: list[str], cves: list[str], waivers: Sequence[Waiver], today: str
) -> str:
    """Return the reason of the waiver that holds TODAY for a finding; empty where none does.

    NAME is the finding's, IDS are those of all its records. A notice of several CVES passes by its
    own name, or where each of its CVEs does.
    """
    holding = {one.id: f"{one.reason} (until {one.until})" for one in waivers if today <= one.until}
    if name in holding:
        return holding[name]
    if len(cves) > 1:
        return holding[cves[0]] if all(cve in holding for cve in cves) else ""
    return next((holding[one] for one in ids if one in holding), "")
