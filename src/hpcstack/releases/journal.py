"""The journal of one change of a module tree, and how far it is trusted.

Whoever finishes a change that was interrupted does so with his own rights. So a journal may name
nothing but modulefiles of its own name in this tree, prepared releases in this store, and
generations; and its file must be ours or root's.

Tested in tests/hostile/test_neighbours.py and tests/integration/test_publishing_faults.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

from hpcstack.core import files
from hpcstack.core.errors import InputError, StoreError
from hpcstack.releases.layout import CORE, MORE, TCL
from hpcstack.releases.ledger import FORMAT

GENERATION = re.compile(r"[1-9][0-9]{0,7}")
RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,128}-r[0-9]+")
KINDS = {"homes": dict, "files": dict, "moves": list, "generations": list}  # of a journal's values
MAX_JOURNAL = 16 << 20  # bytes


def read_journal(path: Path) -> dict[str, Any] | None:
    """Return the journal in PATH; None where there is none.

    StoreError where it belongs to another user, or is damaged.
    """
    try:
        found = json.loads(files.read_bytes(path, MAX_JOURNAL, own=True))
    except FileNotFoundError:
        return None
    except (InputError, PermissionError) as error:
        owner = files.name_owner(path)
        why = f"it belongs to {owner}"
        if isinstance(error, InputError):
            why = error.message
        raise StoreError(
            f"a change was begun and not finished; its journal is not trusted: {why}",
            f"{owner} can run the verb again; or, as root: rm {path} (what was published "
            f"before stays)",
            page="repair-what-is-published",
        ) from None
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is damaged: {error}",
            "restore it from a backup, or remove it",
            page="back-up",
        ) from None

    if not _is_journal(found):
        raise StoreError(
            f"{path} is damaged, or another version of hpcstack wrote it",
            "use that version, or restore it from a backup",
            page="back-up",
        )
    return dict(found)


def _is_journal(document: Any) -> bool:
    """Whether DOCUMENT has the keys and the kinds of values that a journal has."""
    keys = {"format", *KINDS}
    if not isinstance(document, dict):
        return False
    if not keys <= document.keys() <= {*keys, "verb", "gone"}:
        return False
    return (
        document["format"] == FORMAT
        and all(isinstance(document[key], kind) for key, kind in KINDS.items())
        and bool(document["generations"])
        and isinstance(document.get("gone", []), list)
    )


def check_journal(
    name: str, journal: dict[str, Any], path: Path, releases: Path | None, root: Path
) -> None:
    """Raise StoreError where JOURNAL says anything that no change of NAME does.

    RELEASES is the folder of releases in the store, ROOT that of the module tree, PATH the file
    that JOURNAL was read from.
    """
    homes = journal["homes"]
    in_core = {".lua": CORE, "": TCL}
    behind_gateway = {".lua": f"{MORE}/{name}/{CORE}", "": f"{MORE}/{name}/{TCL}"}
    good = homes in (in_core, behind_gateway)
    for generation in journal["generations"]:
        good = good and isinstance(generation, str) and bool(GENERATION.fullmatch(generation))
    for file, text in journal["files"].items():
        good = good and _is_modulefile(file, name, homes) and isinstance(text, str)
    for move in journal["moves"]:
        good = good and _is_move(name, move, releases, root)
    for file in journal.get("gone", []):
        good = good and isinstance(file, str) and _is_modulefile(file, name, homes)
    if not good:
        raise StoreError(
            f"{path} does not describe a change of {name}",
            f"nothing of it was done; look into it, then: rm {path}",
            page="repair-what-is-published",
        )


def _is_move(name: str, move: object, releases: Path | None, root: Path) -> bool:
    """Whether MOVE is [prepared folder, its place among NAME's releases, text of its record]."""
    if not isinstance(move, list | tuple) or len(move) != 3:
        return False
    if not all(isinstance(one, str) for one in move):
        return False
    part, final = Path(move[0]), Path(move[1])
    return bool(
        releases
        and final.parent == releases / name
        and RELEASE.fullmatch(final.name)
        and part == name_prepared(final, root)
    )


def _is_modulefile(path: str, name: str, homes: dict[str, str]) -> bool:
    """Whether PATH is the place of a modulefile of NAME in one of HOMES."""
    whole = PurePosixPath(path)
    if str(whole) != path:
        return False  # `a//b` and `a/./b` name the same file as `a/b`: only that form is taken
    return any(
        str(whole.parent) == f"{home}/{name}"
        and RELEASE.fullmatch(whole.name.removesuffix(suffix)) is not None
        for suffix, home in homes.items()
    )


def name_prepared(final: Path, root: Path) -> Path:
    """Return where a release is prepared that will lie at FINAL.

    The name tells the module tree below ROOT from others on the same store: each sweeps its own.
    """
    mark = hashlib.sha256(str(root).encode()).hexdigest()[:12]
    return final.with_name(f".{final.name}.{mark}.part")
