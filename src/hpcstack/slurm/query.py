"""What Slurm says of itself, as text: partitions and limits, options, PMI types, slurm.conf. Pure.

`client` asks for these texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.slurm.gpus import count_gpus
from hpcstack.slurm.nodelist import expand_nodelist

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

OPTION = re.compile(r"^ {0,8}(?:-\w, ?)?(--[a-z][a-z0-9-]*)", re.MULTILINE)


@dataclass(frozen=True)
class Limits:
    """A partition as sinfo shows it.

    CPUS and GPUS are the most that one of its nodes has; GPUS is None where Slurm's words about them
    are not understood. MINUTES is its time limit; 0 is none.
    """

    name: str
    up: bool = True
    default: bool = False
    minutes: int = 0
    nodes: int = 0
    cpus: int = 0
    gpus: int | None = 0
    features: frozenset[str] = frozenset()


def read_partitions(sinfo: str) -> dict[str, Limits]:
    """Return {name: limits} of SINFO, lines of `%P|%a|%l|%D|%c|%G|%f`, one for each kind of node."""
    out: dict[str, Limits] = {}
    for line in sinfo.splitlines():
        fields = line.split("|")
        if len(fields) != 7 or not fields[3].isdigit():
            continue
        name = fields[0].rstrip("*")
        known = out.get(name, Limits(name))  # of its lines so far
        gpus = count_gpus(fields[5])
        features = frozenset(fields[6].split(",")) - {"(null)", ""}
        out[name] = replace(
            known,
            up=fields[1] == "up",
            default=fields[0].endswith("*"),
            minutes=parse_minutes(fields[2]) or 0,
            nodes=known.nodes + int(fields[3]),
            cpus=max(known.cpus, int(re.sub(r"\D", "", fields[4]) or 0)),
            gpus=None if known.gpus is None or gpus is None else max(known.gpus, gpus),
            features=known.features | features,
        )
    return out


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a partition that are alike, as sinfo shows them; `gres` is its text."""

    nodes: frozenset[str]
    cpus: int
    gres: str
    features: frozenset[str]


def parse_node_kinds(sinfo: str) -> list[NodeKind]:
    """Return the kinds of nodes in SINFO, lines of `%N|%c|%G|%f`.

    Raise NodelistError for nodes that are not understood.
    """
    out = []
    for line in sinfo.splitlines():
        fields = line.split("|")
        if len(fields) != 4:
            continue
        nodes, cpus, gres, features = fields
        named = frozenset(features.split(",")) - {"(null)", ""}
        count = int(cpus) if cpus.isdigit() else 0
        out.append(NodeKind(frozenset(expand_nodelist(nodes)), count, gres, named))
    return out


def parse_minutes(text: str) -> int | None:
    """Return a time as Slurm writes it in minutes, rounded up; None where TEXT is none.

    Forms: 30, 30:00, 1:30:00, 2-0, 2-12:30 (https://slurm.schedmd.com/sbatch.html, --time).
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        return None
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1]:  # days-hours[:minutes[:seconds]]
        seconds = days * 86400 + first * 3600 + second * 60 + third
    elif match[4]:  # hours:minutes:seconds
        seconds = first * 3600 + second * 60 + third
    else:  # minutes[:seconds]
        seconds = first * 60 + second
    return -(-seconds // 60)


def parse_long_options(help_text: str) -> frozenset[str]:
    """Return the long options that HELP_TEXT, of srun or sbatch, names, plugins' among them."""
    return frozenset(OPTION.findall(help_text))


def read_config(text: str) -> dict[str, str]:
    """Return what `scontrol show config` prints as {key: value}."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def read_pmi(mpi_list: str) -> tuple[str, ...]:
    """Return the PMI types that `srun --mpi=list` prints; `none` is left out."""
    words = re.findall(r"^\s*(?:srun: )?([a-z][a-z0-9_]*)\s*$", mpi_list, re.MULTILINE)
    return tuple(dict.fromkeys(word for word in words if word != "none"))


def choose_pmi(offered: Collection[str]) -> str:
    """Return the best of the PMI types OFFERED: PMIx, else PMI-2; empty for neither."""
    pmix = sorted(name for name in offered if name.startswith("pmix"))  # pmix_v4, say
    for name in ("pmix", *pmix, "pmi2"):
        if name in offered:
            return name
    return ""


def find_allocation(environ: Mapping[str, str], het_group: str = "") -> Mapping[str, str]:
    """Return the variables of the job that this shell is in; empty where it is in none.

    Of a heterogeneous job they are those of HET_GROUP, a value of srun's --het-group, where it is given.
    Raise InputError where that names several groups, or one that the job does not have.
    """
    if not environ.get("SLURM_JOB_ID"):
        return {}
    if not het_group:
        return environ
    ending = f"_HET_GROUP_{het_group}"
    own = {
        name.removesuffix(ending): value for name, value in environ.items() if name.endswith(ending)
    }
    if not het_group.isdigit() or not own:
        size = environ.get("SLURM_HET_SIZE", "")
        raise InputError(
            f"--het-group={het_group}: a launch is of one group of a heterogeneous job",
            f"a number below {size}" if size else "this job has none",
        )
    # What else there is is the first group's.
    others = {name: value for name, value in environ.items() if not name.startswith("SLURM_")}
    return {**others, **own}
