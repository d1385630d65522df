"""What the store keeps of each release: its record with the spec, its lock and its SBOM.

Tested in tests/unit/publish/test_provenance.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_bytes, read_text
from hpcstack.core.records import Digest, Format, Key, Plain, Record, Text
from hpcstack.recipe.model import Stack
from hpcstack.store.store import MAX_RECORD, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.store.artifact import Artifact

RECORD = "release.json"
# copies of the modulefiles in a release's folder: for Lmod, and for Environment Modules
KEPT_FILES = ("modulefile.lua", "modulefile.tcl")
Pair = Annotated[list[Plain], Field(min_length=2, max_length=2)]


class ReleaseRecord(Record):
    """What a release says of itself: the document in release.json."""

    format: Text
    release: Text  # NAME/VERSION-rN
    channel: Text
    key: Key
    sha256: Digest
    lock_sha256: Digest | Literal[""] = ""
    made: Text
    by: Text
    fits: list[Pair] = Field(default_factory=list)  # how each node type's driver runs the image
    tested: list[Pair] = Field(default_factory=list)
    override: Text = ""
    hpcstack: Text = ""  # the version of hpcstack that published it
    recipe_commit: Text = ""  # what git said of the recipe then
    stack: dict[str, Any]


# format 2 brought `hpcstack` and `recipe_commit`
RELEASE = Format("hpcstack/modules", 2, ReleaseRecord)


def read_record(store: Store, name: str, release: str) -> ReleaseRecord | None:
    """Return the record of a RELEASE of NAME; None where there is none.

    StoreError where it is damaged, or is that of another release.
    """
    path = name_release_folder(store, name, release) / RECORD
    remedy = (
        f"what {name}/{release} needs is not known: restore it, or hpcstack publish "
        f"{name}-{parse_version_of(release)}"
    )
    found = _read_record_file(store, path, remedy)
    if found and found.release != f"{name}/{release}":
        raise StoreError(
            f"{path} is damaged: it is the record of {found.release}",
            remedy,
            page="repair-what-is-published",
        )
    return found


def _read_record_file(store: Store, path: Path, remedy: str) -> ReleaseRecord | None:
    """Return the record in PATH; None where there is none. StoreError, with REMEDY: it is damaged."""
    try:
        document = json.loads(read_bytes(path, MAX_RECORD, publishers=store.sharing))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError, InputError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}", remedy, page="repair-what-is-published"
        ) from None
    return RELEASE.read(document, str(path), remedy)


def parse_version_of(release: str) -> str:
    """Return the version of RELEASE, which is VERSION-rN."""
    return release.rpartition("-r")[0]


def read_releases(store: Store) -> Iterator[tuple[str, ReleaseRecord]]:
    """Yield (NAME/VERSION-rN, its record) of all releases in STORE.

    StoreError where a record cannot be read. What a publish has prepared, or has left when it was
    killed, is no release: its name begins with a dot (journal.name_prepared).
    """
    for path in sorted(store.releases.glob(f"*/[!.]*/{RECORD}")):
        name, release = path.parent.parent.name, path.parent.name
        if found := read_record(store, name, release):
            yield f"{name}/{release}", found


def read_prepared(store: Store) -> Iterator[ReleaseRecord]:
    """Yield the records of releases that a publish is preparing, or has left when it was killed.

    Nothing may take their images away: a publish may be at work on one. StoreError where a record
    cannot be read.
    """
    remedy = "wait for who publishes, or publish that stack again, which sweeps what was left"
    for path in sorted(store.releases.glob(f"*/.*/{RECORD}")):
        if found := _read_record_file(store, path, remedy):
            yield found


def name_release_folder(store: Store, name: str, release: str) -> Path:
    """Return the folder of a RELEASE of NAME in STORE."""
    return store.releases / name / release


def read_release(store: Store, name: str, release: str) -> tuple[Stack, Artifact]:
    """Return the spec and the image of a RELEASE of NAME, as it was published.

    StoreError where either is gone or damaged. The bytes of the image are not read: publishing does
    so (releases/seal.py).
    """
    found = read_record(store, name, release)
    path = name_release_folder(store, name, release) / RECORD
    if not found:
        raise StoreError(
            f"{path} is gone",
            f"hpcstack publish {name}-{parse_version_of(release)}",
            page="repair-what-is-published",
        )
    try:
        stack = Stack.model_validate(found.stack)
    except ValueError as error:
        raise StoreError(
            f"{path} is damaged: its stack: {error}"[:500],
            "restore it from a backup",
            page="repair-what-is-published",
        ) from None

    artifact = store.artifact(found.key)
    if not artifact:
        tip = f"hpcstack build {stack.full_name}"
        raise StoreError(
            f"the image of {name}/{release} is gone from {store.top}",
            tip,
            page="repair-what-is-published",
        )
    if artifact.sha256 != found.sha256:
        raise StoreError(
            f"{artifact.image} is not what was built: its sha256 differs",
            "build and publish again",
            page="repair-what-is-published",
        )
    return stack, artifact


def read_attachments(store: Store, name: str, release: str) -> dict[str, str]:
    """Return {file name: text} of the lock and the SBOM of a RELEASE, as far as they are there.

    InputError for a file that is not a publisher's: it would become part of the next release.
    """
    folder = name_release_folder(store, name, release)
    known = ("lock.json", "sbom.json")
    return {
        one: read_text(folder / one, MAX_RECORD, publishers=store.sharing)
        for one in known
        if (folder / one).exists()
    }
