"""What has been proven of the recipes that come with the package.

ci/soak writes it into recipes/evidence.json. A record counts for the very spec that was built: a
recipe that has changed since is "rendered only".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hpcstack.core import data

if TYPE_CHECKING:
    from hpcstack.recipe.model import Stack

FILE = "evidence.json"
RENDERED, BUILT, TESTED = "rendered only", "built", "tested"


def read_evidence() -> dict[str, Any]:
    """Return {full name: record} of all recipes that were built or tested."""
    path = data.find_data_folder("recipes") / FILE
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def describe_evidence(stack: Stack, records: dict[str, Any]) -> str:
    """Return `tested` or `built`, with ` on a stand-in` where it was on one, or `rendered only`."""
    record = _record_of(stack, records)
    if not record or "why_not" in record:
        return RENDERED
    how = TESTED if record["tested"] else BUILT
    if record["stand_in"]:
        how += " on a stand-in"
    return how


def explain_lack(stack: Stack, records: dict[str, Any]) -> str:
    """Return why STACK is rendered only, where ci/soak says so; else empty."""
    return str(_record_of(stack, records).get("why_not", ""))


def _record_of(stack: Stack, records: dict[str, Any]) -> dict[str, Any]:
    """Return what RECORDS say of this very spec; empty for none."""
    record: dict[str, Any] = records.get(stack.full_name, {})
    if record.get("spec_sha256") != stack.checksum():
        return {}
    return record
