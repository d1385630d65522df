"""What a store keeps of its releases: a record, the spec, lock and SBOM of each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import digest_of, read_bytes, read_text
from hpcstack.recipe.model import Stack
from hpcstack.store.store import MAX_RECORD, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.store.artifact import Artifact

RECORD = "release.json"


def read_releases(store: Store) -> Iterator[tuple[str, dict[str, str]]]:
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


def release_folder(store: Store, name: str, release: str) -> Path:
    return store.top / "releases" / name / release


def read_release(store: Store, name: str, release: str) -> tuple[Stack, Artifact]:
    """The spec and the image of a RELEASE, as it was published. StoreError where either is gone or damaged."""
    path = release_folder(store, name, release) / RECORD
    try:
        found = json.loads(read_bytes(path, MAX_RECORD))
        stack, artifact = Stack.model_validate(found["stack"]), store.artifact(found["key"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InputError) as error:
        tip = f"hpcstack publish {name}-{release.rpartition('-r')[0]}"
        raise StoreError(f"{path} cannot be read: {error}", tip) from None
    if not artifact:
        tip = f"hpcstack build {stack.full_name}"
        raise StoreError(f"the image of {name}/{release} is gone from {store.top}", tip)
    if digest_of(artifact.image) != artifact.sha256:
        raise StoreError(f"{artifact.image} is not what was built: its sha256 differs", "build and publish again")
    return stack, artifact


def read_attachments(store: Store, name: str, release: str) -> dict[str, str]:
    """{file name: text} of what a RELEASE keeps of its image: lock and SBOM."""
    folder = release_folder(store, name, release)
    known = ("lock.json", "sbom.json")
    return {one: read_text(folder / one, MAX_RECORD) for one in known if (folder / one).exists()}
