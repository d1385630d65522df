"""Libraries of the nodes' own that a step brings into its containers, as site.yaml says it."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from hpcstack.recipe.fields import Line, Model, Mount, Value, check_mount


class Reasoned(Model):
    """A value, and why it is so: nobody dares to remove a setting whose reason is lost."""

    value: Value
    reason: Line = Field(min_length=1, description="why this value, in a few words")


# Where libraries of the node lie in a container: INJECTION/FILE, and INJECTION.N for the Nth
# folder.
HOST_PLACE = "/opt/hpcstack-host"
SETTING = re.compile(r"(NCCL|UCX|UCC|OMPI_MCA|FI|MELLANOX|SHARP|NVSHMEM|GLOO|TP)_[A-Za-z0-9_]+")
LIBRARY = re.compile(r"[A-Za-z0-9_+.-]+\.so(\.[0-9]+)*")


def known_settings(settings: dict[str, Reasoned]) -> dict[str, Reasoned]:
    """SETTINGS, if each is one of a network library's."""
    for name in settings:
        if not SETTING.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a setting of NCCL, UCX, UCC, Open MPI, libfabric, SHARP or "
                f"NVSHMEM"
            )
    return settings


def host_path(text: str) -> str:
    """TEXT as an absolute path of the nodes that every runtime can mount."""
    check_mount(f"{text}:/x")
    if posixpath.normpath(text) != text or text == "/":
        raise ValueError(
            f"{text!r}: write an absolute path without '.', '..', '//' or a '/' at its end"
        )
    return text


HostPath = Annotated[str, AfterValidator(host_path)]
Settings = Annotated[dict[str, Reasoned], AfterValidator(known_settings)]


@dataclass(frozen=True)
class Brought:
    """What a container gets of one injection: `mounts` (SOURCE:TARGET); the loader there searches
    `folders`.
    """

    name: str
    sources: tuple[str, ...]
    mounts: tuple[str, ...]
    folders: tuple[str, ...]
    settings: dict[str, Reasoned]
    mapped: tuple[str, ...]
    reason: str


class Injection(Model):
    """Libraries of the nodes' own in the containers of a step on several nodes: what reaches the
    fabric there, in the version that the node's driver wants, which no image can know.
    """

    reason: Line = Field(min_length=1, description="what it is for, in a few words")
    node_types: tuple[str, ...] = Field((), description="only on these; all where it says nothing")
    cuda: tuple[str, ...] = Field(
        (), description="only in images with these major versions of CUDA, e.g. ['12']"
    )
    libraries: tuple[HostPath, ...] = Field(
        min_length=1,
        description="files (NAME.so, NAME.so.1) and folders of libraries; never the host's C "
        "library",
    )
    files: tuple[Mount, ...] = Field(
        (), description="SOURCE:TARGET of all else: configuration, folders of data"
    )
    settings: Settings = Field({}, description="FI_PROVIDER: {value: cxi, reason: ...}")
    mapped: tuple[str, ...] = Field(
        (),
        description="what a rank must have loaded from here, e.g. libnccl-net.so: the check "
        "fabric.injected",
    )

    @field_validator("cuda")
    @classmethod
    def _majors(cls, majors: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := next((one for one in majors if not one.isdecimal()), ""):
            raise ValueError(f"{wrong!r} is not a major version of CUDA, e.g. '12'")
        return majors

    @field_validator("mapped")
    @classmethod
    def _libraries(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := next((one for one in names if not LIBRARY.fullmatch(one)), ""):
            raise ValueError(f"{wrong!r} is not the name of a library, e.g. libfabric.so.1")
        return names

    @model_validator(mode="after")
    def _once(self) -> Injection:
        names = [posixpath.basename(path) for path in self.libraries if is_library(path)]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(
                f"libraries: {twice} is there twice, and only one of them would be found"
            )
        return self

    def bring(self, name: str) -> Brought:
        """What a container gets of it, where it is called NAME."""
        own = f"{HOST_PLACE}/{name}"
        files = [path for path in self.libraries if is_library(path)]
        whole = [path for path in self.libraries if not is_library(path)]
        mounts = [f"{path}:{own}/{posixpath.basename(path)}" for path in files]
        mounts += [f"{path}:{own}.{number}" for number, path in enumerate(whole, 1)]
        folders = [
            *([own] if files else []),
            *(f"{own}.{number}" for number, _ in enumerate(whole, 1)),
        ]
        sources = (*self.libraries, *(one.partition(":")[0] for one in self.files))
        return Brought(
            name,
            sources,
            (*mounts, *self.files),
            tuple(folders),
            self.settings,
            self.mapped,
            self.reason,
        )


def is_library(path: str) -> bool:
    """Whether PATH names a library's file, and no folder of them."""
    return LIBRARY.fullmatch(posixpath.basename(path)) is not None
