"""`audit` and policy.max_severity: what is known, what is waived, and what nobody looked at."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.errors import AnswerIsNo
from hpcstack.publish.audit import Audit, audit_images, explain_shut_gate
from hpcstack.publish.reports import require_proof
from hpcstack.publish.website import render_pages
from hpcstack.site.model import AuditSite, PolicySite
from hpcstack.store.artifact import Artifact
from support.modules import Place
from support.osv import make_record, read_rows, write_database

TODAY = date.today().isoformat()
NEW = [
    {"id": f"X-new-{ecosystem}", "ecosystem": ecosystem, "name": "nothing", "published": TODAY}
    for ecosystem in ("PyPI", "Ubuntu:24.04:LTS", "Ubuntu:22.04:LTS", "Debian:12")
]
LATER = (date.today() + timedelta(days=30)).isoformat()
BEFORE = (date.today() - timedelta(days=1)).isoformat()


pytestmark = pytest.mark.squashfs
NOBLE = 'ID=ubuntu\nVERSION_ID="24.04"\n'


@pytest.fixture(autouse=True)
def stay_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """The day does not change while these tests run, be it midnight."""
    monkeypatch.setattr("hpcstack.publish.audit.stamp_today", lambda: TODAY)


@functools.cache
def image_of(status: str = "", release: str = NOBLE) -> bytes:
    """A squashfs with an os-release and dpkg's STATUS; without one where it is empty."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        (root / "etc").mkdir(parents=True)
        (root / "etc/os-release").write_text(release)
        (root / "var/lib/dpkg").mkdir(parents=True)
        (root / "var/lib/dpkg/status").write_text(status)
        image = Path(name) / "image.sqsh"
        subprocess.run(["mksquashfs", str(root), str(image), "-quiet", "-no-progress"], check=True)
        return image.read_bytes()


def installed(name: str, version: str, source: str = "") -> str:
    """A stanza of dpkg's status file."""
    lines = [f"Package: {name}", "Status: install ok installed", f"Version: {version}"]
    return "\n".join([*lines, *([f"Source: {source}"] if source else [])]) + "\n\n"


def place_with(tmp_path: Path, *rows: dict[str, Any], **policy: Any) -> Place:
    """A site whose database has all real records, ROWS, and one of today."""
    folder = write_database(
        tmp_path / "osv", [make_record(row) for row in (*read_rows(), *NEW, *rows)]
    )
    return Place(
        tmp_path / "site",
        audit=AuditSite(database=str(folder)),
        policy=PolicySite.model_validate(policy),
    )


def audit_one(place: Place, content: bytes = b"", **holds: Any) -> Audit:
    artifact = place.artifact(place.stack(), content or image_of(), **holds)
    [audit] = audit_images([artifact], place.site).audits
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


@pytest.mark.parametrize(
    ("image", "holds", "ecosystem", "what"),
    [
        (None, {}, "deb", "which distribution it is of cannot be told"),
        (("", "ID=debian\n"), {}, "deb", "which distribution it is of cannot be told"),
        (("", "ID='rocky'\nVERSION_ID='9'\n"), {}, "deb", "the packages of rocky 9: only"),
        (("", NOBLE), {"apt": {"libc6": "2.39"}}, "deb", "1 package: what dpkg lists in the image"),
        (
            (installed("a", "1"), NOBLE),
            {"apt": {}},
            "deb",
            "1 package: what dpkg lists in the image",
        ),
        (
            ("", NOBLE),
            {"conda": {"numpy": "1.0=0"}},
            "conda",
            "1 conda package: OSV has no records",
        ),
        (
            (installed("a", "1"), 'ID=ubuntu\nVERSION_ID="25.10"\n'),
            {"apt": {"a": "1"}},
            "deb",
            "1 package of Ubuntu:25.10: the database has no folder of it",
        ),
    ],
)
def test_what_was_not_looked_at_is_unknown(
    tmp_path: Path,
    image: tuple[str, str] | None,
    holds: dict[str, Any],
    ecosystem: str,
    what: str,
) -> None:
    """IMAGE: (dpkg's status, os-release); None for a file that is no image."""
    content = image_of(*image) if image else b"no image"
    place = place_with(tmp_path, max_severity="high")
    audit = audit_one(place, content, **{"pip": {}, **holds})
    [unknown] = audit.unknown
    assert unknown.ecosystem == ecosystem
    assert unknown.what.startswith(what)

    # it shuts the gate, unless the site says that it may be; a database is to be fetched
    [reason] = explain_shut_gate(audit.artifact, place.site)
    assert "not audited" in reason
    lenient = PolicySite.model_validate({"max_severity": "high", "unaudited": [ecosystem]})
    site = place.site.model_copy(update={"policy": lenient})
    still_shut = explain_shut_gate(audit.artifact, site)
    assert still_shut == ([reason] if "database" in what else [])


def test_debian_packages_are_looked_up_by_their_sources(tmp_path: Path) -> None:
    ours = [row for row in read_rows() if row["ecosystem"] == "Ubuntu:24.04:LTS"]
    row = next(one for one in ours if one.get("fixed"))
    status = installed("libodd3", "1:0.0.1-1+b1", f"{row['name']} (0.0.1-1)") + installed(
        "libown1", "9"
    )
    place = place_with(tmp_path)
    audit = audit_one(
        place, image_of(status), apt={"libodd3": "1:0.0.1-1+b1", "libown1": "9"}, pip={}
    )
    assert audit.unknown == []
    assert row["fixed"] in {one.fixed for one in audit.findings}
    assert {one.package.name for one in audit.findings} == {"libodd3"}


def old_urllib(place: Place) -> Artifact:
    return place.artifact(place.stack(), image_of(), pip={"urllib3": "2.0.4"})


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


def test_a_waiver_of_one_cve_does_not_waive_a_notice_of_two(tmp_path: Path) -> None:
    notice = {"id": "X-1", "aliases": ["CVE-2026-1111", "CVE-2026-2222"], "ecosystem": "PyPI", "name": "odd", "word": "HIGH", "published": TODAY}  # fmt: skip

    def reasons(*ids: str) -> list[str]:
        waivers = [{"id": one, "until": LATER, "reason": "why"} for one in ids]
        folder = tmp_path / "-".join(ids)
        place = place_with(folder, notice, max_severity="low", waivers=waivers)
        artifact = place.artifact(place.stack(), image_of(), pip={"odd": "1"})
        return explain_shut_gate(artifact, place.site)

    assert reasons("CVE-2026-1111") != []
    assert reasons("CVE-2026-1111", "CVE-2026-2222") == []
    assert reasons("X-1") == []


@pytest.mark.parametrize("day", ["2027-02-31", "2027-99-99", "٢٠٢٧-٠١-٠١", "soon"])
def test_a_waiver_needs_a_day_that_is_one(day: str) -> None:
    with pytest.raises(ValueError, match="until"):
        PolicySite.model_validate({"waivers": [{"id": "X-1", "until": day, "reason": "why"}]})


def test_what_nobody_has_rated_is_refused_unless_the_site_lets_it_pass(tmp_path: Path) -> None:
    row = {"id": "X-1", "ecosystem": "PyPI", "name": "odd", "published": TODAY}
    for word, count in (("refuse", 1), ("pass", 0)):
        place = place_with(tmp_path / word, row, max_severity="high", unknown_severity=word)
        artifact = place.artifact(place.stack(), image_of(), pip={"odd": "1"})
        reasons = explain_shut_gate(artifact, place.site)
        assert len(reasons) == count
        assert all("X-1 of odd 1 is of unknown severity" in one for one in reasons)


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
    assert "no such folder" in reason


def test_one_old_archive_or_a_damaged_record_shuts_the_gate(tmp_path: Path) -> None:
    place = place_with(tmp_path, max_severity="high")
    folder = Path(place.site.audit.database)
    artifact = place.artifact(
        place.stack(), image_of(installed("a", "1")), apt={"a": "1"}, pip={"x": "1"}
    )
    assert explain_shut_gate(artifact, place.site) == []

    (folder / "PyPI/odd.json").write_text("{}")
    [reason] = explain_shut_gate(artifact, place.site)
    assert "1 record of the database cannot be understood" in reason
    (folder / "PyPI/odd.json").unlink()

    # a new archive of PyPI does not make Ubuntu's new
    shutil.rmtree(folder / "Ubuntu:24.04:LTS")
    old = {"id": "X-1", "ecosystem": "Ubuntu:24.04:LTS", "name": "x", "published": "2020-01-01"}
    write_database(folder, [make_record(old)])
    [reason] = explain_shut_gate(artifact, place.site)
    assert "1 package of Ubuntu:24.04: its newest record is" in reason


def test_a_release_and_its_page_say_what_is_known(tmp_path: Path) -> None:
    place = place_with(tmp_path)
    done = place.publish(content=image_of(), pip={"urllib3": "2.0.4"})
    text = Path(done.modulefile).read_text()
    assert f"known vulnerabilities: 1 high on {TODAY}" in text.replace("\\", "")
    assert "Tests: none of this image" in text
    pages = render_pages(place.site, place.store)
    assert f"<p>1 high on {TODAY}" in pages["pytorch-24.11.html"]
    assert "Not tested yet." in pages["pytorch-24.11.html"]

    # what becomes known makes no other release of the same image
    again = place.publish(content=image_of(), pip={"urllib3": "2.0.4"})
    assert not again.new
    shutil.rmtree(place.site.audit.database)
    assert "UNKNOWN on" in render_pages(place.site, place.store)["pytorch-24.11.html"]
    assert not place.publish(content=image_of(), pip={"urllib3": "2.0.4"}).new
