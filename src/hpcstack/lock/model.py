"""The lock of one stack: the base by digest, what it holds, and the checksum of the spec that it
was made from.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_bytes
from hpcstack.core.untrusted import safe_text
from hpcstack.hardware.facts import facts_of
from hpcstack.recipe.fields import REPOSITORY, Commit, Line, Model

if TYPE_CHECKING:
    from pathlib import Path

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
PlatformName = Annotated[str, Field(pattern=r"^linux/(amd64|arm64)$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Said = Annotated[str, AfterValidator(safe_text)]  # by the base of itself
Hash = Annotated[str, Field(pattern=r"^[a-z0-9]+:[0-9a-f]+$")]

FORMAT: Literal["hpcstack/lock/v1"] = "hpcstack/lock/v1"
MAX_LOCK = 16 << 20
UNKNOWN = f"sha256:{'0' * 64}"  # the digest of a base that nobody has looked up: lock/known.py
STAND_IN_LABEL = "org.hpcstack.stand-in"
TEMPLATE_VERSION = "10"  # of images/ and render/: a test holds it to what is rendered


class LockedApt(Model):
    """A Debian package that the stack adds to the base."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+:~-]*$")]
    file: Line = ""
    hash: str = Field(
        "", pattern=r"^(sha256:[0-9a-f]+)?$", description="as the archive lists it: sha256:..."
    )


class LockedPip(Model):
    """A Python package that the stack adds to the base, with the hashes of the files that may be
    taken.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9.!+_-]+$")]
    hashes: tuple[Hash, ...] = Field(min_length=1)
    file: Line = ""


class LockedConda(Model):
    """A conda package: what conda.py needs to install exactly this file.

    URL names the channel's own host.
    """

    name: Line
    version: Line
    build: Line
    build_number: int = 0
    subdir: Line
    noarch: Line | None = None
    url: Annotated[str, Field(pattern=r"^(https|file)://[^\s\x00-\x20]+$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]+$")]


class LockedPlatform(Model):
    """One platform of the base: its manifest, and the image config that the registry holds for it."""

    digest: Digest
    environment: dict[Variable, Said]
    labels: dict[Said, Said] = Field({})
    entrypoint: tuple[Said, ...] = ()
    command: tuple[Said, ...] = ()
    workdir: Said = ""
    compressed_bytes: int = 0
    apt: tuple[LockedApt, ...] | None = Field(None, description="None: not resolved")
    pip: tuple[LockedPip, ...] | None = None
    pip_build: tuple[LockedPip, ...] | None = Field(
        None,
        description="what pip's source distributions are built with; several versions of a project may be among them. "
        "None: not resolved, or none is built in an environment of its own",
    )
    conda: tuple[LockedConda, ...] | None = None
    left_out: tuple[Said, ...] | None = Field(
        None, description="extra indexes of the base's pip that did not answer"
    )

    def source_distributions(self) -> list[LockedPip]:
        """What of pip's set is built from source."""
        return [entry for entry in self.pip or () if not entry.file.endswith(".whl")]


class LockedBase(Model):
    """The base image as the registry that answered knows it."""

    registry: str = Field(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?$")
    repository: str = Field(pattern=rf"^{REPOSITORY}$")
    tag: str = Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")
    index_digest: Digest
    answered_by: Line
    signed_by: Digest | None = Field(
        None, description="fingerprint of the site's key that has signed it"
    )
    platforms: dict[PlatformName, LockedPlatform] = Field(min_length=1)


class AdoptedContents(Model):
    """What is in an image that was taken over.

    Nothing was resolved, and nothing of it can be made again.
    """

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    source: Line
    apt: dict[Said, Said] = Field({}, description="{Debian package: version}")
    pip: dict[Said, Said] = Field({}, description="{Python package: version}")
    conda: dict[Said, Said] = Field({}, description="{conda package: VERSION=BUILD}")
    base_said_by: Line = Field(
        "", description="what in the image names its base; empty: nothing does"
    )
    unknown: tuple[Line, ...] = Field((), description="what could not be known")


class Lock(Model):
    """What a stack's names meant when they were looked up.

    `unresolved` names what is only resolved in the build.
    """

    format: Literal["hpcstack/lock/v1"] = FORMAT
    stack: Line
    spec_sha256: Line
    template_version: str = "1"  # what locks were made for before they said so
    base: LockedBase
    sources: dict[Line, Commit] = Field({}, description="{name of a source: commit}")
    unresolved: tuple[Line, ...] = ()
    adopted: AdoptedContents | None = None

    def text(self) -> str:
        """The canonical file: same lock, same bytes."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"

    def file_text(self) -> str:
        """What is written down of it: the same with its checksum, which a change by hand does not
        keep.
        """
        opening = "{\n"
        return self.text().replace(
            opening, f'{opening}  "checksum": "sha256:{self.digest()}",\n', 1
        )

    @property
    def not_looked_up(self) -> bool:
        """Whether no registry has said what the base is. Such a lock is shown, never written and
        never built.

        What is locked of an adopted image is the image itself, whatever it was made from.
        """
        if self.adopted:
            return False
        return self.base.index_digest == UNKNOWN or any(
            one.digest == UNKNOWN for one in self.base.platforms.values()
        )

    def named(self, platform: str) -> str:
        """The base as a definition names it: by digest, or where that is not known by its tag."""
        digest = self.platform(platform).digest
        base = f"{self.base.registry}/{self.base.repository}"
        return f"{base}:{self.base.tag}" if digest == UNKNOWN else f"{base}@{digest}"

    def base_name(self) -> str:
        """The base in words: REGISTRY/REPOSITORY:TAG; of an adopted image what it says, or that it
        says nothing.
        """
        name = f"{self.base.registry}/{self.base.repository}:{self.base.tag}"
        if not self.adopted:
            return name
        return (
            f"{name} (as the image says)"
            if self.adopted.base_said_by
            else "not known: the image was adopted"
        )

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()

    def platform(self, name: str) -> LockedPlatform:
        try:
            return self.base.platforms[name]
        except KeyError:
            have = ", ".join(self.base.platforms)
            raise InputError(
                f"{self.stack} is locked for {have}, not for {name}", "add it to base.platforms"
            ) from None

    def stand_in(self) -> str:
        """What the base truly is, where it is a stand-in for NVIDIA's image; else nothing."""
        labels = [
            platform.labels.get(STAND_IN_LABEL, "") for platform in self.base.platforms.values()
        ]
        return next((label for label in labels if label), "")

    def facts(self, platform: str) -> dict[str, str]:
        """What the base says that it holds: {CUDA: 12.6.3.001, ...}, from its environment."""
        return facts_of(self.platform(platform).environment)


class _LockInFile(Lock):
    """A lock as it is written down."""

    checksum: Digest | None = Field(
        None, description="of the canonical text; locks of older hpcstacks have none"
    )


@dataclass(frozen=True)
class ReadLock:
    """A lock that was read, and whether it was changed since hpcstack wrote it."""

    lock: Lock
    edited: bool


def parse_lock(content: bytes, where: str) -> ReadLock:
    """The lock that CONTENT is. InputError, which names WHERE it came from, for anything else."""
    try:
        found = _LockInFile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{place}: {first['msg']}" if place else first["msg"]
        raise InputError(f"{where}: not a lock: {what}", _lock_anew(where)) from None
    fields = {name: getattr(found, name) for name in Lock.model_fields}
    lock = Lock.model_construct(found.model_fields_set - {"checksum"}, **fields)
    return ReadLock(lock, edited=found.checksum not in (None, f"sha256:{lock.digest()}"))


def read_lock_file(path: Path) -> ReadLock:
    """The lock in PATH. InputError where there is none."""
    try:
        content = read_bytes(path, MAX_LOCK)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", _lock_anew(str(path))) from None
    return parse_lock(content, str(path))


def read_lock(path: Path) -> Lock:
    """The lock in PATH, edited or not. InputError where there is none."""
    return read_lock_file(path).lock


def _lock_anew(where: str) -> str:
    return f"hpcstack lock {where.rpartition('/')[2].split('.lock')[0]}"
