"""Which image is meant: a registry's, an OCI layout's, an archive's or the Docker daemon's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from hpcstack.core.errors import InputError
from hpcstack.recipe.model import Base

EXAMPLES = "nvcr.io/nvidia/pytorch:24.11-py3, oci:FOLDER, docker-archive:FILE, docker-daemon:NAME"
LOCAL = {
    "oci": "oci",
    "docker-archive": "docker-archive",
    "docker-daemon": "docker-daemon",
    "dockerd": "docker-daemon",
}


@dataclass(frozen=True)
class Reference:
    """TRANSPORT is `docker` (then `base` says which), `oci`, `docker-archive` or `docker-daemon`."""

    transport: str
    base: Base | None = None
    path: Path = Path()
    name: str = ""

    def __str__(self) -> str:
        if self.base:
            return self.base.image
        return (
            f"{self.transport}:{self.name}"
            if self.transport == "docker-daemon"
            else f"{self.transport}:{self.path}"
        )

    @property
    def file_name(self) -> str:
        """The name that `enroot import` would give the file: nvidia+pytorch+24.11-py3.sqsh."""
        if self.base:
            text = (
                f"{self.base.repository}+{self.base.tag or self.base.digest.partition(':')[2][:12]}"
            )
        else:
            text = self.name or self.path.name.removesuffix(".tar") or "image"
        return re.sub(r"[^A-Za-z0-9._+-]", "+", text) + ".sqsh"


def parse_reference(text: str) -> Reference:
    """TEXT as skopeo, Docker, Apptainer or Enroot would write it; InputError for anything else."""
    transport, colon, rest = text.partition(":")
    if colon and transport in LOCAL:
        rest = rest.removeprefix("//")
        if not rest:
            raise InputError(f"{text}: nothing is named", f"write e.g. {EXAMPLES}")
        if LOCAL[transport] == "docker-daemon":
            return Reference("docker-daemon", name=rest)
        path, _, name = rest.partition(":")
        return _there(LOCAL[transport], Path(path), name)
    if text.startswith(("/", "./", "../", "~/")):
        local = Path(text).expanduser()
        return _there("oci" if local.is_dir() else "docker-archive", local, "")
    return Reference("docker", base=registry_image(text))


def _there(transport: str, path: Path, name: str) -> Reference:
    wanted = path / "index.json" if transport == "oci" else path
    if not wanted.is_file():
        raise InputError(f"{wanted} does not exist", f"write e.g. {EXAMPLES}")
    return Reference(transport, path=path, name=name)


def user_in(text: str) -> str:
    """The USER of Enroot's [USER@]HOST#REPOSITORY; empty where TEXT names none."""
    head, sharp, _ = text.removeprefix("docker://").partition("#")
    return head.rpartition("@")[0] if sharp else ""


def registry_image(text: str) -> Base:
    """TEXT as an image of a registry, and of nothing else.

    Without a host Docker Hub is meant, without a tag latest.
    """
    text = text.removeprefix("docker://")
    head, sharp, tail = text.partition("#")  # Enroot's [USER@]HOST#REPOSITORY
    if sharp:
        text = f"{head.rpartition('@')[2]}/{tail}"
    host, slash, rest = text.partition("/")
    if not slash or not re.search(r"[.:]|^localhost$", host):
        host, rest = "docker.io", text if slash else f"library/{text}"
    if re.fullmatch(r".*:sha256:[0-9a-f]{64}", rest):  # as Enroot before 4.0 writes a digest
        rest = rest.replace(":sha256:", "@sha256:")
    if not re.search(r":[^/]+$", rest):
        rest += ":latest"
    try:
        return Base.model_validate({"image": f"{host}/{rest}"})
    except ValidationError:
        raise InputError(f"{text!r} is not an image", f"write e.g. {EXAMPLES}") from None
