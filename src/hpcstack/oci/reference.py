"""What the user typed as an image: one in a registry, an OCI layout, an archive or the Docker
daemon.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from hpcstack.core.errors import InputError
from hpcstack.recipe.model import Base

OCI_ARCHIVE = "oci-archive"
EXAMPLES = (
    "nvcr.io/nvidia/pytorch:24.11-py3, oci:FOLDER, oci-archive:FILE, docker-archive:FILE, "
    "docker-daemon:NAME"
)
LOCAL = {  # prefix as skopeo, Docker and Enroot write it: our own name of the transport
    "oci": "oci",
    OCI_ARCHIVE: OCI_ARCHIVE,
    "docker-archive": "docker-archive",
    "docker-daemon": "docker-daemon",
    "dockerd": "docker-daemon",
}


@dataclass(frozen=True)
class Reference:
    """One image, wherever it lies.

    `transport` is `docker` for a registry, `oci`, `oci-archive`, `docker-archive` or `docker-daemon`.
    `base` is the registry's image, `path` the layout or archive, and `name` the image in it or in the
    daemon.
    """

    transport: str
    base: Base | None = None
    path: Path = Path()
    name: str = ""

    def __str__(self) -> str:
        if self.base:
            return self.base.image
        if self.transport == "docker-daemon":
            return f"{self.transport}:{self.name}"
        return f"{self.transport}:{self.path}"

    @property
    def file_name(self) -> str:
        """The name that `enroot import` would give the file: nvidia+pytorch+24.11-py3.sqsh."""
        if self.base:
            short_digest = self.base.digest.partition(":")[2][:12]
            text = f"{self.base.repository}+{self.base.tag or short_digest}"
        else:
            text = self.name or self.path.name.removesuffix(".tar") or "image"
        return re.sub(r"[^A-Za-z0-9._+-]", "+", text) + ".sqsh"


def parse_reference(text: str) -> Reference:
    """Parse TEXT as skopeo, Docker, Apptainer or Enroot would write an image.

    Raise InputError for anything else, and for a file or layout that does not exist.
    """
    transport, colon, rest = text.partition(":")
    if colon and transport in LOCAL:
        rest = rest.removeprefix("//")
        if not rest:
            raise InputError(
                f"{text!r} names no image", f"write e.g. {EXAMPLES}", page="import-a-base-image"
            )
        if LOCAL[transport] == "docker-daemon":
            return Reference("docker-daemon", name=rest)
        path, _, name = rest.partition(":")
        return _require_file(LOCAL[transport], Path(path), name)

    if text.startswith(("/", "./", "../", "~/")):
        local = Path(text).expanduser()
        transport = "oci" if local.is_dir() else "docker-archive"
        return _require_file(transport, local, "")

    return Reference("docker", base=parse_registry_image(text))


def _require_file(transport: str, path: Path, name: str) -> Reference:
    """Return the layout or archive at PATH as a Reference. Raise InputError if there is none."""
    wanted = path
    if transport == "oci":
        wanted = path / "index.json"
    if not wanted.is_file():
        raise InputError(
            f"{wanted} does not exist", f"write e.g. {EXAMPLES}", page="import-a-base-image"
        )
    return Reference(transport, path=path, name=name)


def parse_user(text: str) -> str:
    """Return the USER of Enroot's [USER@]HOST#REPOSITORY; empty if TEXT names none."""
    head, sharp, _ = text.removeprefix("docker://").partition("#")
    if not sharp:
        return ""
    return head.rpartition("@")[0]


def parse_registry_image(text: str) -> Base:
    """Parse TEXT as an image in a registry; paths and other transports are not accepted.

    Without a host, Docker Hub is meant; without a tag, `latest`. Raise InputError if TEXT is not a
    valid image name.
    """
    text = text.removeprefix("docker://")
    head, sharp, tail = text.partition("#")  # Enroot's [USER@]HOST#REPOSITORY
    if sharp:
        text = f"{head.rpartition('@')[2]}/{tail}"

    # As Docker decides it: the first part is a host only if it has a dot or a port, or is
    # localhost. Docker Hub's own images (`ubuntu`) are in its project `library`.
    host, slash, rest = text.partition("/")
    if not slash:
        host, rest = "docker.io", f"library/{text}"
    elif not re.search(r"[.:]|^localhost$", host):
        host, rest = "docker.io", text

    if re.fullmatch(r".*:sha256:[0-9a-f]{64}", rest):  # as Enroot before 4.0 writes a digest
        rest = rest.replace(":sha256:", "@sha256:")
    if not re.search(r":[^/]+$", rest):
        rest += ":latest"
    try:
        return Base.model_validate({"image": f"{host}/{rest}"})
    except ValidationError:
        raise InputError(
            f"{text!r} is not a valid image name",
            f"write e.g. {EXAMPLES}",
            page="import-a-base-image",
        ) from None
