"""Where a step is planned, looked at once: its runtime, the job that this shell is in, and the nodes.

`launch` and `test` take the same image for a name, and the same share of a node, because both ask here.

Tested in tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.launch.node_types import list_node_types
from hpcstack.launch.resources import share_resources
from hpcstack.naming.names import Names
from hpcstack.runtimes import choose_runtime
from hpcstack.site.model import PLATFORMS, merge_node_types
from hpcstack.slurm.client import Client
from hpcstack.slurm.query import find_allocation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcstack.core.process import Runner
    from hpcstack.launch.resources import Resources, Share
    from hpcstack.recipe.catalog import Catalog
    from hpcstack.runtimes import Runtime
    from hpcstack.site.load import Site
    from hpcstack.site.model import NodeType


@dataclass(frozen=True)
class StepNodes:
    """The nodes that a step may run on: the names of their types at the site, and the types.

    `node` promises no more than each of the types has; None where the site describes none. `share` is
    what the step takes of each node.
    """

    kinds: tuple[str, ...]
    types: tuple[NodeType, ...]
    node: NodeType | None
    share: Share


@dataclass(frozen=True)
class Surroundings:
    """What a step is planned by, whatever it asks for.

    `reason` says why it is this runtime. `allocation` are the variables of the job that the step becomes
    a part of; empty where it gets a job of its own.
    """

    site: Site
    runner: Runner
    runtime: Runtime
    reason: str
    allocation: Mapping[str, str]

    @property
    def here(self) -> bool:
        """Whether steps run on this machine, without Slurm."""
        return not self.runtime.uses_slurm

    @property
    def client(self) -> Client:
        """Slurm, as this machine reaches it."""
        return Client(self.runner)

    def find_nodes(self, resources: Resources) -> StepNodes:
        """Return the nodes that a step of RESOURCES may run on."""
        kinds = list_node_types(resources, self.site, self.allocation, self.client)
        types = tuple(self.site.node_types[kind] for kind in kinds)
        share = share_resources(resources, types, self.allocation, self.client, here=self.here)
        return StepNodes(kinds, types, merge_node_types(types), share)

    def find_names(self, resources: Resources, catalog: Callable[[], Catalog]) -> Names:
        """Return what names mean for a step of RESOURCES: images for the machines that it runs on.

        CATALOG is called only where a name needs the recipes.
        """
        machine = self.find_machine(resources)
        site = self.site.for_architecture(machine) if machine else self.site
        return Names(site, os.environ, catalog, PLATFORMS.get(machine, ""))

    def find_machine(self, resources: Resources) -> str:
        """Return what `uname -m` prints where a step of RESOURCES runs.

        It is empty where nobody knows, or the nodes differ.
        """
        if self.here:
            return os.uname().machine
        kinds = list_node_types(resources, self.site, self.allocation, self.client)
        found = {self.site.node_types[kind].architecture for kind in kinds}
        return found.pop() if len(found) == 1 else ""


def look_around(
    runtime: str,
    site: Site,
    runner: Runner,
    *,
    batch: bool = False,
    het_group: str = "",
) -> Surroundings:
    """Return where a step by RUNTIME, as the command line has it, is planned.

    With BATCH it gets a job of its own, whatever job this shell is in. HET_GROUP is its group of a
    heterogeneous job. Raise MissingToolError where
    the runtime cannot be had.
    """
    wanted = site.runtime if runtime == "auto" else runtime
    chosen, reason = choose_runtime(wanted, runner)
    allocation = {} if batch else find_allocation(os.environ, het_group)
    return Surroundings(site, runner, chosen, reason, allocation)
