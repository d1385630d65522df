"""Variables whose values are not written down.

Tested in tests/unit/launch/test_record.py.
"""

from __future__ import annotations

from hpcstack_smoke.hidden import LOGIN, SECRET


def is_secret(name: str, value: str) -> bool:
    """Whether a variable's NAME or VALUE looks like a secret."""
    return bool(SECRET.search(name) or LOGIN.search(value))
