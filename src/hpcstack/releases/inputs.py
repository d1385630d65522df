"""Checks words from the command line that go into modules and ledgers.

Each is one line, without control characters.

Tested in tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

import re
from datetime import date

from hpcstack.core.characters import CONTROL
from hpcstack.core.clock import read_clock
from hpcstack.core.errors import InputError

DAY = re.compile(r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")
SUCCESSOR = re.compile(r"^[A-Za-z0-9._+/-]*$")


def parse_one_line(text: str, option: str) -> str:
    """Return TEXT, which OPTION was given, without blanks around it.

    InputError for control characters, for more than 300 bytes, and for nothing but blanks.
    """
    if text and not text.strip():
        raise InputError(f"{option}: the text is blank", "say why, in a few words")
    is_too_long = len(text.encode(errors="replace")) > 300
    if is_too_long or CONTROL.search(text) or not text.isprintable():
        raise InputError(
            f"{option}: one line of at most 300 bytes, without control characters", "shorten it"
        )
    return text.strip()


def parse_day(text: str, option: str) -> str:
    """Return TEXT, a day as `2027-01-31`. InputError for anything else."""
    try:
        if not DAY.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise InputError(f"{option}: {text!r} is not a date", "write it as YYYY-MM-DD") from None


def stamp_today() -> str:
    """Return the day in UTC, as `2027-01-31`."""
    return read_clock().date().isoformat()


def module_name(full: str) -> str:
    """Return what users load for a stack's full name.

    `pytorch-25.10-deepspeed` gives `pytorch/25.10-deepspeed`: the version begins with a digit.
    """
    return full if "/" in full else re.sub(r"-(?=[0-9])", "/", full, count=1)


def parse_successor(text: str) -> str:
    """Return TEXT, the name of a module or empty. InputError for anything else."""
    if not SUCCESSOR.fullmatch(text):
        raise InputError(
            f"--successor: {text!r} is not a module's name",
            "e.g. pytorch/25.10",
            page="retire-a-release",
        )
    return text
