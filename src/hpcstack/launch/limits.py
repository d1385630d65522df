"""Refuse what no partition can give, before Slurm is asked: a queue would hold it for ever.

Tested in tests/unit/slurm/test_query.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, did_you_mean
from hpcstack.slurm.query import Limits, parse_minutes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.launch.resources import Resources


def check_limits(resources: Resources, known: Mapping[str, Limits]) -> None:
    """Raise InputError where RESOURCES are more than a partition has.

    KNOWN are Slurm's partitions by name; without any, nothing is checked. Where several partitions
    are named, it is enough if one of them has the resources.
    """
    if not known:
        return
    named = [name for name in resources.partition.split(",") if name]
    for name in named:
        if name not in known:
            near = did_you_mean(name, known)
            raise InputError(
                f"there is no partition {name!r}{near}",
                f"there are: {', '.join(known)}",
                page="describe-your-cluster",
            )

    chosen = [known[name] for name in named]
    if not named:
        chosen = [limits for limits in known.values() if limits.default]
    if not chosen:
        raise InputError(
            "Slurm has no default partition", f"--partition, one of: {', '.join(known)}"
        )
    check_time(resources.time)
    found = [_find_excess(resources, one) for one in chosen]
    if not all(found):
        return

    others = [
        limits.name
        for limits in known.values()
        if limits.up and not _find_excess(resources, limits)
    ]
    tip = "ask for less"
    if others:
        tip += f", or --partition {others[0]}"
    excess = [one for one in found if one]
    raise InputError("; ".join(one.reason for one in excess), tip, page=excess[0].page)


def check_time(text: str) -> None:
    """Raise InputError where Slurm would not read TEXT as a time limit."""
    is_unlimited = text.lower() in ("unlimited", "infinite")
    if text and not is_unlimited and parse_minutes(text) is None:
        raise InputError(f"--time {text}: {_time_as_slurm_writes_it(text)}")


@dataclass(frozen=True)
class _Excess:
    """Why a partition cannot give what is asked for, and the how-to page about it, if any."""

    reason: str
    page: str = ""


def _find_excess(resources: Resources, limits: Limits) -> _Excess | None:
    """Return why a partition with LIMITS cannot give RESOURCES; None where it can."""
    name = limits.name
    if not limits.up:
        return _Excess(f"partition {name} is not up")
    least = _count_least_nodes(resources)
    if least > limits.nodes:
        return _Excess(f"{least} nodes: partition {name} has {limits.nodes}")

    if limits.gpus is not None and resources.gpus_per_node > limits.gpus:
        return _Excess(
            f"{resources.gpus_per_node} GPUs per node: the nodes of partition {name} have "
            f"{limits.gpus or 'none'}",
            page="use-four-gpus-of-eight",
        )
    tasks = resources.ntasks_per_node or 1
    cpus_per_task = resources.cpus_per_task or 1
    cpus = tasks * cpus_per_task
    if cpus > limits.cpus > 0:
        return _Excess(
            f"{cpus} CPUs per node ({tasks} x {cpus_per_task}): partition {name} has {limits.cpus}"
        )
    if resources.time and limits.minutes:
        asked = parse_minutes(resources.time)  # None: unlimited
        if asked is None or asked > limits.minutes:
            return _Excess(
                f"--time {resources.time}: partition {name} gives at most {limits.minutes} minutes",
                page="stop-before-the-time-limit",
            )

    # Only a single feature is looked up; what `a&b` or `[a|b]` mean is left to Slurm.
    feature = resources.constraint
    if re.fullmatch(r"[A-Za-z0-9_.-]+", feature) and feature not in limits.features:
        have = ", ".join(sorted(limits.features)) or "none"
        return _Excess(
            f"--constraint {feature}: no node of partition {name} has it; their features: {have}"
        )
    return None


def _count_least_nodes(resources: Resources) -> int:
    """Return the fewest nodes that a step with RESOURCES can run on."""
    if resources.elastic:
        return int(resources.elastic.partition(":")[0])
    return resources.nodes


def _time_as_slurm_writes_it(text: str) -> str:
    """Return what to write in place of TEXT: `write 2:00:00` for `2h`."""
    match = re.fullmatch(r"(\d+) ?(s|m|min|h|hours?|d|days?)", text.strip().lower())
    if not match:
        return "write minutes (30), H:MM:SS (1:30:00) or days-hours (2-12)"
    number, unit = int(match[1]), match[2][0]
    forms = {"s": f"0:00:{number:02}", "m": str(number), "h": f"{number}:00:00", "d": f"{number}-0"}
    return f"write {forms[unit]}"


def check_allocation(resources: Resources, environ: Mapping[str, str]) -> None:
    """Raise InputError where a step asks for more nodes than the allocation of this shell has.

    ENVIRON are the variables of the allocation.
    """
    have = environ.get("SLURM_JOB_NUM_NODES", "")
    least = _count_least_nodes(resources)
    if have.isdigit() and least > int(have):
        raise InputError(
            f"{least} nodes: this allocation (job {environ.get('SLURM_JOB_ID')}) has {have}",
            "ask for less, or start it outside the allocation",
            page="write-a-job-script",
        )
