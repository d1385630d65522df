"""Lists of nodes, and which node a name means; judged by `scontrol show hostnames` where it is."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.slurm.nodelist import NodelistError, expand_nodelist, expand_typed, find_node

LISTS = [
    ("node1", "node1"),
    ("node[1-3,7],login1", "node1 node2 node3 node7 login1"),
    ("gpu[08-11]-ib", "gpu08-ib gpu09-ib gpu10-ib gpu11-ib"),
    ("a[1-2],b[001]", "a1 a2 b001"),
    ("rack[01-02]-tray[1-2]", "rack01-tray1 rack01-tray2 rack02-tray1 rack02-tray2"),
    ("gpu[51-52].cluster.example", "gpu51.cluster.example gpu52.cluster.example"),
    ("r[1-2]n[08-10]s[0]", "r1n08s0 r1n09s0 r1n10s0 r2n08s0 r2n09s0 r2n10s0"),
    ("n[9-11]", "n9 n10 n11"),
    ("x[1]y", "x1y"),
    ("n1, n2", "n1 n2"),
    ("a b,", "a b"),
]


@pytest.mark.parametrize(("text", "nodes"), LISTS)
def test_lists_of_nodes(text: str, nodes: str) -> None:
    assert " ".join(expand_nodelist(text)) == nodes


@pytest.mark.parametrize("text", ["", "(null)", "None assigned", "None", "N/A", "  "])
def test_none_is_said(text: str) -> None:
    assert expand_nodelist(text) == ()


@pytest.mark.parametrize(
    "text",
    ["node[a-b]", "n[1-999999999]", "n[3-1]", "n[1", "n1]", "n[]", "n[1-]", ",", f"n[0-{'9' * 5000}]",
     "n[1-1000]m[1-1000]", "a[0-99999],b[0-99999]", "--help; n1", "n[1-2-3]"],
)  # fmt: skip
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(NodelistError, match="not understood"):
        expand_nodelist(text)


@given(st.text(alphabet="abn019[],-. ", max_size=20))
def test_any_text(text: str) -> None:
    try:
        found = expand_nodelist(text)
    except NodelistError:
        return
    assert all(found)


NUMBERS = st.integers(0, 120)
RANGES = st.tuples(NUMBERS, st.integers(0, 9), st.integers(1, 4)).map(
    lambda one: f"{one[0]:0{one[2]}d}-{one[0] + one[1]:0{one[2]}d}"
)
GROUPS = st.lists(RANGES, min_size=1, max_size=3).map(lambda one: f"[{','.join(one)}]")
WORDS = st.sampled_from(["n", "gpu", "-tray", "-ib", ".x.example"])
NAMES = st.tuples(st.sampled_from(["n", "gpu", "rack"]), GROUPS, WORDS, GROUPS, WORDS)


@pytest.mark.srun
@settings(max_examples=20, deadline=None)
@given(name=NAMES, groups=st.integers(0, 2))
def test_slurm_unfolds_the_same(
    tmp_path_factory: pytest.TempPathFactory, name: tuple[str, ...], groups: int
) -> None:
    """`scontrol show hostnames` needs no controller, only some slurm.conf."""
    text = "".join(name[: 1 + 2 * groups])
    conf = tmp_path_factory.mktemp("conf") / "slurm.conf"
    conf.write_text(
        "ClusterName=c\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n"
    )
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env={**os.environ, "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        check=False,
    )
    is_older_form = (
        "Invalid hostlist" in done.stderr
    )  # from then on, text may stand behind brackets
    if is_older_form and not text.endswith("]"):
        return
    assert list(expand_nodelist(text)) == done.stdout.split()


@pytest.mark.parametrize(
    ("host", "nodes", "expected"),
    [
        ("gpu51", "gpu51 gpu52", "gpu51"),
        ("gpu51", "gpu51.x.example gpu52.x.example", "gpu51.x.example"),
        ("gpu51.x.example", "gpu51 gpu52", "gpu51"),
        ("gpu51.y.example", "gpu51.x.example gpu52.x.example", ""),
        ("gpu51", "gpu51.x.example gpu51.y.example", ""),
        ("gpu5", "gpu51", ""),
        ("gpu53", "gpu51 gpu52", ""),
        ("", "gpu51", ""),
    ],
)
def test_which_node_a_name_means(host: str, nodes: str, expected: str) -> None:
    assert find_node(host, nodes.split()) == expected


def test_what_somebody_typed_is_refused_by_its_option() -> None:
    assert expand_typed("-w", "n[1-2]") == ("n1", "n2")
    for text in ("n[1", "", "None assigned"):
        with pytest.raises(InputError, match="-w .*: no list of nodes"):
            expand_typed("-w", text)


def test_a_refusal_says_what_to_type() -> None:
    with pytest.raises(NodelistError) as refused:
        expand_nodelist("n[1")
    assert "scontrol show hostnames" in refused.value.hint
