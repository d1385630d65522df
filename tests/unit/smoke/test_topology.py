"""`nvidia-smi topo -m`, in its forms: with NIC columns and a legend, with the devices' names,
without HCAs.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.node.alike import check_node_alike
from hpcstack_smoke.node.topology import NO_MESH, Mesh, find_mesh, find_nearest_hcas

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


def draw_paths(rows: list[str]) -> str:
    """`topo -m` of GPUs whose paths are ROWS, a word for each pair."""
    head = "\t" + "\t".join(f"GPU{n}" for n in range(len(rows))) + "\tCPU Affinity"
    lines = [f"GPU{n}\t" + "\t".join(row.split()) + "\t0-7" for n, row in enumerate(rows)]
    return "\n".join([head, *lines]) + "\n"


def test_how_nvlink_joins_the_gpus_of_a_node() -> None:
    switched = draw_paths([" ".join("X" if a == b else "NV18" for b in range(8)) for a in range(8)])
    assert find_mesh(switched, 18) == Mesh(18, switched=True)
    # of the links of each of four A100 a third leads to each other; nccl-tests #331
    board = draw_paths(["X NV4 NV4 NV4", "NV4 X NV4 NV4", "NV4 NV4 X NV4", "NV4 NV4 NV4 X"])
    assert find_mesh(board, 12) == Mesh(12, switched=False)
    # two GPUs of either have what is between them
    assert find_mesh(draw_paths(["X NV12", "NV12 X"]), 12) == Mesh(12, switched=False)
    assert find_mesh(draw_paths(["X NV4", "NV4 X"]), 12) == Mesh(4, switched=False)
    # eight V100, of which each reaches four others by links of its own
    cube = draw_paths(
        [
            "X NV1 NV1 NV2 NV2 SYS SYS SYS",
            "NV1 X NV2 NV1 SYS NV2 SYS SYS",
            "NV1 NV2 X NV2 SYS SYS NV1 SYS",
            "NV2 NV1 NV2 X SYS SYS SYS NV1",
            "NV2 SYS SYS SYS X NV1 NV1 NV2",
            "SYS NV2 SYS SYS NV1 X NV2 NV1",
            "SYS SYS NV1 SYS NV1 NV2 X NV2",
            "SYS SYS SYS NV1 NV2 NV1 NV2 X",
        ]
    )
    assert find_mesh(cube, 6) == Mesh(6, switched=False)


def test_pairs_that_nvlink_does_not_join_to_each_other_have_no_ring() -> None:
    bridged = draw_paths(["X NV12 SYS SYS", "NV12 X SYS SYS", "SYS SYS X NV12", "SYS SYS NV12 X"])
    assert find_mesh(bridged, 12) == NO_MESH
    chain = draw_paths(["X NV4 SYS", "NV4 X NV4", "SYS NV4 X"])
    assert find_mesh(chain, 8) == NO_MESH
    assert find_mesh(draw_paths(["X SYS", "SYS X"]), 0) == NO_MESH
    assert find_mesh("", 18) == find_mesh(draw_paths(["X"]), 18) == NO_MESH
    # how many a GPU has in all tells a switch from a mesh
    assert find_mesh(draw_paths(["X NV4 NV4", "NV4 X NV4", "NV4 NV4 X"]), 0) == NO_MESH


@given(st.text(alphabet="GPUNIC0123 \tXSYPBHODE\n\x1b[4m:mlx5_", max_size=200))
def test_any_text(text: str) -> None:
    find_nearest_hcas(text)
    find_mesh(text, 18)
