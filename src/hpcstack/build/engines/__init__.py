"""The engines that can build an image: one table, and a module for each entry.

A module is loaded when its engine is asked for.
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
    """Return the engine NAME, one of ENGINES."""
    return cast(Engine, importlib.import_module(f"hpcstack.build.engines.{name}").ENGINE)


def check_name(name: str) -> None:
    """Raise InputError unless NAME is an engine, or `auto`."""
    if name not in (*ENGINES, "auto"):
        raise InputError(
            f"--engine {name}: no such engine{did_you_mean(name, ENGINES)}",
            f"one of {', '.join(ENGINES)}, auto",
            page="choose-an-engine",
        )


def choose_engine(name: str, runner: Runner, *, offline: bool = False) -> tuple[Engine, str]:
    """Return the engine NAME, or for `auto` the first that can be used, and the reason for it.

    A named engine is not tried here, but when it has to build. OFFLINE asks for an engine that can
    build without a network. Raise MissingToolError where `auto` finds none.
    """
    if name != "auto":
        return find_engine(name), "asked for"

    reasons: list[str] = []
    for engine in map(find_engine, ENGINES):
        reason = engine.usable(runner)
        if not reason and offline:
            reason = _explain_no_offline(engine, runner)
        if not reason:
            return engine, "; ".join([*reasons, f"{engine.name} is the first that can be used"])
        reasons.append(f"{engine.name}: {reason}")

    tip = "install squashfs-tools and util-linux, or apptainer"
    raise MissingToolError(
        "no engine can be used here: " + "; ".join(reasons), tip, page="choose-an-engine"
    )


def _explain_no_offline(engine: Engine, runner: Runner) -> str:
    """Return why ENGINE cannot build without a network here; empty where it can.

    Where no enclosure can be made, `apptainer build` runs the steps by itself. Without root it
    would have to run in a user namespace of one user, where it cannot give the base's files to the
    groups that own them.
    """
    from hpcstack.build.engines.machine import explain_refused_enclosure

    if engine.name == "apptainer" and os.geteuid() != 0 and explain_refused_enclosure(runner):
        return "only root can shut its network out"
    return ""


__all__ = ["ENGINES", "Engine", "Job", "check_name", "choose_engine", "find_engine"]
