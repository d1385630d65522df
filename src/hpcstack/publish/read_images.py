"""The bytes of published images, read: at a rate, a few a night, those first that were read longest
ago.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hpcstack.core.dirs import state_folder
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_text, write_text
from hpcstack.releases.seal import Seal, read_seal, renew_seal, take_seal
from hpcstack.releases.tree import Tree

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.progress import Progress
    from hpcstack.site.load import Site
    from hpcstack.store.store import Store


MAX_MEMORY = 4 << 20  # bytes


@dataclass(frozen=True)
class Checked:
    """One release whose image was read: WRONG is empty where its bytes are those that were
    published; RENEWED says whether launches compare with the file as it is now.
    """

    release: str
    image: str
    wrong: str
    renewed: bool


def check_published(
    site: Site,
    store: Store,
    progress: Progress,
    *,
    bytes_a_second: int = 0,
    most: int = 0,
    name: str = "",
) -> list[Checked]:
    """Every release that gc has not taken, its image read. An image that several releases name is
    read once.

    Of NAME alone, where that is said. With MOST only so many images: those that were read longest
    ago, so that a site reads all of them over some nights; one that is gone is told each time, and
    is none of them.
    """
    seals: dict[str, Seal | str] = {}
    remembered = _read_memory(store)
    out = []
    tree = Tree(site.module_tree)
    names = [one for one in tree.names() if name in ("", one) and _is_readable(tree, one)]
    released = [
        (one, entry) for one in names for entry in tree.ledger(one).entries if entry.state != "gone"
    ]
    last_read = {
        entry.key: max(_last_read(store, one, entry.release), remembered.get(entry.key, ""))
        for one, entry in released
    }
    oldest_first = sorted(last_read, key=lambda key: last_read[key])
    there = [key for key in oldest_first if store.published_image(key).is_file()]
    chosen = (set(oldest_first) - set(there)) | set(there[:most] if most else there)
    for one, entry in released:
        if entry.key in chosen:
            release = f"{one}/{entry.release}"
            if entry.key not in seals:
                progress(f"reading the image of {release}")
                seals[entry.key] = _seal_of(entry.key, store, bytes_a_second)
                remembered[entry.key] = datetime.now(timezone.utc).isoformat(timespec="seconds")
                _write_memory(store, remembered)
            found = seals[entry.key]
            wrong = found if isinstance(found, str) else ""
            if not isinstance(found, str) and found.sha256 != entry.sha256:
                wrong = (
                    f"it has sha256 {found.sha256[:12]}, and was published with {entry.sha256[:12]}"
                )
            image = str(store.published_image(entry.key))
            sealed = (
                not isinstance(found, str)
                and not wrong
                and renew_seal(store, one, entry.release, found)
            )
            out.append(Checked(release, image, wrong, sealed))
    return out


def _memory(store: Store) -> Path:
    """Where this user's reads of STORE's images are remembered."""
    digest = hashlib.sha256(str(store.top).encode()).hexdigest()
    return state_folder() / "read-images" / f"{digest[:16]}.json"


def _read_memory(store: Store) -> dict[str, str]:
    """{key of an image: when this user read it last}.

    A seal says that too, but not of an image that is wrong, nor where this user may not write
    seals: without it those would be read night after night, and the others never.
    """
    try:
        found = json.loads(read_text(_memory(store), MAX_MEMORY, own=True))
    except (OSError, ValueError, InputError):
        return {}
    return (
        {key: when for key, when in found.items() if isinstance(when, str)}
        if isinstance(found, dict)
        else {}
    )


def _write_memory(store: Store, read: dict[str, str]) -> None:
    """READ, of whatever module tree, but for images that are gone."""
    read = {key: when for key, when in read.items() if store.published_image(key).is_file()}
    with contextlib.suppress(OSError, InputError):
        write_text(_memory(store), json.dumps(read, indent=1) + "\n", 0o600, on_disk=False)


def _is_readable(tree: Tree, name: str) -> bool:
    """Whether the ledger of NAME can be read: `status --check` says of one that cannot."""
    try:
        return bool(tree.ledger(name))
    except StoreError:
        return False


def _last_read(store: Store, name: str, release: str) -> str:
    """When the image of a RELEASE was read last, in UTC; empty where nobody knows."""
    try:
        seal = read_seal(store, name, release)
    except StoreError:
        return ""
    return seal.read if seal else ""


def _seal_of(key: str, store: Store, bytes_a_second: int = 0) -> Seal | str:
    """The seal of the image of KEY as it is; else why there is none."""
    try:
        artifact = store.artifact(key)
        return take_seal(artifact.image, bytes_a_second) if artifact else "its image is gone"
    except StoreError as error:
        return error.message
