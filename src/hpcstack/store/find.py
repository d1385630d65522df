"""Finds the image that a text means: a file, a stack, STACK@ENGINE, or the beginning of a key.

Tested in tests/unit/launch/test_image.py and tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

SHORTEST_KEY = 6  # characters of a key that mean an image


def is_file(text: str) -> bool:
    """Whether TEXT names a file (`./image.sqsh`, `/x/image.sqsh`, a recipe) rather than a stack."""
    return (
        text.endswith((".sqsh", ".sif", ".yaml"))
        or text.startswith(("/", "./", "../", "~"))
        or Path(text).is_file()
    )


def find_file(text: str, store: Store) -> Path:
    """Return the file of the image that TEXT means. InputError where there is none."""
    if is_file(text):
        path = Path(text).expanduser().absolute()
        if not path.is_file():
            raise InputError(f"{path} does not exist")
        return path
    return find_image(text, store).image


def find_name_in_store(path: Path, store: Store) -> Path | None:
    """Return by which name the file PATH is an image of STORE; None where it is none."""
    return next((one.image for one in store.images() if one.image.samefile(path)), None)


def find_stored(text: str, store: Store) -> Artifact:
    """Return the stored image that TEXT means.

    InputError where there is none, or where TEXT is a file that is not in the store.
    """
    if not is_file(text):
        return find_image(text, store)
    path = find_file(text, store)
    for one in store.images():
        if one.image.samefile(path):
            return one
    raise InputError(
        f"{path} is not in the store {store.top}",
        "hpcstack verify --signature is for any file",
        page="sign-images",
    )


def find_image(text: str, store: Store) -> Artifact:
    """Return the newest stored image that TEXT means: a stack, STACK@ENGINE, or the beginning of
    a key.

    InputError where there is none.
    """
    stack, _, engine = text.partition("@")
    found = None if engine else store.newest(stack)
    if found:
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
    """Whether TEXT is long enough for a key, and the key of ONE begins with it."""
    if len(text) < SHORTEST_KEY or not re.fullmatch("[0-9a-f]+", text):
        return False
    return one.key.startswith(text)


def find_newest_image(name: str, store: Store, platform: str = "") -> Artifact:
    """Return the newest image of NAME: for PLATFORM if there is one, else for any platform.

    InputError where there is none.
    """
    artifact = store.newest_for(name, platform) or store.newest(name)
    if artifact:
        return artifact
    built = ", ".join(store.stacks()) or "none"
    raise InputError(
        f"no image of {name} is in {store.top} (there: {built})",
        f"hpcstack build {name}",
        page="build-my-own-stack",
    )


def find_image_with_key(stack: str, key: str, store: Store, platform: str = "") -> Artifact:
    """Return the one image of STACK whose key begins with KEY.

    Where KEY is empty, it is the newest one, for PLATFORM if there is one. InputError where no
    image, or more than one, has such a key.
    """
    if not key:
        return find_newest_image(stack, store, platform)
    found = [one for one in store.images() if one.key.startswith(key) and one.stack == stack]
    if len(found) != 1:
        raise InputError(
            f"--image {key}: {len(found)} images of {stack} have a key that begins with it",
            "hpcstack images",
        )
    return found[0]
