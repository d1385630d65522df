"""Reads the bytes of published images, to see whether they are still what was published.

It may keep to a rate, and read a few images a night, those first that were read longest ago.

Tested in tests/unit/publish/test_damage.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_text, write_text
from hpcstack.releases.seal import Seal, read_seal, renew_seal, take_seal
from hpcstack.releases.tree import Tree, open_tree

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.progress import Progress
    from hpcstack.releases.ledger import Entry
    from hpcstack.site.load import Site
    from hpcstack.store.store import Store


MAX_MEMORY = 4 << 20  # bytes of the file that remembers when images were read


@dataclass(frozen=True)
class Checked:
    """One release whose image was read."""

    release: str
    image: str
    wrong: str  # empty where the bytes are those that were published
    renewed: bool  # whether the seal is now of the file as it was read


def check_published(
    site: Site,
    store: Store,
    progress: Progress,
    *,
    bytes_a_second: int = 0,
    most: int = 0,
    name: str = "",
) -> list[Checked]:
    """Read the image of every release that gc has not taken; with NAME, of NAME's releases alone.

    An image that several releases name is read once. With MOST only that many images are read:
    those that were read longest ago, so that a site reads all of them over some nights. An image
    that is gone is reported each time, and does not count.
    """
    tree = open_tree(site)
    names = [one for one in tree.names() if name in ("", one) and _is_readable(tree, one)]
    releases = [
        (one, entry) for one in names for entry in tree.ledger(one).entries if entry.state != "gone"
    ]
    remembered = _read_memory(store)
    chosen = _choose_images(store, releases, remembered, most)

    seals: dict[str, Seal | str] = {}
    out = []
    for one, entry in releases:
        if entry.key not in chosen:
            continue
        release = f"{one}/{entry.release}"
        if entry.key not in seals:
            progress(f"reading the image of {release}")
            seals[entry.key] = _take_seal_of(entry.key, store, bytes_a_second)
            remembered[entry.key] = datetime.now(timezone.utc).isoformat(timespec="seconds")
            # After each image: a run that is interrupted keeps what it has done.
            _write_memory(store, remembered)

        seal = seals[entry.key]
        wrong, renewed = "", False
        if isinstance(seal, str):
            wrong = seal
        elif seal.sha256 != entry.sha256:
            wrong = f"it has sha256 {seal.sha256[:12]}, and was published with {entry.sha256[:12]}"
        else:
            renewed = renew_seal(store, one, entry.release, seal)
        image = str(store.published_image(entry.key))
        out.append(Checked(release, image, wrong, renewed))
    return out


def _choose_images(
    store: Store, releases: list[tuple[str, Entry]], remembered: dict[str, str], most: int
) -> set[str]:
    """Return the keys of the images to look at: all that are gone, and MOST of the others.

    Those that were read longest ago come first. All are chosen where MOST is 0.
    """
    last_read = {
        entry.key: max(_last_read(store, name, entry.release), remembered.get(entry.key, ""))
        for name, entry in releases
    }
    oldest_first = sorted(last_read, key=lambda key: last_read[key])
    there = [key for key in oldest_first if store.published_image(key).is_file()]
    gone = set(oldest_first) - set(there)
    return gone | set(there[:most] if most else there)


def _memory_file(store: Store) -> Path:
    """Return the file in which this user's reads of STORE's images are remembered."""
    digest = hashlib.sha256(str(store.top).encode()).hexdigest()
    return find_state_folder() / "read-images" / f"{digest[:16]}.json"


def _read_memory(store: Store) -> dict[str, str]:
    """Return {key of an image: when this user read it last}.

    A seal says so, too, but not of an image that is wrong, nor where this user may not write
    seals. Without this memory such images would be read night after night, and the others never.
    """
    try:
        found = json.loads(read_text(_memory_file(store), MAX_MEMORY, own=True))
    except (OSError, ValueError, InputError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: when for key, when in found.items() if isinstance(when, str)}


def _write_memory(store: Store, read: dict[str, str]) -> None:
    """Write READ, but for images that are gone. What cannot be written is not remembered.

    READ may hold images of the site's other module trees, which share the store: they stay.
    """
    read = {key: when for key, when in read.items() if store.published_image(key).is_file()}
    with contextlib.suppress(OSError, InputError):
        write_text(_memory_file(store), json.dumps(read, indent=1) + "\n", 0o600, on_disk=False)


def _is_readable(tree: Tree, name: str) -> bool:
    """Whether the ledger of NAME can be read. `status --check` reports one that cannot."""
    try:
        return bool(tree.ledger(name))
    except StoreError:
        return False


def _last_read(store: Store, name: str, release: str) -> str:
    """Return when the image of a RELEASE was last read, in UTC; empty where nobody knows."""
    try:
        seal = read_seal(store, name, release)
    except StoreError:
        return ""
    return seal.read if seal else ""


def _take_seal_of(key: str, store: Store, bytes_a_second: int = 0) -> Seal | str:
    """Read the image of KEY and return its seal; else return why there is none, in words."""
    try:
        artifact = store.artifact(key)
        return take_seal(artifact.image, bytes_a_second) if artifact else "its image is gone"
    except StoreError as error:
        return error.message
