"""What a run was asked for: request.json in its folder, which the agent, the ranks, tasks and MPI
programs all read.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields

from hpcstack_smoke.result import write_document
from hpcstack_smoke.select import MINUTES, Check, select_checks

FILE = "request.json"


@dataclass(frozen=True)
class Request:
    """`output` is the run's folder, which all nodes see. `tests` and `skip`: codes, families or
    groups, by comma.

    `gpus` and `ranks` are those that the run has of each node. What site.yaml promises of the
    nodes: `fabric_rate` (Gb/s of each port), `fabric` (its kind), `hcas`, `gpu` (the model),
    `node_gpus` (of the whole node), `nvlink`, `domain_nodes` (that one NVLink domain spans),
    `injected` (libraries that a rank must have from the node's own, below `injected_at`); 0 or
    empty where it says nothing. `minutes`: how long a burn lasts.
    """

    output: str
    tests: str = ""
    tier: str = "quick"
    skip: str = ""
    stack: str = ""
    gpus: int = 0
    ranks: int = 2
    nodes: int = 1
    stall_s: float = 240.0
    deadline_s: float = 0.0
    fabric_rate: float = 0.0
    fabric: str = ""
    hcas: tuple[str, ...] = ()
    gpu: str = ""
    node_gpus: int = 0
    nvlink: bool = False
    domain_nodes: int = 0
    injected: tuple[str, ...] = ()
    injected_at: str = ""
    minutes: float = MINUTES

    def checks(self, scope: str, done: str = "") -> list[Check]:
        """What is to be run in SCOPE, but for the codes in DONE."""
        return select_checks(self.tests, scope, self.tier, self.skip, done)


def write_request(request: Request) -> None:
    """request.json in the run's folder."""
    write_document(request.output, FILE, asdict(request))


def read_request(folder: str) -> Request:
    """The request of the run in FOLDER.

    Keys that this suite does not know, of a newer host, are left alone.
    """
    with open(os.path.join(folder, FILE)) as file:
        found = json.load(file)
    known = {one.name for one in fields(Request)}
    found = {name: value for name, value in found.items() if name in known}
    lists = {name: tuple(found.get(name, ())) for name in ("hcas", "injected")}
    return Request(**{**found, "output": folder, **lists})
