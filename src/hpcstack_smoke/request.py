"""What a run was asked to do: request.json in the run's folder.

The agent, the ranks, the tasks and the MPI programs all read it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from typing import Any

from hpcstack_smoke.result import write_document
from hpcstack_smoke.select import MINUTES, Check, select_checks

FILE = "request.json"


@dataclass(frozen=True)
class Request:
    """What one run was asked to do, and what site.yaml promises of its nodes."""

    output: str  # the run's folder, which all nodes see
    tests: str = ""  # codes, families or groups, separated by commas; empty: all
    tier: str = "quick"
    skip: str = ""  # what to leave out, as in `tests`
    stack: str = ""  # the stack that the image should be
    gpus: int = 0  # GPUs that the run was given on each node
    ranks: int = 2  # ranks on each node
    nodes: int = 1
    stall_s: float = 240.0  # seconds without a result after which ranks are ended
    deadline_s: float = 0.0  # seconds that the whole run may take; 0: no limit

    # what site.yaml promises of the nodes; 0 or empty where it says nothing
    fabric_rate: float = 0.0  # Gb/s of each port
    fabric: str = ""  # the kind of fabric
    hcas: tuple[str, ...] = ()
    gpu: str = ""  # the model
    node_gpus: int = 0  # GPUs of the whole node, of which the run may have fewer
    nvlink: bool = False
    domain_nodes: int = 0  # nodes that one NVLink domain spans
    injected: tuple[str, ...] = ()  # libraries that a rank must have from the node's own,
    injected_at: str = ""  # which lie below this folder

    minutes: float = MINUTES  # how long a burn lasts
    # own checks of the site and the recipe (`own.parse_own_run`), with what hpcstack judges them by
    own: tuple[dict[str, Any], ...] = ()

    def checks(self, scope: str, done: str = "") -> list[Check]:
        """Return the checks of SCOPE that this run asks for, without the codes in DONE."""
        return select_checks(self.tests, scope, self.tier, self.skip, done)


def write_request(request: Request) -> None:
    """Write REQUEST as request.json into its run's folder."""
    write_document(request.output, FILE, asdict(request))


def read_request(folder: str) -> Request:
    """Return the request of the run in FOLDER.

    The suite in an image may be older than the hpcstack that wrote the request: keys that it does
    not know are ignored.
    """
    with open(os.path.join(folder, FILE)) as file:
        document = json.load(file)

    known = {one.name for one in fields(Request)}
    values = {name: value for name, value in document.items() if name in known}
    # JSON has lists only
    for name in ("hcas", "injected", "own"):
        values[name] = tuple(values.get(name, ()))
    values["output"] = folder  # the container may see the folder at another path
    return Request(**values)
