"""The one reader and writer of artifact.json.

Whoever may write to the store may write that file, so no field of it becomes a path.

Tested in tests/unit/store/test_store.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_bytes
from hpcstack.core.records import Digest, Format, Key, Plain, Record, Text
from hpcstack.core.sharing import ALONE, Sharing
from hpcstack.store.artifact import Artifact

REMEDY = "remove the folder and build again"
EMPTY = Annotated[str, StringConstraints(pattern="^$")]


class _Artifact(Record):
    format: Text
    stack: Text
    key: Key
    sha256: Digest | EMPTY
    size: Annotated[int, Field(ge=0)]
    platform: Text
    engine: Text
    lock_sha256: Digest | EMPTY
    base: Text
    stand_in: Text
    suite: Text
    facts: dict[Plain, Plain]
    apt: dict[Plain, Plain]
    pip: dict[Plain, Plain]
    conda: dict[Plain, Plain] = Field(default_factory=dict)
    environment: dict[Plain, str] = Field(default_factory=dict)
    mode: Text = "torchrun"
    mounts: list[Text] = Field(default_factory=list)
    slurm: bool = False
    adopted: Text = ""
    bundled: Text = ""
    unconfined: Text = ""
    unlisted: list[Text] = Field(default_factory=list)
    other: dict[Plain, Plain] = Field(default_factory=dict)


class _Elsewhere(Record):
    format: Text
    elsewhere: dict[Plain, dict[Plain, Plain]]


ARTIFACT = Format("hpcstack/artifact", 1, _Artifact)
# A file of its own: nearly every image has such packages, and an hpcstack that does not know them
# refuses a record with a field that is new.
ELSEWHERE = "elsewhere.json"  # beside artifact.json
PACKAGES = Format("hpcstack/packages-elsewhere", 1, _Elsewhere)
MAX_ELSEWHERE = 16 << 20  # bytes


def write_artifact(artifact: Artifact) -> str:
    """Return the text of artifact.json. It names no folder: the image lies where the file lies.

    Some fields are named only where they are set: an hpcstack that does not know them reads all
    others.
    """
    record = asdict(artifact)
    del record["folder"], record["sharing"], record["elsewhere"]
    for name in ("slurm", "unlisted", "other"):
        if not record[name]:
            del record[name]
    return json.dumps({"format": ARTIFACT.name, **record}, indent=1, sort_keys=True) + "\n"


def write_elsewhere(artifact: Artifact) -> str:
    """Return the text of elsewhere.json: the Python packages of ARTIFACT that lie elsewhere."""
    record = {"format": PACKAGES.name, "elsewhere": artifact.elsewhere}
    return json.dumps(record, indent=1, sort_keys=True) + "\n"


def read_elsewhere(artifact: Artifact) -> dict[str, dict[str, str]] | None:
    """Return {folder: {name: version}} of the Python packages of ARTIFACT that lie elsewhere.

    Those of a stored image are read from its elsewhere.json. None where that is not there: an older
    hpcstack, which did not look for them, has stored the image. StoreError where it is damaged.
    """
    if artifact.elsewhere or not artifact.folder:
        return artifact.elsewhere
    path = Path(artifact.folder) / ELSEWHERE
    try:
        document: Any = json.loads(read_bytes(path, MAX_ELSEWHERE, publishers=artifact.sharing))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, InputError) as error:
        raise StoreError(f"{path} cannot be read: {error}", REMEDY) from None
    return PACKAGES.read(document, str(path), REMEDY).elsewhere


def read_artifact(text: bytes, folder: str, sharing: Sharing = ALONE) -> Artifact:
    """Return the image that TEXT, the artifact.json of FOLDER, describes; SHARING is the store's.

    StoreError where it describes none. ValueError or RecursionError where it is not JSON. A record
    without a format is older than formats: its unknown fields are ignored.
    """
    document: Any = json.loads(text)
    if isinstance(document, dict) and "format" not in document:
        known = {entry.name for entry in fields(Artifact)} - {"folder", "sharing"}
        document = {
            "format": ARTIFACT.name,
            **{name: value for name, value in document.items() if name in known},
        }
    found = ARTIFACT.read(document, f"{folder}/artifact.json", REMEDY)
    return Artifact(**found.model_dump(exclude={"format"}), folder=folder, sharing=sharing)


def check_changeable(text: bytes, folder: str) -> None:
    """Raise StoreError where TEXT, the artifact.json of FOLDER, is of a newer hpcstack.

    A damaged one may be replaced.
    """
    try:
        document = json.loads(text)
        ARTIFACT.number_of(document, folder, REMEDY)
    except (ValueError, RecursionError, StoreError):
        return
    ARTIFACT.check_changeable(document, f"{folder}/artifact.json")
