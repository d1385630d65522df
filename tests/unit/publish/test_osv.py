"""Records of OSV: thirty real ones are read, ranges are evaluated, nonsense is counted."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.publish.osv import Affected, Target, read_database
from hpcstack.store.package import compare_versions
from support.osv import make_record, read_rows, write_database

ROWS = read_rows()


def target_of(row: dict[str, Any]) -> Target:
    family, _, rest = row["ecosystem"].partition(":")
    return Target(family, row["name"], rest.partition(":")[0])


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_database(tmp_path_factory.mktemp("osv"), [make_record(row) for row in ROWS])


def test_there_are_records_of_each_kind() -> None:
    assert len(ROWS) >= 30
    assert {row["ecosystem"].partition(":")[0] for row in ROWS} == {"PyPI", "Ubuntu", "Debian"}
    assert any(row.get("ranges") for row in ROWS)
    assert any(row.get("withdrawn") for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_record_is_of_the_versions_that_it_names(row: dict[str, Any], database: Path) -> None:
    target = target_of(row)
    ecosystem = "pypi" if target.ecosystem == "PyPI" else "deb"
    found = read_database(database, {target})
    those = [one for one in found.affected[target] if one.id == row["id"]]
    if row.get("withdrawn"):
        assert those == []
        return
    [one] = those
    assert row["id"] in one.aliases

    for part in row.get("ranges") or [row]:
        introduced = str(part.get("introduced", "0"))
        first = "0.0.0.1" if introduced == "0" else introduced
        fixed = str(part.get("fixed") or "")
        last = str(part.get("last_affected") or "")
        assert one.find_fix(ecosystem, first) == (fixed or "-")  # type: ignore[arg-type]
        if last:
            assert one.find_fix(ecosystem, last) == "-"  # type: ignore[arg-type]
        if fixed:
            assert one.find_fix(ecosystem, fixed) is None  # type: ignore[arg-type]


def test_severity_is_of_the_distribution_then_of_the_vector(tmp_path: Path) -> None:
    high = {"type": "CVSS_V3", "score": "CVSS:3.1/AV:N/AC:L/PR:L/UI:N/S:U/C:H/I:H/A:N"}
    critical = {"type": "CVSS_V4", "score": "CVSS:4.0/AV:N/AC:L/AT:N/PR:N/UI:N/VC:H/VI:H/VA:H/SC:N/SI:N/SA:N"}  # fmt: skip
    ubuntu = {"type": "Ubuntu", "score": "medium"}
    odd = {"type": "CVSS_V3", "score": "CVSS:nonsense"}
    cases: list[tuple[list[dict[str, str]], dict[str, Any], str]] = [
        ([high], {}, "high"),
        ([high, critical], {}, "critical"),
        ([high, ubuntu], {}, "medium"),
        ([odd], {}, "unknown"),
        ([], {}, "unknown"),
        ([], {"database_specific": {"severity": "MODERATE"}}, "medium"),
        ([high, {"type": "Ubuntu", "score": "low"}, ubuntu], {}, "medium"),
        ([high], {"database_specific": {"severity": "not yet assigned"}}, "high"),
    ]
    row = {"id": "X-1", "ecosystem": "PyPI", "name": "x", "published": "2026-01-01"}
    for number, (severity, more, expected) in enumerate(cases):
        record = {**make_record(row), **more, "severity": severity}
        folder = write_database(tmp_path / str(number), [record])
        target = Target("PyPI", "x")
        [one] = read_database(folder, {target}).affected[target]
        assert one.severity == expected, (severity, more)


def test_names_releases_and_subscriptions(tmp_path: Path) -> None:
    def row(ecosystem: str, name: str) -> dict[str, Any]:
        return make_record({"id": f"X-{ecosystem}-{name}", "ecosystem": ecosystem, "name": name, "published": "2026-01-01"})  # fmt: skip

    folder = write_database(
        tmp_path,
        [
            row("PyPI", "Typing_Extensions"),
            row("Ubuntu:24.04:LTS", "openssl"),
            row("Ubuntu:22.04:LTS", "openssl"),
            row("Ubuntu:Pro:24.04:LTS", "openssl"),
        ],
    )
    typing, noble, jammy = Target("PyPI", "typing-extensions"), Target("Ubuntu", "openssl", "24.04"), Target("Ubuntu", "openssl", "22.04")  # fmt: skip
    found = read_database(folder, {typing, noble, jammy})
    assert [one.id for one in found.affected[typing]] == ["X-PyPI-Typing_Extensions"]
    assert [one.id for one in found.affected[noble]] == ["X-Ubuntu:24.04:LTS-openssl"]
    assert [one.id for one in found.affected[jammy]] == ["X-Ubuntu:22.04:LTS-openssl"]
    assert found.has(noble)
    assert not found.has(Target("Debian", "openssl", "12"))
    assert not found.has(Target("Ubuntu", "openssl", "25.10"))


def test_what_is_not_in_the_form_is_counted(tmp_path: Path) -> None:
    good = make_record({"id": "X-1", "ecosystem": "PyPI", "name": "x", "published": "2026-01-01"})
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good.json", json.dumps(good))
        archive.writestr("list.json", "[]")
        archive.writestr("torn.json", '{"id": "X-2"')
        archive.writestr("deep.json", "[" * 100_000)
        archive.writestr("huge.json", b" " * (17 << 20))
        archive.writestr("affected.json", json.dumps({**good, "affected": [1]}))
        archive.writestr("readme.txt", "not a record")
    found = read_database(tmp_path, {Target("PyPI", "x")})
    assert (found.records, found.damaged) == (6, 5)
    assert [one.id for one in found.affected[Target("PyPI", "x")]] == ["X-1"]


def test_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 no archive")
    for path in (tmp_path / "none", tmp_path / "empty", tmp_path / "bad.zip"):
        with pytest.raises(InputError):
            read_database(path, set())


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True),
    st.integers(1, 30),
    st.randoms(),
)
def test_ranges_in_any_order_mean_the_same(marks: list[int], version: int, random: Any) -> None:
    """Between the first and second mark it is affected, after that not, and so on."""
    kinds = ("introduced", "fixed")
    events = [(kinds[at % 2], str(mark)) for at, mark in enumerate(sorted(marks))]
    inside = sum(mark <= version for mark in marks) % 2 == 1
    random.shuffle(events)
    one = Affected("X", frozenset(), "low", "", "", frozenset(), (tuple(events),))
    fix = one.find_fix("pypi", str(version))
    assert (fix is not None) is inside
    if fix not in (None, "-"):
        assert compare_versions("pypi", str(version), str(fix)) == -1


def test_a_notice_of_ubuntus_has_the_severities_of_its_cves(tmp_path: Path) -> None:
    row = {"id": "USN-1-1", "ecosystem": "Ubuntu:24.04:LTS", "name": "x", "published": "2026-01-01"}
    record = make_record(row)
    cves = [
        {"id": f"CVE-2026-000{n}", "severity": [{"type": "Ubuntu", "score": word}]}
        for n, word in enumerate(("low", "high", "medium"))
    ]
    record["affected"][0]["database_specific"] = {"cves_map": {"cves": cves}}
    record["related"] = [one["id"] for one in cves]
    target = Target("Ubuntu", "x", "24.04")
    [one] = read_database(write_database(tmp_path, [record]), {target}).affected[target]
    assert one.severity == "high"
    assert one.cves == ["CVE-2026-0000", "CVE-2026-0001", "CVE-2026-0002"]
