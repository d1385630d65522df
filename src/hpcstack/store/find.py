"""Which image a text means: a file, a stack, STACK@ENGINE, or the beginning of a key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

SHORTEST_KEY = 6


def is_file(text: str) -> bool:
    """Whether TEXT names a file rather than a stack: `./image.sqsh`, `/x/image.sqsh`, a recipe."""
    return (
        text.endswith((".sqsh", ".sif", ".yaml"))
        or text.startswith(("/", "./", "../", "~"))
        or Path(text).is_file()
    )


def find_file(text: str, store: Store) -> Path:
    """The image that TEXT means: a file, a stack, STACK@ENGINE, or the beginning of a key."""
    if is_file(text):
        path = Path(text).expanduser().absolute()
        if not path.is_file():
            raise InputError(f"{path} does not exist")
        return path
    return find_image(text, store).image


def find_stored(text: str, store: Store) -> Artifact:
    """What the store wrote down of the image that TEXT means.

    InputError for a file that is not the store's.
    """
    if not is_file(text):
        return find_image(text, store)
    path = find_file(text, store)
    for one in store.images():
        if one.image.samefile(path):
            return one
    raise InputError(
        f"{path} is not in the store {store.top}", "hpcstack verify --signature is for any file"
    )


def find_image(text: str, store: Store) -> Artifact:
    """The stored image of a stack (the one built last), of STACK@ENGINE, or of the beginning of a
    key.
    """
    stack, _, engine = text.partition("@")
    if not engine and (found := store.newest(stack)):
        return found
    fitting = [
        one
        for one in store.images()
        if (one.stack == stack and one.engine == engine) or _is_key(text, one)
    ]
    if not fitting:
        raise InputError(
            f"the store has no image {text}", "hpcstack images --all shows what it has"
        )
    return fitting[-1]


def _is_key(text: str, one: Artifact) -> bool:
    return (
        len(text) >= SHORTEST_KEY
        and bool(re.fullmatch("[0-9a-f]+", text))
        and one.key.startswith(text)
    )


def newest_image(name: str, store: Store, platform: str = "") -> Artifact:
    """The image of NAME that was built last: for PLATFORM if there is one, else for any."""
    if artifact := store.newest_for(name, platform) or store.newest(name):
        return artifact
    built = ", ".join(store.stacks()) or "none"
    raise InputError(
        f"no image of {name} is in {store.top} (there: {built})", f"hpcstack build {name}"
    )


def image_with_key(stack: str, key: str, store: Store, platform: str = "") -> Artifact:
    """The image of STACK whose key begins with KEY; the newest, for PLATFORM, where KEY is empty."""
    if not key:
        return newest_image(stack, store, platform)
    found = [one for one in store.images() if one.key.startswith(key) and one.stack == stack]
    if len(found) != 1:
        raise InputError(
            f"--image {key}: {len(found)} images of {stack} begin so", "hpcstack images"
        )
    return found[0]
