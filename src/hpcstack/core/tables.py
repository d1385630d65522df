"""Take values out of documents whose shape nobody has checked, such as other people's TOML.

Tested in tests/unit/project/test_own_package.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def take_table(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the table that KEYS lead to in DOCUMENT; an empty one where there is no table."""
    found: Any = document
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def take_texts(document: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the texts in the array, or the one text, that KEYS lead to in DOCUMENT."""
    *around, last = keys
    found = take_table(document, *around).get(last) if around else document.get(last)
    values = found if isinstance(found, list) else [found]
    return [one for one in values if isinstance(one, str)]
