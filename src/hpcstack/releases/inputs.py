"""Words from the command line that end in modules and ledgers: one line each, without control
characters.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timezone

from hpcstack.core.characters import CONTROL
from hpcstack.core.errors import InputError

DAY = re.compile(r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")
SUCCESSOR = re.compile(r"^[A-Za-z0-9._+/-]*$")


def parse_one_line(text: str, option: str) -> str:
    """TEXT without blanks around it.

    InputError for control characters, more than 300 bytes, and nothing but blanks.
    """
    if text and not text.strip():
        raise InputError(f"{option}: there is nothing but blanks in it", "say why, in a few words")
    if CONTROL.search(text) or len(text.encode(errors="replace")) > 300 or not text.isprintable():
        raise InputError(
            f"{option}: one line of at most 300 bytes, without control characters", "shorten it"
        )
    return text.strip()


def parse_day(text: str, option: str) -> str:
    """TEXT as a day, `2027-01-31`."""
    try:
        if not DAY.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise InputError(f"{option}: {text!r} is not a date", "write it as YYYY-MM-DD") from None


def stamp_today() -> str:
    """The day in UTC, as `2027-01-31`."""
    return datetime.now(timezone.utc).date().isoformat()


def module_name(full: str) -> str:
    """A stack's full name as what users load: `pytorch/25.10-deepspeed` of
    `pytorch-25.10-deepspeed`.
    """
    return full if "/" in full else re.sub(r"-(?=[0-9])", "/", full, count=1)


def parse_successor(text: str) -> str:
    """TEXT as the name of what to use instead."""
    if not SUCCESSOR.fullmatch(text):
        raise InputError(f"--successor: {text!r} is not a module's name", "e.g. pytorch/25.10")
    return text
