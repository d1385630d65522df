"""Engines that build an image.

One visible table; a module per entry, loaded when it is asked for.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, cast

from hpcstack.build.engines.base import Engine, Job
from hpcstack.core.errors import InputError, MissingToolError, did_you_mean

if TYPE_CHECKING:
    from hpcstack.core.process import Runner

ENGINES = ("apptainer", "enroot", "builtin", "docker")  # in the order in which `auto` tries them


def find_engine(name: str) -> Engine:
    """The engine NAME, one of ENGINES."""
    return cast(Engine, importlib.import_module(f"hpcstack.build.engines.{name}").ENGINE)


def check_name(name: str) -> None:
    """InputError for an engine that there is not."""
    if name not in (*ENGINES, "auto"):
        raise InputError(
            f"--engine {name}: no such engine{did_you_mean(name, ENGINES)}",
            f"one of {', '.join(ENGINES)}, auto",
        )


def choose_engine(name: str, runner: Runner, *, offline: bool = False) -> tuple[Engine, str]:
    """The engine NAME (which is looked at when it has to build), or for `auto` the first that can
    be used; and why.

    OFFLINE: one that can shut the network out. Where Apptainer builds without layers it needs root
    for that: in a user namespace of one user it cannot give a base's files to the groups that own
    them.
    """
    if name != "auto":
        return find_engine(name), "asked for"
    from hpcstack.build.engines.machine import enclosure_refused

    reasons: list[str] = []
    for one in map(find_engine, ENGINES):
        reason = one.usable(runner)
        if (
            offline
            and not reason
            and one.name == "apptainer"
            and os.geteuid() != 0
            and enclosure_refused(runner)
        ):
            reason = "only root can shut its network out"
        if not reason:
            return one, "; ".join([*reasons, f"{one.name} is the first that can be used"])
        reasons.append(f"{one.name}: {reason}")
    tip = "install squashfs-tools and util-linux, or apptainer"
    raise MissingToolError("no engine can be used here: " + "; ".join(reasons), tip)


__all__ = ["ENGINES", "Engine", "Job", "check_name", "choose_engine", "find_engine"]
