"""The runtimes that can start a job step in an image: one table, and a module for each entry.

`choose_runtime` resolves `auto` by what is installed, and says why.

Tested in tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from hpcstack.core import names
from hpcstack.core.errors import MissingToolError
from hpcstack.runtimes.base import Part, Runtime, Step

if TYPE_CHECKING:
    from hpcstack.core.process import Runner


def _load(name: str) -> Runtime:
    """Return the RUNTIME of the module called NAME."""
    return cast("Runtime", importlib.import_module(f"hpcstack.runtimes.{name}").RUNTIME)


RUNTIMES: dict[str, Runtime] = {name: _load(name) for name in names.RUNTIMES}


def choose_runtime(name: str, runner: Runner) -> tuple[Runtime, str]:
    """Return the runtime NAME, or for `auto` the best that is installed here, and the reason.

    Raise MissingToolError where `auto` finds none.
    """
    from hpcstack.slurm.client import Client

    if name != "auto":
        return RUNTIMES[name], "named by the site or on the command line"

    if not runner.has("srun"):
        if runner.has("apptainer"):
            return RUNTIMES["local"], "there is no srun: the image runs on this machine"
        raise MissingToolError(
            "neither srun nor apptainer is installed",
            "install slurm-client or apptainer",
            page="choose-a-runtime",
        )

    if Client(runner).has_pyxis():
        return RUNTIMES["pyxis"], "srun knows --container-image"
    if not runner.has("apptainer") and runner.has("enroot"):
        return RUNTIMES["enroot"], "srun has no Pyxis, and there is no apptainer"
    return RUNTIMES["apptainer"], "srun has no Pyxis"


def find_plain_name(name: str) -> str:
    """Return the name in the container of the variable NAME, which may have a runtime's prefix."""
    prefixes = (one.variable_prefix for one in RUNTIMES.values())
    found = next((prefix for prefix in prefixes if prefix and name.startswith(prefix)), "")
    return name.removeprefix(found)


__all__ = ["RUNTIMES", "Part", "Runtime", "Step", "choose_runtime", "find_plain_name"]
