"""`audit` and policy.max_severity: what is known, what is waived, and what nobody looked at."""

from __future__ import annotations

import subprocess
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.errors import AnswerIsNo
from hpcstack.publish.audit import Audit, audit_images, explain_shut_gate, parse_status
from hpcstack.publish.reports import require_proof
from hpcstack.site.model import AuditSite, PolicySite
from hpcstack.store.artifact import Artifact
from support.modules import Place
from support.osv import make_record, read_rows, write_database

TODAY = date.today().isoformat()
NEW = {"id": "X-new", "ecosystem": "PyPI", "name": "nothing", "published": TODAY}
LATER = (date.today() + timedelta(days=30)).isoformat()
BEFORE = (date.today() - timedelta(days=1)).isoformat()


def place_with(tmp_path: Path, *rows: dict[str, Any], **policy: Any) -> Place:
    """A site whose database has all real records, ROWS, and one of today."""
    folder = write_database(
        tmp_path / "osv", [make_record(row) for row in (*read_rows(), NEW, *rows)]
    )
    return Place(
        tmp_path / "site",
        audit=AuditSite(database=str(folder)),
        policy=PolicySite.model_validate(policy),
    )


def audit_one(place: Place, **holds: Any) -> Audit:
    [audit] = audit_images([place.artifact(place.stack(), **holds)], place.site).audits
    return audit


def test_a_vulnerable_package_is_named_with_its_fix(tmp_path: Path) -> None:
    place = place_with(tmp_path)
    audit = audit_one(place, pip={"urllib3": "2.0.4", "certifi": "2030.1.1", "x-own": "1.0"})
    assert audit.unknown == []
    found = {one.id: one for one in audit.findings}
    hole = found["CVE-2023-43804"]
    assert (hole.package.name, hole.severity, hole.fixed) == ("urllib3", "high", "2.0.6")
    assert "PYSEC-2023-192" in hole.ids
    assert {one.package.name for one in audit.findings} == {"urllib3"}


def test_nvidias_own_build_is_doubtful(tmp_path: Path) -> None:
    audit = audit_one(place_with(tmp_path), pip={"torch": "2.2.0a0+81ea7a4"})
    [hole] = [one for one in audit.findings if one.id == "CVE-2024-31583"]
    assert "a build of its own" in hole.note


def test_two_records_of_one_cve_are_one_and_a_notice_of_several_is_left_out(
    tmp_path: Path,
) -> None:
    def row(id_: str, *aliases: str, word: str = "LOW") -> dict[str, Any]:
        return {"id": id_, "aliases": list(aliases), "ecosystem": "PyPI", "name": "odd", "fixed": "2", "word": word, "published": TODAY}  # fmt: skip

    place = place_with(
        tmp_path,
        row("GHSA-1", "CVE-2026-1111"),
        row("PYSEC-1", "CVE-2026-1111", word="HIGH"),
        row("GHSA-2", "CVE-2026-2222"),
        row("NOTICE-1", "CVE-2026-1111", "CVE-2026-2222"),
        row("NOTICE-2", "CVE-2026-1111", "CVE-2026-3333"),
    )
    audit = audit_one(place, pip={"odd": "1"})
    assert [(one.id, one.severity) for one in audit.findings] == [
        ("CVE-2026-1111", "high"),
        ("CVE-2026-2222", "low"),
        ("NOTICE-2", "low"),
    ]
    assert audit.count() == {"high": 1, "low": 2}


def test_what_was_not_looked_at_is_unknown(tmp_path: Path) -> None:
    place = place_with(tmp_path)
    audit = audit_one(
        place, pip={"x": "odd"}, apt={"libc6": "2.39-0ubuntu8"}, conda={"numpy": "1.0=0"}
    )
    said = "\n".join(audit.unknown)
    assert "its Debian packages: the image" in said
    assert "1 conda package: OSV has no records of them" in said


@pytest.mark.squashfs
def test_debian_packages_are_held_against_their_sources(tmp_path: Path) -> None:
    rows = [
        row for row in read_rows() if row["ecosystem"] == "Ubuntu:24.04:LTS" and row.get("fixed")
    ]
    row = rows[0]
    place = place_with(tmp_path)
    root = tmp_path / "root"
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    (root / "var/lib/dpkg/status").write_text(
        "Package: libodd3\nStatus: install ok installed\nVersion: 1:0.0.1-1+b1\n"
        f"Source: {row['name']} (0.0.1-1)\n\n"
        "Package: libown1\nStatus: install ok installed\nVersion: 9\n"
    )
    image = tmp_path / "image.sqsh"
    subprocess.run(["mksquashfs", str(root), str(image), "-quiet", "-no-progress"], check=True)
    artifact = place.artifact(
        place.stack(), image.read_bytes(), apt={"libodd3": "1:0.0.1-1+b1", "libown1": "9"}, pip={}
    )
    [audit] = audit_images([artifact], place.site).audits
    assert audit.unknown == []
    assert row["fixed"] in {one.fixed for one in audit.findings}
    assert {one.package.name for one in audit.findings} == {"libodd3"}


def test_dpkgs_status_names_sources() -> None:
    text = (
        "Package: a\nVersion: 1\nSource: s\n\nPackage: b\nSource: t (2)\nVersion: 2+b1\n\n"
        "Package: c\nVersion: 3\nDescription: x\n Source: not this\n\nPackage: torn\n"
    )
    assert parse_status(text) == {"a": ("s", "1"), "b": ("t", "2"), "c": ("c", "3")}


def old_urllib(place: Place) -> Artifact:
    return place.artifact(place.stack(), pip={"urllib3": "2.0.4"})


def test_the_policy_shuts_the_gate(tmp_path: Path) -> None:
    place = place_with(tmp_path, max_severity="medium")
    artifact = old_urllib(place)
    reasons = explain_shut_gate(artifact, place.site)
    assert "CVE-2023-43804 of urllib3 2.0.4 is high, fixed in 2.0.6" in reasons
    with pytest.raises(AnswerIsNo, match="CVE-2023-43804 of urllib3"):
        require_proof(place.stack(), artifact, place.site, [], "")
    _, override = require_proof(place.stack(), artifact, place.site, [], "we know")
    assert override == "we know"


def test_what_the_policy_allows_passes(tmp_path: Path) -> None:
    place = place_with(tmp_path, max_severity="high")
    assert explain_shut_gate(old_urllib(place), place.site) == []
    assert (
        explain_shut_gate(old_urllib(Place(tmp_path / "other")), Place(tmp_path / "other").site)
        == []
    )


def test_a_waiver_holds_until_its_day(tmp_path: Path) -> None:
    def reasons(until: str, name: str) -> list[str]:
        waivers = [
            {"id": id_, "until": until, "reason": "no cookies here"}
            for row in read_rows()
            if row["name"] == "urllib3"
            for id_ in (row["id"],)
        ]
        place = place_with(tmp_path / name, max_severity="low", waivers=waivers)
        return explain_shut_gate(old_urllib(place), place.site)

    assert reasons(LATER, "later") == []
    assert reasons(TODAY, "today") == []
    assert reasons(BEFORE, "before") != []


def test_without_a_database_the_gate_stays_shut(tmp_path: Path) -> None:
    place = Place(tmp_path / "site", policy=PolicySite(max_severity="high"))
    [reason] = explain_shut_gate(old_urllib(place), place.site)
    assert "this site has no database of vulnerabilities" in reason

    gone = Place(
        tmp_path / "gone",
        policy=PolicySite(max_severity="high"),
        audit=AuditSite(database=str(tmp_path / "none")),
    )
    [reason] = explain_shut_gate(old_urllib(gone), gone.site)
    assert "does not exist" in reason


def test_an_old_database_shuts_the_gate(tmp_path: Path) -> None:
    folder = write_database(tmp_path / "osv", [make_record(row) for row in read_rows()])
    place = Place(
        tmp_path / "site",
        policy=PolicySite(max_severity="high"),
        audit=AuditSite(database=str(folder)),
    )
    newest = max(str(row["published"])[:10] for row in read_rows())
    if (date.today() - date.fromisoformat(newest)).days > 30:
        assert any("days old" in one for one in explain_shut_gate(old_urllib(place), place.site))
