"""How hpcstack is started in a job, where the nodes are of this machine's kind and where they are
not.
"""

from __future__ import annotations

import os
import sys

import pytest

from hpcstack.core.errors import InputError
from hpcstack.site.model import PLATFORMS, NodeType
from hpcstack.site.own_command import find_hpcstack_on

HERE = os.uname().machine
OTHER = next(machine for machine in PLATFORMS if machine != HERE)


def test_nodes_of_this_kind_run_what_runs_here() -> None:
    for node in (None, NodeType.model_validate({"architecture": HERE})):
        assert find_hpcstack_on(node) == [sys.executable, "-m", "hpcstack"]


def test_nodes_of_another_kind_run_their_own() -> None:
    node = NodeType.model_validate({"architecture": OTHER, "hpcstack": "/opt/other/bin/hpcstack"})
    assert find_hpcstack_on(node) == ["/opt/other/bin/hpcstack"]


def test_where_there_is_none_for_them_it_is_said_before_a_job_waits() -> None:
    with pytest.raises(
        InputError, match=f"installed for {HERE}, and the job would run on {OTHER} nodes"
    ) as refused:
        find_hpcstack_on(NodeType.model_validate({"architecture": OTHER}))
    assert "in site.yaml" in refused.value.hint
