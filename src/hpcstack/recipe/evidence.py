"""What has been proven of a recipe that comes with the package: recipes/evidence.json, written by ci/soak.

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


def recorded() -> dict[str, Any]:
    """{full name: record} of all recipes that were built or tested."""
    path = data.folder("recipes") / FILE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def evidence(stack: Stack, records: dict[str, Any]) -> str:
    """`tested on a stand-in`, `built on a stand-in`, or `rendered only`."""
    record = records.get(stack.full_name)
    if not record or record["spec_sha256"] != stack.checksum():
        return RENDERED
    where = " on a stand-in" if record["stand_in"] else ""
    return f"{TESTED if record['tested'] else BUILT}{where}"
