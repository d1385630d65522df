"""How hpcstack is started on a node: as it is here, or where the processors are others by the
command of that node.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from hpcstack.site.model import NodeType


def hpcstack_on(node: NodeType | None) -> list[str]:
    """The beginning of hpcstack's command line in a job on NODE (None: the site does not say which
    nodes it has).

    InputError where the node has other processors than this machine and site.yaml names no hpcstack
    of its own: what is installed here has compiled parts that are for this machine's.
    """
    if node and node.hpcstack:
        return [node.hpcstack]
    here = os.uname().machine
    if node and node.architecture != here:
        raise InputError(
            (
                f"this hpcstack is installed for {here}, and the job would run on "
                f"{node.architecture} nodes"
            ),
            (
                "install it there, and name it in site.yaml: hpcstack: /path/to/bin/hpcstack of "
                "their node type"
            ),
        )
    return [sys.executable, "-m", "hpcstack"]
