"""The challenges of a 401: what a registry wants, as RFC 9110 has it (section 11.6.1).

There may be several of them, in one WWW-Authenticate or in many, which a client joins by commas. No
library that is kept reads such a list: those of Python's HTTP clients take one challenge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LONGEST = 4096  # characters that are read
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
SEPARATORS = re.compile(r"[\s,]*")
FIELD = re.compile(rf'({TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({TOKEN}))(?=[ \t]*(?:,|$))')
SCHEME = re.compile(rf"({TOKEN})(?=[ \t]|,|$)")
TOKEN68 = re.compile(r"[ \t]+[A-Za-z0-9._~+/-]+=*(?=[ \t]*(?:,|$))")


@dataclass(frozen=True)
class Challenge:
    """One way in: SCHEME (`bearer`), and its FIELDS {name: value}. Names are in small letters."""

    scheme: str
    fields: dict[str, str] = field(default_factory=dict)


def parse_challenges(header: str) -> list[Challenge]:
    """Return the challenges in HEADER, the value of WWW-Authenticate.

    Of what has another form nothing is read, nor of what follows it.
    """
    header = header[:LONGEST]
    out: list[Challenge] = []
    at = 0
    while True:
        at = SEPARATORS.match(header, at).end()  # type: ignore[union-attr]  # it always matches
        one = FIELD.match(header, at)
        if one and out:
            value = re.sub(r"\\(.)", r"\1", one[2]) if one[3] is None else one[3]
            out[-1].fields.setdefault(one[1].lower(), value)
            at = one.end()
            continue

        scheme = SCHEME.match(header, at)
        if not scheme:
            return out
        out.append(Challenge(scheme[1].lower()))
        at = scheme.end()
        credentials = TOKEN68.match(header, at)
        is_field = FIELD.match(header, SEPARATORS.match(header, at).end())  # type: ignore[union-attr]
        if credentials and not is_field:  # Negotiate's, say
            at = credentials.end()


def choose_challenge(header: str) -> Challenge | None:
    """Return the challenge in HEADER that is answered: Bearer before Basic; None for neither."""
    found = parse_challenges(header)
    bearer = (one for one in found if one.scheme == "bearer" and one.fields.get("realm"))
    basic = (one for one in found if one.scheme == "basic")
    return next(bearer, None) or next(basic, None)
