"""The model of a lock: the base by digest, what it holds, the packages by version and hash, and the
checksum of the spec that it was made from.

Tested in tests/unit/lock/test_lock.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_bytes
from hpcstack.core.untrusted import read_safe_text, read_safe_word
from hpcstack.hardware.facts import read_facts_of
from hpcstack.recipe.fields import REPOSITORY, Commit, Line, Model

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.sharing import Sharing

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
PlatformName = Annotated[str, Field(pattern=r"^linux/(amd64|arm64)$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Said = Annotated[str, AfterValidator(read_safe_text)]  # what the base says of itself
Word = Annotated[str, AfterValidator(read_safe_word)]  # of the command that the base starts
Hash = Annotated[str, Field(pattern=r"^[a-z0-9]+:[0-9a-f]+$")]

FORMAT: Literal["hpcstack/lock/v1"] = "hpcstack/lock/v1"
MAX_LOCK = 16 << 20  # bytes
UNKNOWN = f"sha256:{'0' * 64}"  # the digest of a base that nobody has looked up: lock/known.py
STAND_IN_LABEL = "org.hpcstack.stand-in"
TEMPLATE_VERSION = "13"  # of images/ and render/: a test holds it to what is rendered


class LockedApt(Model):
    """A Debian package that the stack adds to the base."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+:~-]*$")]
    file: Line = ""
    hash: str = Field(
        "", pattern=r"^(sha256:[0-9a-f]+)?$", description="as the archive lists it: sha256:..."
    )


class LockedRpm(Model):
    """A package of rpm that the stack adds to the base."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*$")]
    version: Annotated[str, Field(pattern=r"^(?:[0-9]+:)?[A-Za-z0-9][A-Za-z0-9.+~^_-]*$")]
    arch: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    file: Line = ""
    hash: str = Field(
        pattern=r"^sha256:[0-9a-f]{64}$", description="as the repository lists it: sha256:..."
    )

    @property
    def nevra(self) -> str:
        """NAME-[EPOCH:]VERSION-RELEASE.ARCH, as dnf takes it."""
        return f"{self.name}-{self.version}.{self.arch}"


class LockedPip(Model):
    """A Python package that the stack adds to the base, with the hashes of files that will do."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9.!+_-]+$")]
    hashes: tuple[Hash, ...] = Field(min_length=1)
    file: Line = ""


class LockedConda(Model):
    """A conda package: what images/conda.py needs to install exactly this file.

    The URL is on the channel's own host.
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
    """One platform of the base: its digest, its image config, and the packages that were locked."""

    digest: Digest
    environment: dict[Variable, Said]
    labels: dict[Said, Said] = Field({})
    entrypoint: tuple[Word, ...] = ()
    command: tuple[Word, ...] = ()
    workdir: Said = ""
    compressed_bytes: int = 0
    apt: tuple[LockedApt, ...] | None = Field(None, description="None: not resolved")
    dnf: tuple[LockedRpm, ...] | None = None
    pip: tuple[LockedPip, ...] | None = None
    pip_build: tuple[LockedPip, ...] | None = Field(
        None,
        description="what pip's source distributions are built with; several versions of a project "
        "may be among them. None: not resolved, or none is built in an environment of its own",
    )
    conda: tuple[LockedConda, ...] | None = None
    left_out: tuple[Said, ...] | None = Field(
        None, description="extra indexes of the base's pip that did not answer"
    )

    def source_distributions(self) -> list[LockedPip]:
        """Return the Python packages that are built from source."""
        return [entry for entry in self.pip or () if not entry.file.endswith(".whl")]


class LockedBase(Model):
    """The base image, as the registry knew it that answered."""

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
    """What is in an adopted image. Nothing was resolved, and none of it can be made again."""

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
    """What a stack's names meant when they were looked up."""

    format: Literal["hpcstack/lock/v1"] = FORMAT
    stack: Line
    spec_sha256: Line
    template_version: str = "1"  # that of locks which do not name it
    base: LockedBase
    sources: dict[Line, Commit] = Field({}, description="{name of a source: commit}")
    unresolved: tuple[Line, ...] = ()  # what is left to the build, in words
    adopted: AdoptedContents | None = None
    project_sha256: Digest | None = Field(
        None, description="of what the project of packages.project asks for, with its hashes"
    )

    def text(self) -> str:
        """Return the canonical text: the same lock gives the same bytes."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"

    def file_text(self) -> str:
        """Return the text of the lock's file: the canonical text with its checksum in front.

        The checksum shows where somebody has edited the file.
        """
        opening = "{\n"
        checksum = f'  "checksum": "sha256:{self.digest()}",\n'
        return self.text().replace(opening, opening + checksum, 1)

    @property
    def not_looked_up(self) -> bool:
        """Whether no registry has said what the base is.

        Such a lock is shown, never written and never built. For an adopted image this is False,
        whatever its base was: the image itself is what is locked.
        """
        if self.adopted:
            return False
        return self.base.index_digest == UNKNOWN or any(
            one.digest == UNKNOWN for one in self.base.platforms.values()
        )

    def named(self, platform: str) -> str:
        """Return the base on PLATFORM as a definition names it: by digest, or by its tag where the
        digest is not known.
        """
        digest = self.platform(platform).digest
        base = f"{self.base.registry}/{self.base.repository}"
        return f"{base}:{self.base.tag}" if digest == UNKNOWN else f"{base}@{digest}"

    def base_name(self) -> str:
        """Return the base in words: REGISTRY/REPOSITORY:TAG.

        For an adopted image that is what the image says of its base, if it does.
        """
        name = f"{self.base.registry}/{self.base.repository}:{self.base.tag}"
        if not self.adopted:
            return name
        if self.adopted.base_said_by:
            return f"{name} (as the image says)"
        return "not known: the image was adopted"

    def digest(self) -> str:
        """Return the sha256 of the canonical text."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def platform(self, name: str) -> LockedPlatform:
        """Return what is locked for the platform NAME. InputError where nothing is."""
        try:
            return self.base.platforms[name]
        except KeyError:
            have = ", ".join(self.base.platforms)
            raise InputError(
                f"{self.stack} is locked for {have}, not for {name}",
                "add it to base.platforms",
                page="two-architectures",
            ) from None

    def stand_in(self) -> str:
        """Return what the base truly is, if it is a stand-in for NVIDIA's image; else empty."""
        labels = [
            platform.labels.get(STAND_IN_LABEL, "") for platform in self.base.platforms.values()
        ]
        return next((label for label in labels if label), "")

    def facts(self, platform: str) -> dict[str, str]:
        """Return what the base holds, as its environment says: {CUDA: 12.6.3.001, ...}."""
        return read_facts_of(self.platform(platform).environment)


class _LockInFile(Lock):
    """A lock with the checksum that its file holds."""

    checksum: Digest | None = Field(
        None, description="of the canonical text; locks of older hpcstacks have none"
    )


@dataclass(frozen=True)
class ReadLock:
    """A lock that was read, and whether it was edited since hpcstack wrote it."""

    lock: Lock
    edited: bool


def parse_lock(content: bytes, where: str) -> ReadLock:
    """Return the lock that CONTENT is.

    InputError for anything else; it names WHERE the content came from.
    """
    try:
        found = _LockInFile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{place}: {first['msg']}" if place else first["msg"]
        raise InputError(
            f"{where}: not a lock: {what}", _lock_anew(where), page="new-ngc-month"
        ) from None
    fields = {name: getattr(found, name) for name in Lock.model_fields}
    lock = Lock.model_construct(found.model_fields_set - {"checksum"}, **fields)
    return ReadLock(lock, edited=found.checksum not in (None, f"sha256:{lock.digest()}"))


def read_lock_file(path: Path, publishers: Sharing | None = None) -> ReadLock:
    """Return the lock in PATH. InputError where there is none.

    With PUBLISHERS also where its file belongs to somebody who is none of them.
    """
    try:
        content = read_bytes(path, MAX_LOCK, publishers=publishers)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}", _lock_anew(str(path)), page="new-ngc-month"
        ) from None
    return parse_lock(content, str(path))


def read_lock(path: Path) -> Lock:
    """Return the lock in PATH, edited or not. InputError where there is none."""
    return read_lock_file(path).lock


def _lock_anew(where: str) -> str:
    """Return what to type for a new lock: the name of the stack is that of the file."""
    return f"hpcstack lock {where.rpartition('/')[2].split('.lock')[0]}"
