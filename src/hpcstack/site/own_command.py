"""How a job starts hpcstack on its node: as it is installed here, or as site.yaml says."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from hpcstack.site.model import NodeType


def find_hpcstack_on(node: NodeType | None) -> list[str]:
    """Return the beginning of hpcstack's command line in a job on NODE.

    None for NODE: the site does not say which nodes it has.

    Raise InputError where the node has another architecture than this machine, and site.yaml names
    no hpcstack for it: what is installed here has compiled parts for this one.
    """
    if node and node.hpcstack:
        return [node.hpcstack]
    here = os.uname().machine
    if node and node.architecture != here:
        raise InputError(
            f"this hpcstack is installed for {here}, and the job would run on "
            f"{node.architecture} nodes",
            "install it for those, and name it in site.yaml as `hpcstack: /path/to/bin/hpcstack` "
            "of their node type",
            page="install",
        )
    return [sys.executable, "-m", "hpcstack"]
