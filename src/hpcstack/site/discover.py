"""What this machine and its Slurm say of the site.

It is read by the tools that are there; nothing is guessed.

Tested in tests/unit/site/test_write.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.hardware import facts
from hpcstack.slurm.client import Client
from hpcstack.slurm.gpus import Gres, GresError, read_gres

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.process import Runner

NVIDIA = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
TOOLS = {
    "apptainer": ("apptainer", "--version"),
    "enroot": ("enroot", "version"),
    "srun": ("srun", "--version"),
    "git": ("git", "--version"),
}


@dataclass(frozen=True)
class Nodes:
    """Nodes of one partition that are alike: a line of sinfo.

    `gpus` are whole ones, of the `model`; `slices` are those of MIG. `unread` is what sinfo says of
    their generic resources, where that is not understood.
    """

    partition: str
    default: bool
    count: int
    cpus: int
    gpus: int
    model: str
    slices: tuple[Gres, ...] = ()
    unread: str = ""

    @property
    def type_name(self) -> str:
        """A name for their kind: `h100x8`, `a100mig28`, `gpu4` without a model, `cpu64`."""
        if self.unread:
            return f"unread{self.cpus}"
        if not self.gpus and not self.slices:
            return f"cpu{self.cpus}"
        model = self.model
        if not model and self.slices:
            model = self.slices[0].type
        known = facts.find_gpu(model)
        if known:
            model = known.model

        name = re.sub(r"[^a-z0-9]+", "", model.lower())
        if self.gpus and name:
            name += f"x{self.gpus}"
        elif self.gpus:
            name = f"gpu{self.gpus}"
        slices = sum(one.count for one in self.slices)
        if slices:
            name += f"mig{slices}"
        return name


@dataclass(frozen=True)
class Hca:
    """One InfiniBand or RoCE device of this machine."""

    name: str
    link: str
    state: str


@dataclass(frozen=True)
class Probe:
    """Everything that was found; what is empty could not be asked."""

    versions: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Nodes, ...] = ()
    slurm: Mapping[str, str] = field(default_factory=dict)
    mpi: tuple[str, ...] = ()
    pyxis: bool = False
    lmod: str = ""
    driver: str = ""
    gpu: str = ""
    nvlink: bool = False
    hcas: tuple[Hca, ...] = ()
    cpu: str = ""


def probe_site(runner: Runner, root: Path = Path("/")) -> Probe:
    """Ask Slurm, the driver, /sys, Pyxis, Enroot, Apptainer and Lmod. ROOT is / except in tests."""
    devices = _ask(runner, NVIDIA).splitlines()
    name, _, driver = devices[0].partition(", ") if devices else ("", "", "")
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6}){1,3}", driver):  # no driver, or an error's text
        driver = _read_kernel_driver(root)

    versions = {
        tool: _find_version(_ask(runner, argv)) for tool, argv in TOOLS.items() if runner.has(tool)
    }
    slurm = Client(runner)
    topology = _ask(runner, ("nvidia-smi", "topo", "-m"))  # NV18 between two GPUs: 18 NVLinks

    return Probe(
        versions=versions,
        nodes=tuple(read_node_kinds(slurm.print_node_kinds())),
        slurm=slurm.read_config(),
        mpi=slurm.list_pmi_types(),
        pyxis=slurm.has_pyxis(),
        lmod=_find_lmod(root),
        driver=driver,
        gpu=name,
        nvlink=bool(re.search(r"\bNV\d+\b", topology)),
        hcas=tuple(_list_hcas(root / "sys/class/infiniband")),
        cpu=_read_cpu_model(root),
    )


def _ask(runner: Runner, argv: tuple[str, ...]) -> str:
    """Return all that ARGV prints; empty where the tool is not there, or fails."""
    if not runner.has(argv[0]):
        return ""
    done = runner.output(argv, timeout=20)
    return "" if done.status else done.stdout


def _find_version(text: str) -> str:
    """Return the first version number in TEXT; empty where there is none."""
    match = re.search(r"[0-9]{1,6}(\.[0-9]{1,6}){1,4}[A-Za-z0-9.+-]{0,30}", text)
    return match[0] if match else ""


def read_node_kinds(text: str) -> list[Nodes]:
    """Return the partitions that `sinfo --format %P|%D|%c|%G` prints; `*` marks the default one.

    A partition with nodes of several kinds has several lines. Lines of another form are left out,
    and partitions that have no nodes now.
    """
    out = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 4:
            continue
        name, count, cpus, gres = parts
        if not re.fullmatch(r"[0-9]{1,7}", count) or not int(count):
            continue
        if not re.fullmatch(r"[^\x00-\x20\x7f,*]+\*?", name):
            continue

        found, unread = _read_gpus(gres)
        whole = [one for one in found if not one.is_slice]
        if len({one.type for one in whole}) > 1:  # a node type has one model
            whole, unread = [], gres
        number = re.match(r"[0-9]{1,6}", cpus)  # `64+` where nodes of the line differ
        out.append(
            Nodes(
                partition=name.rstrip("*"),
                default=name.endswith("*"),
                count=int(count),
                cpus=int(number[0]) if number else 0,
                gpus=sum(one.count for one in whole),
                model=next((one.type for one in reversed(whole) if one.type), ""),
                slices=tuple(one for one in found if one.is_slice),
                unread=unread,
            )
        )
    return out


def _read_gpus(text: str) -> tuple[list[Gres], str]:
    """Return the GPUs in TEXT, a gres that sinfo shows, and TEXT itself where it is not understood."""
    try:
        return [one for one in read_gres(text) if one.name == "gpu"], ""
    except GresError:
        return [], text


def _read_kernel_driver(root: Path) -> str:
    """Return the version of the NVIDIA driver that the kernel has loaded; empty for none."""
    text = _read_text(root / "proc/driver/nvidia/version")
    match = re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", text)
    return match[1] if match else ""


def _list_hcas(folder: Path) -> list[Hca]:
    """Return a device for each port below FOLDER, /sys/class/infiniband."""
    out = []
    for port in sorted(folder.glob("*/ports/*")):
        state = _read_text(port / "state").partition(":")[2].strip()
        out.append(Hca(port.parent.parent.name, _read_text(port / "link_layer").strip(), state))
    return out


def _read_cpu_model(root: Path) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read_text(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else ""


def _find_lmod(root: Path) -> str:
    """Return where Lmod is installed, of the places where it usually is; empty for none."""
    for place in ("usr/share/lmod/lmod", "opt/apps/lmod/lmod", "usr/share/lmod"):
        if (root / place / "libexec/lmod").is_file():
            return f"/{place}"
    return ""


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
