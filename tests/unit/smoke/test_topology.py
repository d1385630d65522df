"""`nvidia-smi topo -m`, in its forms: with NIC columns and a legend, with the devices' names,
without HCAs.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.node.alike import check_node_alike
from hpcstack_smoke.node.topology import find_nearest_hcas

LEGEND = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-55\t0
GPU1\tNV18\t X \tSYS\tPXB\t56-111\t1
NIC0\tPIX\tSYS\t X \tSYS\t\t
NIC1\tSYS\tPXB\tSYS\t X \t\t

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_3
"""


def test_each_gpus_nearest() -> None:
    assert find_nearest_hcas(LEGEND) == "GPU0 PIX mlx5_0; GPU1 PXB mlx5_3"
    older = "\tGPU0\tmlx5_0\tmlx5_1\tCPU Affinity\nGPU0\t X \tNODE\tNODE\t0-23\n"
    assert find_nearest_hcas(older) == "GPU0 NODE mlx5_0 mlx5_1"
    assert (
        find_nearest_hcas("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n") == find_nearest_hcas("") == ""
    )


def test_the_node_whose_card_is_elsewhere_is_named_with_that_alone() -> None:
    moved = LEGEND.replace("PIX", "SYS")
    nodes = {
        f"n{n}": {"alike": {"HCAs near GPUs": find_nearest_hcas(moved if n == 2 else LEGEND)}}
        for n in range(4)
    }
    result = check_node_alike(nodes)
    assert result.status == "WARN"
    assert result.measured == "n2: HCAs near GPUs GPU0 SYS mlx5_0 mlx5_3 (others: GPU0 PIX mlx5_0)"


@given(st.text(alphabet="GPUNIC0123 \tXSYPBHODE\n\x1b[4m:mlx5_", max_size=200))
def test_any_text(text: str) -> None:
    find_nearest_hcas(text)
