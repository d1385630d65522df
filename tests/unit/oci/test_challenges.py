"""The challenges of a 401, in the forms that RFC 9110 (11.6.1) allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.oci.challenges import Challenge, choose_challenge, parse_challenges
from hpcstack.oci.protocol import parse_realm

BEARER = 'Bearer realm="https://h/token",service="s",scope="repository:a/b:pull"'
AS_BEARER = Challenge(
    "bearer", {"realm": "https://h/token", "service": "s", "scope": "repository:a/b:pull"}
)
BASIC = Challenge("basic", {"realm": "r"})


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (BEARER, [AS_BEARER]),
        (f'{BEARER}, Basic realm="r"', [AS_BEARER, BASIC]),
        (f'Basic realm="r", {BEARER}', [BASIC, AS_BEARER]),
        (f'Basic realm="r",{BEARER}', [BASIC, AS_BEARER]),
        (f"Negotiate, {BEARER}", [Challenge("negotiate"), AS_BEARER]),
        (f"Negotiate YIIB+/o==, {BEARER}", [Challenge("negotiate"), AS_BEARER]),
        ('NTLM, Negotiate, BASIC realm="r"', [Challenge("ntlm"), Challenge("negotiate"), BASIC]),
        ('bearer  Realm = "https://h/token" , Service\t=\t"s",scope="repository:a/b:pull"', [AS_BEARER]),
        ("Basic realm=r", [BASIC]),
        ('Basic realm="r", charset="UTF-8"', [Challenge("basic", {"realm": "r", "charset": "UTF-8"})]),
        ('Basic realm="a, \\"Bearer\\" realm=x"', [Challenge("basic", {"realm": 'a, "Bearer" realm=x'})]),
        (', ,Basic realm="r",,', [BASIC]),
        ('Basic realm="r", realm="evil"', [BASIC]),
        ("Basic", [Challenge("basic")]),
        ("", []),
        ('="x"', []),
        ('Basic realm="torn', [Challenge("basic")]),
    ],
)  # fmt: skip
def test_a_list_of_challenges(header: str, expected: list[Challenge]) -> None:
    assert parse_challenges(header) == expected


@pytest.mark.parametrize(
    ("header", "scheme"),
    [
        (f'Basic realm="r", {BEARER}', "bearer"),
        (f'Negotiate, Basic realm="r", {BEARER}', "bearer"),
        ('Negotiate, Basic realm="r"', "basic"),
        ('Bearer, Basic realm="r"', "basic"),
        ("Bearer", ""),
        ("Negotiate", ""),
        ('Digest realm="r", nonce="n"', ""),
    ],
)
def test_bearer_is_answered_before_basic(header: str, scheme: str) -> None:
    way = choose_challenge(header)
    assert (way.scheme if way else "") == scheme


@given(st.text(max_size=200))
def test_any_header_is_read(header: str) -> None:
    for one in parse_challenges(header):
        assert one.scheme == one.scheme.lower() != ""


@pytest.mark.parametrize(
    ("challenge", "realm", "query"),
    [
        (
            'Bearer realm="https://nvcr.io/proxy_auth?scope=repository:nvidia/tensorflow:pull,push"',
            "https://nvcr.io/proxy_auth",
            {"scope": "repository:nvidia/x:pull"},
        ),
        (
            'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a:pull"',
            "https://auth.docker.io/token",
            {"service": "registry.docker.io", "scope": "repository:nvidia/x:pull"},
        ),
    ],
)
def test_both_forms_of_a_challenge(challenge: str, realm: str, query: dict[str, str]) -> None:
    """nvcr.io's form is recorded in Apache Mesos' test for MESOS-9968, Docker Hub's in its own
    documentation.
    """
    way = choose_challenge(challenge)
    assert way
    assert parse_realm(way, ["repository:nvidia/x:pull"]) == (realm, query)
