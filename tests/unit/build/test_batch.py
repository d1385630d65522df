"""Builds as batch jobs: which partition builds for which processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.build.batch import find_partition
from hpcstack.core.errors import InputError

KINDS = {"intel": {}, "grace": {"architecture": "aarch64"}}
PARTITIONS = {
    "old": {"node_type": "intel"}, "arm": {"node_type": "grace"}, "gpu": {"node_type": "intel", "default": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("platform", "partition"), [("linux/amd64", "gpu"), ("linux/arm64", "arm")]
)
def test_a_build_goes_to_nodes_of_its_kind_the_default_ones_first(
    tmp_path: Path, platform: str, partition: str
) -> None:
    site = make_site(tmp_path, node_types=KINDS, partitions=PARTITIONS)
    assert find_partition(platform, site) == partition


def test_where_no_node_is_of_its_kind_it_is_refused(tmp_path: Path) -> None:
    site = make_site(tmp_path, node_types={"intel": {}}, partitions={"gpu": {"node_type": "intel"}})
    with pytest.raises(InputError, match="no partition of site.yaml has nodes for linux/arm64"):
        find_partition("linux/arm64", site)


def test_a_site_without_partitions_leaves_it_to_slurm(tmp_path: Path) -> None:
    assert find_partition("linux/arm64", make_site(tmp_path)) == ""
