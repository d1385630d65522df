"""Engines that build an image. One visible table; a module per entry."""

from __future__ import annotations

from hpcstack.engines import apptainer
from hpcstack.engines.base import Engine, Job
from hpcstack.errors import MissingToolError
from hpcstack.process import Runner

ENGINES: dict[str, Engine] = {
    "apptainer": apptainer.ENGINE,
}


def choose(name: str, runner: Runner) -> Engine:
    """The engine NAME, or for `auto` the first whose tools are there."""
    if name != "auto":
        engine = ENGINES[name]
        for tool in engine.tools:
            runner.which(tool)
        return engine
    for engine in ENGINES.values():
        if all(runner.has(tool) for tool in engine.tools):
            return engine
    raise MissingToolError(f"no engine is installed: {', '.join(ENGINES)}", "install apptainer")


__all__ = ["ENGINES", "Engine", "Job", "choose"]
