"""The journal of one change of a module tree: what somebody who was interrupted wrote down, and how
far it is believed.

Who finishes a change does so with rights of his own, so a journal names nothing but modulefiles of
its own name in this tree, prepared releases in this store, and generations; and it is ours or
root's.
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
KINDS = {"homes": dict, "files": dict, "moves": list, "generations": list}  # of a journal
MAX_JOURNAL = 16 << 20  # bytes


def read_journal(path: Path) -> dict[str, Any] | None:
    """A journal, if there is one."""
    try:
        found = json.loads(files.read_bytes(path, MAX_JOURNAL, own=True))
    except FileNotFoundError:
        return None
    except (InputError, PermissionError) as error:
        owner = files.name_owner(path)
        said = error.message if isinstance(error, InputError) else f"it belongs to {owner}"
        raise StoreError(
            f"a change was begun and not finished; its journal is not trusted: {said}",
            (
                f"{owner} can run the verb again; or, as root: rm {path} (what was published "
                f"before stays)"
            ),
        ) from None
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is damaged: {error}", "restore it from a backup, or remove it"
        ) from None
    keys = {"format", "homes", "files", "moves", "generations"}
    whole = isinstance(found, dict) and keys <= found.keys() <= {*keys, "verb", "gone"}
    if (
        not whole
        or found["format"] != FORMAT
        or not found["generations"]
        or not all(isinstance(found[key], kind) for key, kind in KINDS.items())
        or not isinstance(found.get("gone", []), list)
    ):
        raise StoreError(
            f"{path} is damaged, or of another hpcstack",
            "use that version, or restore it from a backup",
        )
    return dict(found)


def check_journal(
    name: str, journal: dict[str, Any], path: Path, releases: Path | None, root: Path
) -> None:
    """StoreError for a journal that says more than a change of NAME in this tree and its store
    could.
    """
    homes, texts = journal["homes"], journal["files"]
    good = (
        homes
        in ({".lua": CORE, "": TCL}, {".lua": f"{MORE}/{name}/{CORE}", "": f"{MORE}/{name}/{TCL}"})
        and all(
            isinstance(one, str) and GENERATION.fullmatch(one) for one in journal["generations"]
        )
        and all(
            _modulefile(file, name, homes) and isinstance(text, str) for file, text in texts.items()
        )
        and all(_move_of(name, move, releases, root) for move in journal["moves"])
        and all(
            isinstance(file, str) and _modulefile(file, name, homes)
            for file in journal.get("gone", [])
        )
    )
    if not good:
        raise StoreError(
            f"{path} does not describe a change of {name}",
            f"nothing of it was done; look, and remove {path}",
        )


def _move_of(name: str, move: object, releases: Path | None, root: Path) -> bool:
    """Whether MOVE is [a prepared folder, its place among NAME's releases, what its record holds]."""
    if not (
        isinstance(move, list | tuple)
        and len(move) == 3
        and all(isinstance(one, str) for one in move)
    ):
        return False
    part, final = Path(move[0]), Path(move[1])
    return bool(
        releases
        and final.parent == releases / name
        and RELEASE.fullmatch(final.name)
        and part == name_prepared(final, root)
    )


def _modulefile(path: str, name: str, homes: dict[str, str]) -> bool:
    """Whether PATH is the place of a modulefile of NAME in one of HOMES."""
    whole = PurePosixPath(path)
    return str(whole) == path and any(
        str(whole.parent) == f"{home}/{name}"
        and RELEASE.fullmatch(whole.name.removesuffix(suffix)) is not None
        for suffix, home in homes.items()
    )


def name_prepared(final: Path, root: Path) -> Path:
    """Where a release that shall lie at FINAL is prepared; parts of another tree than ROOT's have
    other names.
    """
    mark = hashlib.sha256(str(root).encode()).hexdigest()[:12]
    return final.with_name(f".{final.name}.{mark}.part")
