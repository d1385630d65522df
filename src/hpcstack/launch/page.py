"""A job that serves a page for a browser: JupyterLab, or TensorBoard.

The program listens on a Unix socket in the container, which its user alone can open
(launchers/in-image/serve_page.py). `hpcstack tunnel` (launch/tunnel.py) reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hpcstack.core.errors import InputError
from hpcstack.launch.variables import ValueOrigin, Variable
from hpcstack.render.template import read_data_file

if TYPE_CHECKING:
    from hpcstack.launch.request import LaunchRequest, Served
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class Page:
    """What serves a page: its name for people, the package that brings it, and its usual port."""

    name: str
    package: str
    port: int


PAGES = {
    "jupyter": Page("JupyterLab", "jupyterlab", 8888),
    "tensorboard": Page("TensorBoard", "tensorboard", 6006),
}


def wrap_served(served: Served, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return COMMAND, which runs as what is SERVED, in the folder of `list_served_variables`."""
    server = read_data_file("launchers", "in-image/serve_page.py")
    return ("python3", "-u", "-c", server, served.kind, *command)


def list_served_variables(served: Served) -> list[Variable]:
    """Return the variables of a step that runs what is SERVED."""
    why = "a folder whose name others cannot know"
    return [Variable("HPCSTACK_SERVED", served.folder, ValueOrigin.OPTION, why)]


def add_needed(request: LaunchRequest, artifact: Artifact) -> LaunchRequest:
    """Return REQUEST with those of the packages it needs that the image has not."""
    has = {canonicalize_name(name) for name in artifact.pip}
    missing = [name for name in request.needs if name not in has]
    return replace(request, packages=(*request.packages, *missing))


def check_served(request: LaunchRequest) -> None:
    """Raise InputError where REQUEST serves something from more than one task, or debugs it."""
    if not request.serves:
        return
    what = PAGES[request.serves.kind].name if request.serves.kind in PAGES else "a kernel"
    if request.debug is not None:
        raise InputError(
            f"--debug is for ranks, and {what} is none", "leave it out", page="debug-a-rank"
        )
    asked = request.resources
    if asked.nodes_at_most > 1 or asked.ntasks > 1 or asked.ntasks_per_node > 1:
        raise InputError(
            f"{what} runs as one task",
            "leave out -N and -n; with --slurm, a cell can start more by srun",
            page="run-jupyter",
        )
