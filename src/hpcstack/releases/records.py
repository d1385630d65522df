"""The records of all releases in a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_bytes
from hpcstack.store.store import MAX_RECORD, Store

if TYPE_CHECKING:
    from collections.abc import Iterator


def releases(store: Store) -> Iterator[tuple[str, dict[str, str]]]:
    """(NAME/VERSION-rN, its record) of all that was published. A record that cannot be read is an error."""
    for path in sorted((store.top / "releases").glob("*/*/release.json")):
        name = f"{path.parent.parent.name}/{path.parent.name}"
        try:
            record = json.loads(read_bytes(path, MAX_RECORD))
            key = record["key"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InputError) as error:
            raise StoreError(f"{path} cannot be read: {error}", f"what {name} needs is not known; restore it") from None
        if not isinstance(key, str):
            raise StoreError(f"{path} names no image", f"what {name} needs is not known; restore it")
        yield name, record
