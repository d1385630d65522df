"""GPUs in Slurm's words: what somebody asks for, what a job has, what a node has. Pure.

Source of the forms: srun(1) (--gres, --gpus, --tres-per-task), sinfo(1) (%G), scontrol(1) (show
job), and src/interfaces/gres.c of Slurm 22.05 to 26.05. Whoever reads one of them reads it here.

An answer has three values: GPUs were asked for, none were, or what stands there is NOT UNDERSTOOD.
The last is never taken for none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcstack.slurm.options import GivenOption

NOTHING = ("", "none", "(null)", "n/a")  # in small letters
# Parts of a GPU that several jobs share (https://slurm.schedmd.com/gres.html). Whatever their
# number, a step with some of them sees one GPU.
SHARED = ("shard", "mps")
OF_GPUS = ("gpu", *SHARED)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
COUNT = re.compile(r"([0-9]{1,12})([kmgtp]?)", re.IGNORECASE)
SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
# A MIG slice, by the names of gres.conf and of NVML: 1g.10gb, a100_1g.5gb, nvidia_h100_..._4g.40gb
SLICE = re.compile(r"(?:^|[_-])(?:\d+c\.)?\d+g[._]\d+gb(?:[+-][a-z.]+)?(?:_\d+)?$", re.IGNORECASE)


class GresError(ValueError):
    """A list of generic resources that has another form than Slurm's."""


@dataclass(frozen=True)
class Gres:
    """One entry of a list of generic resources: COUNT of NAME, of a TYPE where one is named."""

    name: str
    type: str = ""
    count: int = 1

    @property
    def is_slice(self) -> bool:
        """Whether these are slices of a GPU (MIG), by their type."""
        return self.name == "gpu" and SLICE.search(self.type) is not None

    @property
    def value(self) -> str:
        """The value of --gpus-per-node and its like: [TYPE:]COUNT."""
        return f"{self.type}:{self.count}" if self.type else str(self.count)

    @property
    def devices(self) -> int:
        """The GPUs, or slices, that a program sees of these."""
        return min(self.count, 1) if self.name in SHARED else self.count


def read_gres(text: str) -> tuple[Gres, ...]:
    """Return the entries of TEXT, such as `gpu:3090:2,tmpfs:1`, `gres/gpu=4` or `gpu:8(S:0-1)`.

    Where no count is named, it is 1. Raise GresError for another form.
    """
    if text.strip().lower() in NOTHING:
        return ()
    without_places = re.sub(r"\([^()]*\)", "", text)
    return tuple(_read_entry(entry) for entry in without_places.split(","))


def _read_entry(entry: str) -> Gres:
    """Return what ENTRY says: NAME, NAME:COUNT, NAME:TYPE or NAME:TYPE:COUNT."""
    plain = re.sub(r"^gres[/:]", "", entry.strip())
    name, *words = re.split("[:=]", plain)
    words = [word for word in words if word != "no_consume"]  # as sinfo shows such a resource
    if not NAME.fullmatch(name) or len(words) > 2:
        raise GresError(entry)
    if not words:
        return Gres(name)

    count = COUNT.fullmatch(words[-1])
    has_type = len(words) == 2 or not count
    type_name = words[0] if has_type else ""
    if has_type and not TYPE.fullmatch(type_name):
        raise GresError(entry)
    if not count and not re.search("[A-Za-z]", type_name):
        raise GresError(entry)  # 1.5 is neither a type nor a number
    if not count:
        if len(words) == 2:
            raise GresError(entry)
        return Gres(name, type_name)
    return Gres(name, type_name, int(count[1]) * SUFFIXES[count[2].lower()])


def is_slice(type_name: str) -> bool:
    """Whether TYPE_NAME, of gres.conf, is that of MIG slices."""
    return Gres("gpu", type_name).is_slice


def parse_gpus(text: str) -> tuple[Gres, ...]:
    """Return the GPUs in TEXT, a value of --gpus and its like: [TYPE:]COUNT, or several of them.

    Raise GresError for another form.
    """
    return tuple(_read_entry(f"gpu:{one}") for one in text.split(","))


def read_tres(text: str) -> tuple[Gres, ...]:
    """Return the generic resources in TEXT, a list of all that Slurm counts: `cpu=4,gres/gpu=1`.

    A list that scontrol shows has a total beside the numbers of each type that the site tracks:
    `gres/gpu=8,gres/gpu:h100=4`. What is left of the total has no type. Raise GresError for another
    form.
    """
    if text.strip().lower() in NOTHING:
        return ()
    found = [_read_entry(one) for one in text.split(",") if re.match(r"\s*gres[/:]", one)]
    out = []
    for one in found:
        of_types = sum(other.count for other in found if other.type and other.name == one.name)
        left = one.count - of_types
        if one.type or not of_types:
            out.append(one)
        elif left > 0:
            out.append(replace(one, count=left))
    return tuple(out)


def count_gpus(text: str) -> int | None:
    """Return the GPUs and slices of a node in TEXT, what sinfo shows of it (%G).

    None where it is not understood.
    """
    try:
        return sum(one.count for one in read_gres(text) if one.name == "gpu")
    except GresError:
        return None


# -- what somebody asks for


class Per(Enum):
    """What a number of GPUs is meant for."""

    NODE = "node"
    TASK = "task"
    SOCKET = "socket"
    JOB = "job"


# The options that ask for GPUs, and variables named after them: SLURM_GPUS_PER_NODE and the like.
ASKING = {
    "--gpus-per-node": Per.NODE,
    "--gres": Per.NODE,
    "--gpus-per-task": Per.TASK,
    "--tres-per-task": Per.TASK,
    "--gpus-per-socket": Per.SOCKET,
    "--gpus": Per.JOB,
}
# What `scontrol show job` calls them
SHOWN = {
    "TresPerNode": Per.NODE,
    "TresPerTask": Per.TASK,
    "TresPerSocket": Per.SOCKET,
    "TresPerJob": Per.JOB,
}


@dataclass(frozen=True)
class GpuRequest:
    """GPUs that SOURCE asks for, as it was written: `--gres=gpu:2` or `SLURM_GPUS_PER_NODE=4`.

    `gpus` are its entries about GPUs: empty where it asks for none, and None where what it says is
    not understood.
    """

    source: str
    per: Per
    gpus: tuple[Gres, ...] | None

    @property
    def option(self) -> str:
        """The option that it is, or that its variable stands for: --gres of SLURM_GRES."""
        name = self.source.partition("=")[0]
        if name.startswith("--"):
            return name
        return f"--{name.partition('_')[2].lower().replace('_', '-')}"

    @property
    def is_understood(self) -> bool:
        return self.gpus is not None

    @property
    def asks_for_none(self) -> bool:
        """Whether it says that there shall be no GPU."""
        return self.gpus is not None and not self.devices

    @property
    def devices(self) -> int:
        """The GPUs, or slices, that a program sees of these; 0 where they are not understood."""
        return sum(one.devices for one in self.gpus or ())

    @property
    def is_of_shares(self) -> bool:
        """Whether it asks for parts of GPUs that several jobs share, and for no whole one."""
        return bool(self.gpus) and all(one.name in SHARED for one in self.gpus or ())

    @property
    def types(self) -> tuple[str, ...]:
        """The types that are asked for by name."""
        return tuple(one.type for one in self.gpus or () if one.type)

    def count_on_node(self, nodes: int, tasks: int) -> int | None:
        """Return the GPUs of a node, of NODES, with so many TASKS on it; None where nobody knows."""
        if self.gpus is None:
            return None
        if not self.devices or self.per is Per.NODE:
            return self.devices
        if self.per is Per.TASK:
            return self.devices * tasks if tasks else None
        if self.per is Per.JOB and nodes and self.devices % nodes == 0:
            return self.devices // nodes
        return None


def read_gpu_request(option: str, value: str, source: str) -> GpuRequest | None:
    """Return what VALUE of an OPTION of srun's asks for; None where it is not about GPUs.

    An empty value, as of an unset variable of a script, asks for nothing at all.
    """
    per = ASKING[option]
    if not value.strip():
        return None
    try:
        if option == "--tres-per-task":
            entries = read_tres(value)
        elif option == "--gres":
            entries = read_gres(value)
        else:
            entries = parse_gpus(value)
    except GresError:
        return GpuRequest(source, per, None)

    gpus = tuple(one for one in entries if one.name in OF_GPUS)
    asks_for_nothing = option == "--gres" and not entries
    if not gpus and not asks_for_nothing:
        return None
    return GpuRequest(source, per, gpus)


def list_requests(given: Iterable[GivenOption]) -> tuple[GpuRequest, ...]:
    """Return what the options GIVEN ask for; of an option that is given twice the last one."""
    last = {one.name: one for one in given if one.name in ASKING}
    found = (read_gpu_request(name, one.value or "", one.word) for name, one in last.items())
    return tuple(one for one in found if one)


def list_requests_of_variables(variables: Mapping[str, str], prefix: str) -> tuple[GpuRequest, ...]:
    """Return what the VARIABLES of a job, or of this shell, ask for: PREFIX is SLURM, SBATCH, ..."""
    found = []
    for option in ASKING:
        name = f"{prefix}_{option.removeprefix('--').replace('-', '_').upper()}"
        value = variables.get(name, "")
        if value:
            found.append(read_gpu_request(option, value, f"{name}={value}"))
    return tuple(one for one in found if one)


def list_requests_of_job(record: Mapping[str, str]) -> tuple[GpuRequest, ...]:
    """Return what a job asks for, by its RECORD: the fields of `scontrol show job`."""
    found = []
    for field, per in SHOWN.items():
        text = record.get(field, "")
        if not text:
            continue
        try:
            entries: tuple[Gres, ...] | None = read_tres(text)
        except GresError:
            entries = None
        gpus = entries and tuple(one for one in entries if one.name in OF_GPUS)
        if gpus or entries is None:
            found.append(GpuRequest(f"{field}={text}", per, gpus))
    return tuple(found)


def count_job_gpus(record: Mapping[str, str]) -> int | None:
    """Return the GPUs on each node of a job, by its RECORD of `scontrol show job`.

    None where the record does not say: Slurm counts GPUs for all of a job's nodes together, and
    only where the site tracks them (AccountingStorageTRES).
    """
    nodes = record.get("NumNodes", "").partition("-")[0]
    if not nodes.isdigit() or not int(nodes):
        return None
    has = record.get("AllocTRES") or record.get("TRES", "")
    try:
        entries = [one for one in read_tres(has) if one.name == "gpu"]
    except GresError:
        return None
    if entries:
        every = GpuRequest("", Per.JOB, tuple(entries))
        return every.count_on_node(int(nodes), 0)
    asked = list_requests_of_job(record)
    return count_gpus_asked(asked, int(nodes), 0) if asked else None


def count_tasks_of_gpus(requests: Iterable[GpuRequest]) -> int:
    """Return the tasks of a node that REQUESTS for the node and for a task make together; 0 for none."""
    devices = {one.per: one.devices for one in requests}
    of_a_task = devices.get(Per.TASK, 0)
    return devices.get(Per.NODE, 0) // of_a_task if of_a_task else 0


def count_gpus_asked(requests: Iterable[GpuRequest], nodes: int, tasks: int) -> int | None:
    """Return the GPUs of a node that REQUESTS ask for; None where nobody knows.

    There are so many NODES, with so many TASKS on each. The first request that has a number says
    it: Slurm takes several that agree. What is not understood has no number, and spoils that of the
    others.
    """
    said = tuple(requests)
    if not all(one.is_understood for one in said):
        return None
    counts = (one.count_on_node(nodes, tasks) for one in said)
    return next((count for count in counts if count is not None), None)
