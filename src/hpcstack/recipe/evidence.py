"""What has been proven of a recipe that comes with the package: recipes/evidence.json, written by
ci/soak.

A record counts for the spec that it was made of: a recipe that has changed since is rendered only.
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
    """{full name: record} of all recipes that were built or tested."""
    path = data.find_data_folder("recipes") / FILE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def describe_evidence(stack: Stack, records: dict[str, Any]) -> str:
    """`tested on a stand-in`, `built on a stand-in`, or `rendered only`."""
    record = _record_of(stack, records)
    if not record or "why_not" in record:
        return RENDERED
    where = " on a stand-in" if record["stand_in"] else ""
    return f"{TESTED if record['tested'] else BUILT}{where}"


def explain_lack(stack: Stack, records: dict[str, Any]) -> str:
    """Why STACK is rendered only, where ci/soak says so; else nothing."""
    return str(_record_of(stack, records).get("why_not", ""))


def _record_of(stack: Stack, records: dict[str, Any]) -> dict[str, Any]:
    """What RECORDS say of this very spec."""
    record: dict[str, Any] = records.get(stack.full_name, {})
    return record if record.get("spec_sha256") == stack.checksum() else {}
