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
TODAY = "2026-11-26"


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
    found = read_database(database, {target}, TODAY)
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
        [one] = read_database(folder, {target}, TODAY).affected[target]
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
    found = read_database(folder, {typing, noble, jammy}, TODAY)
    assert [one.id for one in found.affected[typing]] == ["X-PyPI-Typing_Extensions"]
    assert [one.id for one in found.affected[noble]] == ["X-Ubuntu:24.04:LTS-openssl"]
    assert [one.id for one in found.affected[jammy]] == ["X-Ubuntu:22.04:LTS-openssl"]
    assert found.find_day(noble) == "2026-01-01"
    assert found.find_day(Target("Debian", "openssl", "12")) is None
    assert found.find_day(Target("Ubuntu", "openssl", "25.10")) is None


def test_what_is_covered_is_told_by_folders_and_not_by_records(tmp_path: Path) -> None:
    """A record of Ubuntu's names all releases that it is about, one of npm's those of PyPI, too."""
    row = {"id": "X-1", "ecosystem": "Ubuntu:22.04:LTS", "name": "curl", "published": "2026-01-01"}
    record = make_record(row)
    for ecosystem in (
        "Ubuntu:24.04:LTS",
        "Ubuntu",
        "PyPI",
        "Ubuntu:22.04:LTS:for:NVIDIA:BlueField",
    ):
        record["affected"].append({"package": {"ecosystem": ecosystem, "name": "curl"}})
    noble, jammy = Target("Ubuntu", "curl", "24.04"), Target("Ubuntu", "curl", "22.04")
    pypi = Target("PyPI", "curl")
    found = read_database(write_database(tmp_path, [record]), {noble, jammy, pypi}, TODAY)
    days = [found.find_day(one) for one in (jammy, noble, pypi)]
    assert days == ["2026-01-01", None, None]
    assert len(found.affected[jammy]) == 1  # not a device's
    # the archive of the family has all its releases
    (tmp_path / "Ubuntu:22.04:LTS").rename(tmp_path / "Ubuntu")
    assert read_database(tmp_path, {noble}, TODAY).find_day(noble) == "2026-01-01"


def test_a_record_of_a_day_to_come_makes_nothing_newer(tmp_path: Path) -> None:
    row = {"id": "X-1", "ecosystem": "PyPI", "name": "x", "published": "9999-01-01"}
    folder = write_database(tmp_path, [make_record(row)])
    assert read_database(folder, set(), TODAY).find_day(Target("PyPI", "x")) == ""


def test_versions_that_are_listed_are_compared_as_versions(tmp_path: Path) -> None:
    row = {"id": "X-1", "ecosystem": "PyPI", "name": "x", "published": "2026-01-01"}
    record = make_record(row)
    record["affected"][0].update(ranges=[], versions=["2.4.1", "odd"])
    target = Target("PyPI", "x")
    [one] = read_database(write_database(tmp_path, [record]), {target}, TODAY).affected[target]
    for version in ("2.4.1", "2.4.1+cu121", "2.4.1.0", "odd"):
        assert one.find_fix("pypi", version) == "-", version
    assert one.find_fix("pypi", "2.4.2") is None


def test_what_is_null_or_odd_in_a_record_does_not_lose_it(tmp_path: Path) -> None:
    row = {"id": "X-1", "ecosystem": "PyPI", "name": "x", "published": "2026-01-01"}
    odd: list[dict[str, Any]] = [
        {"aliases": None, "upstream": None, "severity": None},
        {"severity": [{"type": "CVSS_V2"}]},
        {"database_specific": None},
    ]
    target = Target("PyPI", "x")
    for number, more in enumerate(odd):
        folder = write_database(tmp_path / str(number), [{**make_record(row), **more}])
        found = read_database(folder, {target}, TODAY)
        assert (found.damaged, len(found.affected[target])) == (0, 1), more


def test_a_package_that_was_made_to_do_harm_is_critical(tmp_path: Path) -> None:
    row = {"id": "MAL-2026-1", "ecosystem": "PyPI", "name": "x", "published": "2026-01-01"}
    target = Target("PyPI", "x")
    folder = write_database(tmp_path, [make_record(row)])
    [one] = read_database(folder, {target}, TODAY).affected[target]
    assert one.severity == "critical"


def test_a_range_of_very_many_events_is_damaged(tmp_path: Path) -> None:
    row = {"id": "X-1", "ecosystem": "PyPI", "name": "x", "published": "2026-01-01"}
    record = make_record(row)
    record["affected"][0]["ranges"][0]["events"] = [
        {"introduced": str(n)} for n in range(5000, 0, -1)
    ]
    found = read_database(write_database(tmp_path, [record]), {Target("PyPI", "x")}, TODAY)
    assert (found.records, found.damaged) == (1, 1)


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
    found = read_database(tmp_path, {Target("PyPI", "x")}, TODAY)
    assert (found.records, found.damaged) == (6, 5)
    assert [one.id for one in found.affected[Target("PyPI", "x")]] == ["X-1"]


def test_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad/PyPI").mkdir(parents=True)
    (tmp_path / "bad/PyPI/all.zip").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "torn/PyPI").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "torn/PyPI/all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.json", json.dumps({"id": "x" * 1000 + "y" * 1000}))
    content = bytearray((tmp_path / "torn/PyPI/all.zip").read_bytes())
    content[40] ^= 0xFF  # in what is packed
    (tmp_path / "torn/PyPI/all.zip").write_bytes(content)
    for path in (tmp_path / name for name in ("none", "empty", "bad", "torn")):
        with pytest.raises(InputError):
            read_database(path, set(), TODAY)


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
    [one] = read_database(write_database(tmp_path, [record]), {target}, TODAY).affected[target]
    assert one.severity == "high"
    assert one.cves == ["CVE-2026-0000", "CVE-2026-0001", "CVE-2026-0002"]
