"""What this machine and its Slurm say of the site: read by the tools that are there, nothing
guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.hardware import facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.process import Runner

SINFO = ("sinfo", "--noheader", "--format", "%P|%D|%c|%G")
NVIDIA = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
CHATTY = (("srun", "--mpi=list"), ("srun", "--help"))  # some releases answer on stderr
TOOLS = {
    "apptainer": ("apptainer", "--version"),
    "enroot": ("enroot", "version"),
    "srun": ("srun", "--version"),
    "git": ("git", "--version"),
}


@dataclass(frozen=True)
class Nodes:
    """The nodes of one partition that are alike."""

    partition: str
    default: bool
    count: int
    cpus: int
    gpus: int
    model: str

    @property
    def type_name(self) -> str:
        """`h100x8`, `gpu4` where Slurm does not name the model, `cpu64`."""
        if not self.gpus:
            return f"cpu{self.cpus}"
        known = facts.find_gpu(self.model)
        name = known.model if known else self.model
        return (
            f"{re.sub(r'[^a-z0-9]+', '', name.lower())}x{self.gpus}" if name else f"gpu{self.gpus}"
        )


@dataclass(frozen=True)
class Hca:
    """One InfiniBand or RoCE device of this machine."""

    name: str
    link: str
    state: str


@dataclass(frozen=True)
class Probe:
    """Everything that was found; what is empty was not there to be asked."""

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
    """Ask Slurm, the driver, /sys, Pyxis, Enroot, Apptainer and Lmod. ROOT is / but in tests."""
    devices = _said(runner, NVIDIA).splitlines()
    name, _, driver = devices[0].partition(", ") if devices else ("", "", "")
    help_text = _said(runner, ("srun", "--help"))
    return Probe(
        versions={
            tool: _version(_said(runner, argv)) for tool, argv in TOOLS.items() if runner.has(tool)
        },
        nodes=tuple(read_sinfo(_said(runner, SINFO))),
        slurm=read_config(_said(runner, ("scontrol", "show", "config"))),
        mpi=read_mpi(_said(runner, ("srun", "--mpi=list"))),
        pyxis="--container-image" in help_text,
        lmod=_lmod(root),
        driver=driver
        if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6}){1,3}", driver)
        else _kernel_driver(root),
        gpu=name,
        nvlink=bool(re.search(r"\bNV\d+\b", _said(runner, ("nvidia-smi", "topo", "-m")))),
        hcas=tuple(_hcas(root / "sys/class/infiniband")),
        cpu=_cpu(root),
    )


def _said(runner: Runner, argv: tuple[str, ...]) -> str:
    """All that ARGV prints, or nothing where the tool is not there or refuses."""
    if not runner.has(argv[0]):
        return ""
    done = runner.output(argv, timeout=20)
    if done.status:
        return ""
    return (
        done.stdout
        if argv == SINFO or not any(argv == one for one in CHATTY)
        else "\n".join(done.tail)
    )


def _version(text: str) -> str:
    match = re.search(r"[0-9]{1,6}(\.[0-9]{1,6}){1,4}[A-Za-z0-9.+-]{0,30}", text)
    return match[0] if match else ""


def read_sinfo(text: str) -> list[Nodes]:
    """The partitions of `sinfo --format %P|%D|%c|%G`; a `*` marks the default one."""
    out = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 4:
            continue
        name, count, cpus, gres = parts
        gpus, model = read_gres(gres)
        number = re.match(r"[0-9]{1,6}", cpus)
        if not re.fullmatch(r"[0-9]{1,7}", count) or not re.fullmatch(r"[A-Za-z0-9._-]+\*?", name):
            continue
        out.append(
            Nodes(
                name.rstrip("*"),
                name.endswith("*"),
                int(count),
                int(number[0]) if number else 0,
                gpus,
                model,
            )
        )
    return out


def read_gres(text: str) -> tuple[int, str]:
    """(count, model) of the GPUs in a gres such as `gpu:h100:8(S:0-1),tmpfs:1`; the model may be
    empty.
    """
    total, model = 0, ""
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = entry.split(":")
        if parts[0] == "gpu" and re.fullmatch(r"[0-9]{1,4}", parts[-1]):
            total += int(parts[-1])
            model = parts[1] if len(parts) > 2 else model
    return total, model


def read_config(text: str) -> dict[str, str]:
    """`scontrol show config` as {key: value}."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def read_mpi(text: str) -> tuple[str, ...]:
    """The plugins of `srun --mpi=list`, whose form differs from release to release."""
    words = re.findall(r"\b(none|pmi2|cray_shasta|pmix(?:_v\d+)?)\b", text)
    return tuple(dict.fromkeys(words))


def _kernel_driver(root: Path) -> str:
    text = _read(root / "proc/driver/nvidia/version")
    match = re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", text)
    return match[1] if match else ""


def _hcas(folder: Path) -> list[Hca]:
    out = []
    for port in sorted(folder.glob("*/ports/*")):
        state = _read(port / "state").partition(":")[2].strip()
        out.append(Hca(port.parent.parent.name, _read(port / "link_layer").strip(), state))
    return out


def _cpu(root: Path) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else ""


def _lmod(root: Path) -> str:
    for place in ("usr/share/lmod/lmod", "opt/apps/lmod/lmod", "usr/share/lmod"):
        if (root / place / "libexec/lmod").is_file():
            return f"/{place}"
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
