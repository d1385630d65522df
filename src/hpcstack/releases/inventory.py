"""What a verb wrote: the files of a folder with their sha256, and their text where it is short
enough to be kept twice.

A release's folder and each generation of a name's state hold one. So whoever looks later need not
ask what today's hpcstack would write there: he compares with what was written, and puts it back.
The inventory has a digest of itself, and lies there twice, since what damages a file may damage
this one. Its data is believed where a publisher has written it, its paths only below its folder.
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

FORMAT = "hpcstack/inventory/v1"
NAMES = ("inventory.json", "inventory.copy.json")
MOST_KEPT = (
    256 << 10
)  # characters of a file that is kept as text; of a long parts list only the digest is
MAX_INVENTORY = 64 << 20  # bytes


@dataclass(frozen=True)
class Inventory:
    """What was written into the folder of SUBJECT: {path: sha256}, and {path: text} of what is kept
    here as well.
    """

    subject: str
    digests: dict[str, str]
    texts: dict[str, str]


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def inventory_files(subject: str, written: Mapping[str, str]) -> dict[str, str]:
    """{file name: text} of the inventory of what was WRITTEN, {path: text}, into the folder of
    SUBJECT.
    """
    body: dict[str, Any] = {
        "format": FORMAT,
        "subject": subject,
        "digests": {path: sha256_of(text) for path, text in sorted(written.items())},
        "texts": {path: text for path, text in sorted(written.items()) if len(text) <= MOST_KEPT},
    }
    return dict.fromkeys(NAMES, _text(body))


def _text(body: Mapping[str, Any]) -> str:
    return json.dumps({**body, "sha256": _own_digest(body)}, indent=1) + "\n"


def read_inventory(folder: Path, subject: str) -> Inventory | None:
    """What was written into FOLDER; None where nobody has written it down: an older hpcstack.

    StoreError where neither of the two files is whole.
    """
    found: list[Inventory] = []
    wrong = ""
    for name in NAMES:
        try:
            found.append(_read(folder / name, subject))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError, InputError) as error:
            wrong = wrong or f"{folder / name} is damaged: {error}"
    if found:
        return found[0]
    if wrong:
        raise StoreError(wrong, "restore it from a backup, or publish anew")
    return None


def damaged_inventories(folder: Path, subject: str) -> list[str]:
    """The names of those of FOLDER's inventories that are not whole, where one of them is."""
    wrong = []
    for name in NAMES:
        try:
            _read(folder / name, subject)
        except (OSError, ValueError, RecursionError, InputError):
            wrong.append(name)
    return wrong if len(wrong) < len(NAMES) else []


def _read(path: Path, subject: str) -> Inventory:
    content = files.read_bytes(path, MAX_INVENTORY, published=True)
    document = json.loads(content)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it is no inventory, or a newer hpcstack's")
    said = document.pop("sha256", "")
    if said != _own_digest(document):
        raise ValueError("its digest is another")
    if content != _text(document).encode():  # by as little as its last line break
        raise ValueError("it says what was written, in other bytes")
    if document["subject"] != subject:
        raise ValueError(f"it is that of {document['subject']}")
    digests, texts = document["digests"], document["texts"]
    for part in (*digests, *texts):
        if not is_clean(part):
            raise ValueError(f"{part!r} is no path below its folder")
    if not all(isinstance(one, str) for one in (*digests.values(), *texts.values())):
        raise ValueError("it holds what is no text")
    return Inventory(subject, dict(digests), dict(texts))


def is_clean(part: str) -> bool:
    """Whether PART is a path below a folder, written in the one way: whoever may write there may
    have said it.
    """
    path = PurePosixPath(part)
    return bool(part) and str(path) == part and not path.is_absolute() and ".." not in path.parts


def _own_digest(body: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(body, sort_keys=True, separators=(",", ":")))
