"""Inventories: which files a verb wrote into a folder, with their sha256 and most of their texts.

A release's folder has one, and so has each generation of a name's state. `status --check` compares
with it, and `repair` puts back what it holds: neither has to know what today's hpcstack would write
there. An inventory holds a digest of itself and lies in the folder twice, since what damages a file
may damage this one. Its data is trusted where a publisher has written it, its paths only below its
folder.

Tested in tests/unit/publish/test_damage.py.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from hpcstack.core import files
from hpcstack.core.errors import InputError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.core.sharing import Sharing

FORMAT = "hpcstack/inventory/v1"
NAMES = ("inventory.json", "inventory.copy.json")
# Characters. Of a longer file, such as a long SBOM, only the digest is kept.
MOST_KEPT = 256 << 10
MAX_INVENTORY = 64 << 20  # bytes


@dataclass(frozen=True)
class Inventory:
    """What was written into the folder of SUBJECT."""

    subject: str  # NAME/VERSION-rN, or NAME#GENERATION
    digests: dict[str, str]  # {path: sha256}
    texts: dict[str, str]  # {path: text} of the files whose text is kept


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def render_inventory_files(subject: str, written: Mapping[str, str]) -> dict[str, str]:
    """Return {file name: text} of the inventory, twice, of the files WRITTEN for SUBJECT.

    WRITTEN is {path: text}.
    """
    body: dict[str, Any] = {
        "format": FORMAT,
        "subject": subject,
        "digests": {path: digest_text(text) for path, text in sorted(written.items())},
        "texts": {path: text for path, text in sorted(written.items()) if len(text) <= MOST_KEPT},
    }
    return dict.fromkeys(NAMES, _render_inventory(body))


def _render_inventory(body: Mapping[str, Any]) -> str:
    return json.dumps({**body, "sha256": _own_digest(body)}, indent=1) + "\n"


def read_inventory(folder: Path, subject: str, publishers: Sharing) -> Inventory | None:
    """Return the inventory of FOLDER; None where it has none.

    Older versions of hpcstack wrote none. StoreError where neither of the two files is whole, or
    none of PUBLISHERS wrote it.
    """
    found: list[Inventory] = []
    wrong = ""
    for name in NAMES:
        try:
            found.append(_read_file(folder / name, subject, publishers))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError, InputError) as error:
            wrong = wrong or f"{folder / name} is damaged: {error}"
    if found:
        return found[0]
    if wrong:
        raise StoreError(wrong, "restore it from a backup, or publish anew", page="back-up")
    return None


def find_damaged_inventories(folder: Path, subject: str, publishers: Sharing) -> list[str]:
    """Return which of FOLDER's two inventories is not whole, where the other one is."""
    wrong = []
    for name in NAMES:
        try:
            _read_file(folder / name, subject, publishers)
        except (OSError, ValueError, RecursionError, InputError):
            wrong.append(name)
    return wrong if len(wrong) < len(NAMES) else []


def _read_file(path: Path, subject: str, publishers: Sharing) -> Inventory:
    """Return the inventory in PATH. ValueError where it is not the inventory of SUBJECT, or its own
    digest does not fit.
    """
    content = files.read_bytes(path, MAX_INVENTORY, publishers=publishers)
    document = json.loads(content)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it is no inventory, or a newer hpcstack's")
    digest = document.pop("sha256", "")
    if digest != _own_digest(document):
        raise ValueError("its digest does not fit")
    # The digest is of the data. The same data in other bytes is damage, too: the two files are the
    # same, and `repair` copies one over the other.
    if content != _render_inventory(document).encode():
        raise ValueError("its data is right, but its bytes are not those that were written")
    if document["subject"] != subject:
        raise ValueError(f"it is that of {document['subject']}")

    digests, texts = document["digests"], document["texts"]
    for part in (*digests, *texts):
        if not is_clean(part):
            raise ValueError(f"{part!r} is no path below its folder")
    if not all(isinstance(one, str) for one in (*digests.values(), *texts.values())):
        raise ValueError("it has a value that is not a text")
    return Inventory(subject, dict(digests), dict(texts))


def is_clean(part: str) -> bool:
    """Whether PART is a relative path that does not lead out of its folder, in its normal form.

    Whoever may write to the folder could have written any path.
    """
    path = PurePosixPath(part)
    return bool(part) and str(path) == part and not path.is_absolute() and ".." not in path.parts


def _own_digest(body: Mapping[str, Any]) -> str:
    """Return the sha256 of an inventory's data, in one canonical form."""
    return digest_text(json.dumps(body, sort_keys=True, separators=(",", ":")))
