"""Packages: what a question asks for, and the order of versions as their archives have it."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.store.package import (
    Condition,
    Package,
    Question,
    compare_versions,
    is_asked_for,
    parse_question,
)


def test_a_question_has_a_name_an_archive_and_conditions() -> None:
    assert parse_question("torch") == Question("torch")
    assert parse_question("deb:libssl3") == Question("libssl3", "deb")
    assert parse_question("urllib3 >= 1.26, <2.8") == Question(
        "urllib3", "", (Condition(">=", "1.26"), Condition("<", "2.8"))
    )
    assert parse_question("deb:g++-12<12.2.0-14+deb12u1~x:1").conditions[0].version == (
        "12.2.0-14+deb12u1~x:1"
    )


@pytest.mark.parametrize("text", ["", "a b", "urllib3~=2", "urllib3<", "urllib3<2 or 3", "rpm:x y"])
def test_what_is_no_question_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_question(text)


@pytest.mark.parametrize(
    ("package", "text", "answer"),
    [
        (Package("pypi", "typing_extensions", "4.1"), "Typing.Extensions", True),
        (Package("deb", "libssl3:amd64", "3.0.2-0ubuntu1.15"), "libssl3<3.0.2-0ubuntu1.20", True),
        (Package("deb", "libssl3", "3.0.2-0ubuntu1.20"), "libssl3<3.0.2-0ubuntu1.20", False),
        (Package("deb", "libnccl2", "2.23.4-1+cuda12.6"), "libnccl*", True),
        (Package("pypi", "torch", "2.6.0a0+df5bbc09d1.nv24.11"), "torch<2.6", True),
        (Package("pypi", "torch", "2.6.0a0+df5bbc09d1.nv24.11"), "torch==2.6.0a0", True),
        (Package("pypi", "torch", "2.6.0a0+df5bbc09d1.nv24.11"), "torch>2.6.0a0", False),
        (Package("pypi", "torch", "2.6.0"), "deb:torch", False),
        (Package("pypi", "x", "1.5"), "x>=1,<2,!=1.5", False),
        (Package("pypi", "x", "2004-odd"), "x<2", None),
        (Package("pypi", "x", "2004-odd"), "x", True),
        (Package("conda", "tzdata", "2025b"), "tzdata<2026a", True),
        (Package("conda", "openssl", "3.0.2"), "openssl<3.0.10", True),
    ],
)
def test_a_package_is_asked_for(package: Package, text: str, answer: bool | None) -> None:
    assert is_asked_for(package, parse_question(text)) is answer


VERSIONS = st.from_regex(
    r"(?:[01]:)?[0-9][0-9a-z.+~]{0,6}(?:-[0-9][0-9a-z.+~]{0,4})?", fullmatch=True
)


@given(VERSIONS, VERSIONS)
def test_an_order_is_the_same_both_ways(left: str, right: str) -> None:
    there = compare_versions("deb", left, right)
    back = compare_versions("deb", right, left)
    assert there is not None
    assert back is not None
    assert there == -back


@pytest.mark.skipif(not shutil.which("dpkg"), reason="dpkg is of Debian")
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1.0", "1.0-1"), ("1.0~rc1-1", "1.0-1"), ("1:0.1", "9.9"), ("2.35-0ubuntu3.8", "2.35-0ubuntu3.10"),
        ("3.0.2-0ubuntu1.15", "3.0.2-0ubuntu1.9"), ("12.2.0-14+deb12u1", "12.2.0-14"), ("1.0a", "1.0+"),
        ("2.23.4-1+cuda12.6", "2.23.4-1+cuda12.10"), ("0~", "0"), ("00", "0"),
    ],
)  # fmt: skip
def test_the_order_of_debian_is_that_of_dpkg(left: str, right: str) -> None:
    def holds(operator: str) -> bool:
        done = subprocess.run(["dpkg", "--compare-versions", left, operator, right], check=False)
        return done.returncode == 0

    order = compare_versions("deb", left, right)
    assert order is not None
    assert (order < 0, order == 0, order > 0) == (holds("lt"), holds("eq"), holds("gt"))
