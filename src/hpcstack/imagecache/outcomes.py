"""Record how a request to a registry, or an import, has failed, for those who wait for the same.

Tested in tests/unit/imagecache/test_provide.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpcstack.core import files
from hpcstack.core.errors import (
    HpcstackError,
    InputError,
    LoginRefused,
    RegistryError,
    StoreError,
    sanitize_for_terminal,
)
from hpcstack.core.files import write_text
from hpcstack.imagecache.refusals import NotShared

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_RECORD = 1 << 16
KINDS: dict[str, type[HpcstackError]] = {
    "not shared": NotShared,
    "login": LoginRefused,
    "registry": RegistryError,
}
OF_ONE_LOGIN = ("login", "registry")  # failures that another user's login may not meet


def record_failure(error: HpcstackError, user: int) -> dict[str, object]:
    """Return the record of ERROR, which USER has met."""
    kind = next((name for name, of in KINDS.items() if isinstance(error, of)), "failed")
    if isinstance(error, LoginRefused):
        kind = "login"
    return {
        "kind": kind,
        "message": sanitize_for_terminal(error.message),
        "hint": sanitize_for_terminal(error.hint),
        "user": user,
    }


def make_error(record: Mapping[str, object], what: str = "") -> HpcstackError:
    """Return the error that RECORD, from `record_failure`, describes, with WHAT before its text."""
    kind = KINDS.get(str(record.get("kind")), StoreError)
    return kind(f"{what}{record.get('message', 'it failed')}", str(record.get("hint", "")))


def write_failure(path: Path, error: HpcstackError, user: int) -> None:
    """Write the record of ERROR, which USER has met, to PATH."""
    write_text(path, json.dumps(record_failure(error, user)), 0o600)


def read_failure(path: Path) -> dict[str, object] | None:
    """Return the record that `write_failure` wrote to PATH; None if there is none."""
    try:
        found = json.loads(files.read_text(path, MAX_RECORD))
    except (OSError, ValueError, RecursionError, InputError):
        return None
    if not isinstance(found, dict):
        return None
    return found


def concerns_user(record: dict[str, object] | None, user: int) -> bool:
    """Return whether USER would have met the failure in RECORD as well."""
    if record is None:
        return False
    return record.get("kind") not in OF_ONE_LOGIN or record.get("user") == user
