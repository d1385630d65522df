"""Libraries of the nodes that a step brings into its containers, as site.yaml names them.

Tested in tests/unit/launch/test_host_libraries.py.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from hpcstack.recipe.fields import Line, Model, Mount, Value, check_mount


class Reasoned(Model):
    """A value, and why it is so: nobody dares to remove a setting whose reason is lost."""

    value: Value = Field(description="The value; empty for an option that has none.")
    reason: Line = Field(min_length=1, description="Why this value, in a few words.")


# Options of srun that hpcstack works out for each launch, from what is asked for, or judges it by.
# A site cannot give them.
WORKED_OUT = (
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--partition",
    "--nodelist",
    "--clusters",
    "--relative",
    "--distribution",
    "--export",
    "--job-name",
    "--comment",
    "--prolog",
    "--segment",
)
OPTION = re.compile(r"--[a-z][a-z0-9-]*")


def check_site_options(options: dict[str, Reasoned]) -> dict[str, Reasoned]:
    """Return OPTIONS. Raise ValueError for what is no long option of srun's, or is hpcstack's own."""
    from hpcstack.slurm.gpus import ASKING, read_gpu_request
    from hpcstack.slurm.options import GivenOption
    from hpcstack.slurm.rivals import GIVING_TASKS, find_rivals

    worked_out = (*WORKED_OUT, *GIVING_TASKS, *(one for one in ASKING if one != "--gres"))
    for name, row in options.items():
        if not OPTION.fullmatch(name):
            raise ValueError(f"{name!r}: write the long form of an option of srun's, as --mem")
        is_of_gpus = name == "--gres" and read_gpu_request(name, row.value, "") is not None
        if name in worked_out or name.startswith("--container") or is_of_gpus:
            raise ValueError(f"{name}: hpcstack works it out for each launch")
    given = [GivenOption(name, row.value or None) for name, row in options.items()]
    for one in given:
        if rivals := find_rivals(one, given):
            raise ValueError(f"{one.word} and {rivals[0].word}: Slurm takes only one of them")
    return options


# Where libraries of the node lie in a container: INJECTION/FILE, and INJECTION.N for the Nth
# folder.
HOST_PLACE = "/opt/hpcstack-host"
SETTING = re.compile(r"(NCCL|UCX|UCC|OMPI_MCA|FI|MELLANOX|SHARP|NVSHMEM|GLOO|TP)_[A-Za-z0-9_]+")
LIBRARY = re.compile(r"[A-Za-z0-9_+.-]+\.so(\.[0-9]+)*")


def check_known_settings(settings: dict[str, Reasoned]) -> dict[str, Reasoned]:
    """Return SETTINGS. Raise ValueError for a name that is no variable of a network library."""
    for name in settings:
        if not SETTING.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a setting of NCCL, UCX, UCC, Open MPI, libfabric, SHARP or "
                f"NVSHMEM"
            )
    return settings


def check_host_path(text: str) -> str:
    """Return TEXT, an absolute path on nodes. Raise ValueError where no runtime can mount it."""
    check_mount(f"{text}:/x")
    if posixpath.normpath(text) != text or text == "/":
        raise ValueError(
            f"{text!r}: write an absolute path without '.', '..', '//' or a '/' at its end"
        )
    return text


HostPath = Annotated[str, AfterValidator(check_host_path)]
Settings = Annotated[dict[str, Reasoned], AfterValidator(check_known_settings)]
SiteOptions = Annotated[dict[str, Reasoned], AfterValidator(check_site_options)]


@dataclass(frozen=True)
class Brought:
    """What a container gets of one injection.

    SOURCES are paths on the node. MOUNTS are SOURCE:TARGET. FOLDERS, in the container, are those
    that the loader searches before the image's own.
    """

    name: str
    sources: tuple[str, ...]
    mounts: tuple[str, ...]
    folders: tuple[str, ...]
    settings: dict[str, Reasoned]
    mapped: tuple[str, ...]
    reason: str


class Injection(Model):
    """Libraries of the nodes, brought into the containers of a step on several nodes.

    They reach the fabric there, in the version that the node's driver needs and no image can know.
    """

    reason: Line = Field(min_length=1, description="What these libraries are for, in a few words.")
    node_types: tuple[str, ...] = Field(
        (),
        description="Names in `node_types`: only nodes of these kinds get the libraries. By "
        "default all do.",
    )
    cuda: tuple[str, ...] = Field(
        (),
        description="Major versions of CUDA: only images with one of them get the libraries, e.g. "
        "['12']. By default all do.",
    )
    libraries: tuple[HostPath, ...] = Field(
        min_length=1,
        description="Absolute paths on the nodes: library files (NAME.so, NAME.so.1) and folders "
        "of libraries. The loader searches them before the image's own. A folder must not contain "
        "the node's C library.",
    )
    files: tuple[Mount, ...] = Field(
        (),
        description="Other files and folders that the libraries need, such as configuration: "
        "SOURCE:TARGET.",
    )
    settings: Settings = Field(
        {},
        description="Variables for steps that get the libraries, each with the reason for it: "
        "{FI_PROVIDER: {value: cxi, reason: ...}}.",
    )
    mapped: tuple[str, ...] = Field(
        (),
        description="Names of libraries that each rank must have loaded from here, e.g. "
        "libnccl-net.so. The check fabric.injected fails where one came from the image.",
    )

    @field_validator("cuda")
    @classmethod
    def _check_majors(cls, majors: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := next((one for one in majors if not one.isdecimal()), ""):
            raise ValueError(f"{wrong!r} is not a major version of CUDA, e.g. '12'")
        return majors

    @field_validator("mapped")
    @classmethod
    def _check_library_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := next((one for one in names if not LIBRARY.fullmatch(one)), ""):
            raise ValueError(f"{wrong!r} is not the name of a library, e.g. libfabric.so.1")
        return names

    @model_validator(mode="after")
    def _check_unique(self) -> Injection:
        """Refuse two files of one name: they would lie in one folder of the container."""
        names = [posixpath.basename(path) for path in self.libraries if is_library(path)]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(
                f"libraries: {twice} is there twice, and only one of them would be found"
            )
        return self

    def bring(self, name: str) -> Brought:
        """Return what a container gets of this injection, whose name is NAME."""
        own = f"{HOST_PLACE}/{name}"
        files = [path for path in self.libraries if is_library(path)]
        whole = [path for path in self.libraries if not is_library(path)]
        mounts = [f"{path}:{own}/{posixpath.basename(path)}" for path in files]
        folders = [own] if files else []
        for number, path in enumerate(whole, 1):
            mounts.append(f"{path}:{own}.{number}")
            folders.append(f"{own}.{number}")
        sources = (*self.libraries, *(one.partition(":")[0] for one in self.files))
        return Brought(
            name=name,
            sources=sources,
            mounts=(*mounts, *self.files),
            folders=tuple(folders),
            settings=self.settings,
            mapped=self.mapped,
            reason=self.reason,
        )


def is_library(path: str) -> bool:
    """Return whether PATH names a library file, and not a folder of libraries."""
    return LIBRARY.fullmatch(posixpath.basename(path)) is not None
