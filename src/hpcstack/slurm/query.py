"""What Slurm says of itself: partitions and their real limits, srun's options, PMI types.

Readers of its replies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.process import Runner

SINFO = ("sinfo", "--noheader", "--all", "--exact", "--format", "%P|%a|%l|%D|%c|%G|%f")
GPUS = re.compile(r"(?:^|,)gpu(?::[A-Za-z0-9_.-]+)?:(\d+)")
OPTION = re.compile(r"^ {0,8}(?:-\w, ?)?(--[a-z][a-z0-9-]*)", re.MULTILINE)


@dataclass(frozen=True)
class Limits:
    """A partition: nodes, the most CPUs and GPUs that one of them has, minutes (0: no limit),
    features.
    """

    name: str
    up: bool = True
    default: bool = False
    minutes: int = 0
    nodes: int = 0
    cpus: int = 0
    gpus: int = 0
    features: frozenset[str] = frozenset()


def read_partitions(sinfo: str) -> dict[str, Limits]:
    """{name: limits} from sinfo's lines, one for each kind of node."""
    out: dict[str, Limits] = {}
    for line in sinfo.splitlines():
        fields = line.split("|")
        if len(fields) != 7 or not fields[3].isdigit():
            continue
        name = fields[0].rstrip("*")
        known = out.get(name, Limits(name))
        gpus = sum(map(int, GPUS.findall(fields[5])))
        features = frozenset(fields[6].split(",")) - {"(null)", ""}
        out[name] = replace(
            known,
            up=fields[1] == "up",
            default=fields[0].endswith("*"),
            minutes=parse_minutes(fields[2]) or 0,
            nodes=known.nodes + int(fields[3]),
            cpus=max(known.cpus, int(re.sub(r"\D", "", fields[4]) or 0)),
            gpus=max(known.gpus, gpus),
            features=known.features | features,
        )
    return out


def parse_minutes(text: str) -> int | None:
    """A time as Slurm writes it (30, 30:00, 1:30:00, 2-0, 2-12:30), in minutes, rounded up; None
    where it is none.

    https://slurm.schedmd.com/sbatch.html, --time.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        return None
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1]:
        seconds = days * 86400 + first * 3600 + second * 60 + third
    elif match[4]:
        seconds = first * 3600 + second * 60 + third
    else:
        seconds = first * 60 + second
    return -(-seconds // 60)


def parse_srun_options(srun_help: str) -> frozenset[str]:
    """The long options that srun knows, its plugins' among them."""
    return frozenset(OPTION.findall(srun_help))


def read_pmi(mpi_list: str) -> tuple[str, ...]:
    """The PMI types that `srun --mpi=list` names."""
    words = re.findall(r"^\s*(?:srun: )?([a-z][a-z0-9_]*)\s*$", mpi_list, re.MULTILINE)
    return tuple(dict.fromkeys(word for word in words if word != "none"))


def query_partitions(runner: Runner) -> dict[str, Limits]:
    """All partitions, or none where Slurm does not answer."""
    if not runner.has("sinfo"):
        return {}
    done = runner.output(list(SINFO), timeout=10)
    return read_partitions(done.stdout) if done.status == 0 else {}


def pmi_type(runner: Runner) -> str:
    """What --mpi is to be: PMIx where there is one, else PMI-2; empty where srun has neither."""
    have = read_pmi("\n".join(runner.output(["srun", "--mpi=list"], timeout=20).tail))
    return next(
        (
            name
            for name in ("pmix", *sorted(n for n in have if n.startswith("pmix")), "pmi2")
            if name in have
        ),
        "",
    )


def find_allocation(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables of the job that this shell is in; empty where it is in none."""
    return environ if environ.get("SLURM_JOB_ID") else {}
