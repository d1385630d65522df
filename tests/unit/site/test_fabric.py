"""What site.yaml says of the network: libraries of the nodes' own, and for which images and nodes
they are.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hpcstack.site.fabric import Fabric
from hpcstack.site.load import Site

CXI: dict[str, Any] = {
    "reason": "the node's libfabric reaches Slingshot",
    "node_types": ["gh200"],
    "cuda": ["12"],
    "libraries": [
        "/usr/lib64/libcxi.so.1",
        "/opt/cray/libfabric/1.22.0/lib64",
        "/opt/aws-ofi-nccl/lib",
    ],
    "files": ["/etc/cxi.conf:/etc/cxi.conf"],
    "settings": {"FI_PROVIDER": {"value": "cxi", "reason": "the only one that reaches it"}},
    "mapped": ["libnccl-net.so", "libfabric.so.1"],
}


def fabric(**changes: Any) -> Fabric:
    return Fabric.model_validate({"kind": "slingshot", "injections": {"cxi": {**CXI, **changes}}})


def test_files_and_folders_have_places_of_their_own_which_the_loader_searches() -> None:
    (one,) = fabric().bring(["gh200"], {"CUDA_VERSION": "12.6.3"})
    assert one.mounts == (
        "/usr/lib64/libcxi.so.1:/opt/hpcstack-host/cxi/libcxi.so.1",
        "/opt/cray/libfabric/1.22.0/lib64:/opt/hpcstack-host/cxi.1",
        "/opt/aws-ofi-nccl/lib:/opt/hpcstack-host/cxi.2",
        "/etc/cxi.conf:/etc/cxi.conf",
    )
    assert one.folders == (
        "/opt/hpcstack-host/cxi",
        "/opt/hpcstack-host/cxi.1",
        "/opt/hpcstack-host/cxi.2",
    )
    assert one.sources == (*CXI["libraries"], "/etc/cxi.conf")


@pytest.mark.parametrize(
    ("node_type", "cuda", "count"),
    [
        ("gh200", "12.6.3", 1),
        ("gh200", "13.0.1", 0),
        ("gh200", "", 0),
        ("h100", "12.6.3", 0),
        ("", "12.6.3", 0),
        (None, "12.6.3", 1),
    ],
)
def test_for_which_nodes_and_images(node_type: str | None, cuda: str, count: int) -> None:
    """`""` is a node of which site.yaml says nothing; None stands for all nodes, as a modulefile is
    for.
    """
    kinds = None if node_type is None else [node_type]
    assert len(fabric().bring(kinds, {"CUDA_VERSION": cuda})) == count


def test_of_several_kinds_what_all_have_counts() -> None:
    of_two = fabric(node_types=["a", "b"], cuda=[])
    assert of_two.bring(["a", "b"], {})
    assert of_two.bring(["a", "c"], {}) == []
    assert of_two.bring([], {}) == [], "nobody knows what nodes these are"


def test_an_injection_without_conditions_is_for_all() -> None:
    assert fabric(node_types=[], cuda=[]).bring([], {})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"libraries": []}, "at least 1 item"),
        ({"libraries": ["lib/libcxi.so"]}, "absolute path"),
        ({"libraries": ["/usr/lib64/../lib64/libcxi.so"]}, "without '.'"),
        ({"libraries": ["/"]}, "without '.'"),
        ({"libraries": ["/a b/libcxi.so"]}, "without blanks"),
        ({"libraries": ["/a/$(id)/libcxi.so"]}, "without blanks"),
        ({"libraries": ["/a:b/libcxi.so"]}, "SOURCE:TARGET"),
        ({"libraries": ["/a/libcxi.so.1", "/b/libcxi.so.1"]}, "libcxi.so.1 is there twice"),
        ({"cuda": ["12.6"]}, "not a major version of CUDA"),
        ({"mapped": ["/opt/lib/libcxi.so"]}, "not the name of a library"),
        ({"settings": {"LD_PRELOAD": {"value": "x", "reason": "y"}}}, "not a setting of NCCL"),
        ({"settings": {"FI_PROVIDER": {"value": "cxi", "reason": ""}}}, "at least 1 character"),
        ({"reason": "one\ntwo"}, "newlines"),
        ({"library": ["/x"]}, "Extra inputs"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("$", r"\$")):
        fabric(**changes)


def test_a_node_type_that_the_site_does_not_know_is_refused() -> None:
    document = {
        "store": "/s", "lock_dir": "/l", "module_root": "/m", "node_types": {"gh20": {}},
        "fabric": {"injections": {"cxi": CXI}},
    }  # fmt: skip
    with pytest.raises(
        ValidationError, match="fabric.injections.cxi: there is no node type 'gh200'.*gh20"
    ):
        Site.model_validate(document)


def test_a_name_becomes_part_of_a_path() -> None:
    with pytest.raises(ValidationError, match="injections"):
        Fabric.model_validate({"injections": {"../x": CXI}})
