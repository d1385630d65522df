"""What a build leaves: one image, and what is known of it.

Tested in tests/unit/store/test_store.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcstack.core.sharing import ALONE, Sharing

IMAGE = "image.sqsh"


@dataclass(frozen=True)
class Artifact:
    """One built image: ONE squashfs that Pyxis, Enroot and Apptainer all run."""

    stack: str  # NAME-VERSION
    key: str
    sha256: str  # of the image's bytes
    size: int  # bytes
    platform: str
    engine: str
    lock_sha256: str
    base: str
    stand_in: str  # what the base truly is, where it stands in for NVIDIA's image
    suite: str  # the smoke suite in the image
    facts: dict[str, str]  # {CUDA: its version, ...}
    apt: dict[str, str]
    pip: dict[str, str]
    conda: dict[str, str] = field(default_factory=dict)  # {name: VERSION=BUILD}
    environment: dict[str, str] = field(default_factory=dict)
    mode: str = "torchrun"
    mounts: list[str] = field(default_factory=list)  # SOURCE:TARGET, of the recipe
    slurm: bool = False  # Slurm's commands can be typed in its containers, as the recipe says
    folder: str = ""  # in which it lies in the store
    sharing: Sharing = field(default=ALONE, compare=False)  # whose files are believed there
    # why programs of its base and recipe ran beside the builder; empty where they could not
    unconfined: str = ""
    # where it was taken from, in words, if hpcstack did not build it; empty where it did
    adopted: str = ""
    # what of the image's packages could not be listed: `/var/lib/rpm: the packages of rpm, ...`
    unlisted: list[str] = field(default_factory=list)
    other: dict[str, str] = field(default_factory=dict)  # {package of rpm's or apk's: version}
    # {folder: {name: version}} of Python packages that the image's own python3 does not see. Of a
    # stored image they are in a file of their own: artifact_format.read_elsewhere
    elsewhere: dict[str, dict[str, str]] = field(default_factory=dict)
    bundled: str = ""  # the base, where a bundle brought it: no registry vouches for that

    @property
    def image(self) -> Path:
        """The absolute path of the image."""
        return Path(self.folder) / IMAGE

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, with the path of its image."""
        record = asdict(self)
        del record["elsewhere"], record["sharing"]
        return {**record, "image": str(self.image)}
