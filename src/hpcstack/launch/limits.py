"""What no partition can give is refused before Slurm is asked: a queue would hold it for ever."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, did_you_mean
from hpcstack.slurm.query import Limits, parse_minutes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.launch.resources import Resources


def check_limits(resources: Resources, known: Mapping[str, Limits]) -> None:
    """InputError where RESOURCES are more than the partition has; nothing where KNOWN is empty."""
    if not known:
        return
    named = [name for name in resources.partition.split(",") if name]
    for name in named:
        if name not in known:
            near = did_you_mean(name, known)
            raise InputError(
                f"there is no partition {name!r}{near}", f"there are: {', '.join(known)}"
            )
    chosen = [known[name] for name in named] or [
        limits for limits in known.values() if limits.default
    ]
    if not chosen:
        raise InputError(
            "no partition is the default one", f"--partition, one of: {', '.join(known)}"
        )
    _check_time(resources.time)
    reasons = [_find_excess(resources, one) for one in chosen]
    if all(reasons):
        others = [
            limits.name
            for limits in known.values()
            if limits.up and not _find_excess(resources, limits)
        ]
        tip = f"ask for less, or --partition {others[0]}" if others else "ask for less"
        raise InputError("; ".join(reasons), tip)


def _check_time(text: str) -> None:
    """Raise InputError where Slurm would not read TEXT as a time limit."""
    is_unlimited = text.lower() in ("unlimited", "infinite")
    if text and not is_unlimited and parse_minutes(text) is None:
        raise InputError(f"--time {text}: {_time_as_slurm_writes_it(text)}")


def _find_excess(resources: Resources, limits: Limits) -> str:
    """Return what of RESOURCES is more than a partition with LIMITS has; empty where it has all of
    it.
    """
    name, tasks = limits.name, resources.ntasks_per_node or 1
    least = int(resources.elastic.partition(":")[0]) if resources.elastic else resources.nodes
    if not limits.up:
        return f"partition {name} is not up"
    if least > limits.nodes:
        return f"{least} nodes: partition {name} has {limits.nodes}"
    if resources.gpus_per_node > limits.gpus:
        return (
            f"{resources.gpus_per_node} GPUs per node: the nodes of partition {name} have "
            f"{limits.gpus or 'none'}"
        )
    if (cpus := tasks * (resources.cpus_per_task or 1)) > limits.cpus > 0:
        return (
            f"{cpus} CPUs per node ({tasks} x {resources.cpus_per_task or 1}): partition {name} "
            f"has {limits.cpus}"
        )
    if resources.time and limits.minutes:
        asked = parse_minutes(resources.time)  # None: unlimited
        if asked is None or asked > limits.minutes:
            return (
                f"--time {resources.time}: partition {name} gives at most {limits.minutes} minutes"
            )
    feature = resources.constraint
    if re.fullmatch(r"[A-Za-z0-9_.-]+", feature) and feature not in limits.features:
        have = ", ".join(sorted(limits.features)) or "none"
        return f"--constraint {feature}: no node of partition {name} has it; their features: {have}"
    return ""


def _time_as_slurm_writes_it(text: str) -> str:
    """What to write instead of TEXT: `2h` is 2:00:00."""
    match = re.fullmatch(r"(\d+) ?(s|m|min|h|hours?|d|days?)", text.strip().lower())
    if not match:
        return "write minutes (30), H:MM:SS (1:30:00) or days-hours (2-12)"
    number, unit = int(match[1]), match[2][0]
    forms = {"s": f"0:00:{number:02}", "m": str(number), "h": f"{number}:00:00", "d": f"{number}-0"}
    return f"write {forms[unit]}"


def check_allocation(resources: Resources, environ: Mapping[str, str]) -> None:
    """InputError where a step asks for more nodes than the allocation that this shell is in has."""
    have = environ.get("SLURM_JOB_NUM_NODES", "")
    least = int(resources.elastic.partition(":")[0]) if resources.elastic else resources.nodes
    if have.isdigit() and least > int(have):
        raise InputError(
            f"{least} nodes: this allocation (job {environ.get('SLURM_JOB_ID')}) has {have}",
            "ask for less, or start it outside the allocation",
        )
