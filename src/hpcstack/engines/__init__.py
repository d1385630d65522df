"""Engines that build an image. One visible table; a module per entry."""

from __future__ import annotations

from hpcstack.engines import apptainer, builtin, docker, enroot
from hpcstack.engines.base import Engine, Job
from hpcstack.errors import MissingToolError
from hpcstack.process import Runner

ENGINES: dict[str, Engine] = {
    "apptainer": apptainer.ENGINE,
    "enroot": enroot.ENGINE,
    "builtin": builtin.ENGINE,
    "docker": docker.ENGINE,
}


def choose(name: str, runner: Runner) -> tuple[Engine, str]:
    """The engine NAME, or for `auto` the first that can be used here; and why it was taken."""
    if name != "auto":
        engine = ENGINES[name]
        if reason := engine.usable(runner):
            raise MissingToolError(
                f"the engine {name} cannot be used here: {reason}", "--engine auto takes one that can"
            )
        return engine, "asked for"
    reasons: list[str] = []
    for engine in ENGINES.values():
        reason = engine.usable(runner)
        if not reason:
            return engine, "; ".join([*reasons, f"{engine.name} is the first that can be used"])
        reasons.append(f"{engine.name}: {reason}")
    raise MissingToolError("no engine can be used here: " + "; ".join(reasons), "install apptainer or bubblewrap")


__all__ = ["ENGINES", "Engine", "Job", "choose"]
