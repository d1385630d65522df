"""The arithmetic of `plan`: what the papers print, and what must hold for any model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.hardware.memory import (
    GIB,
    count_activation_bytes,
    fewest_nodes,
    find_gpu_memory,
    fits_in_memory,
    list_strategies,
    make_deepspeed_config,
    make_transformer,
    most_batch,
    read_gpus,
    read_params,
)


def states(params: float, ranks: int) -> dict[str, float]:
    """GB of weights, gradients and optimizer by strategy, without the layers that are gathered."""
    one = make_transformer(params)
    return {
        use.strategy: (use.gradients + use.optimizer + min(use.weights, 2 * params if "3" not in use.strategy else 2 * params / ranks)) / 1e9
        for use in list_strategies(one, 1, ranks)
    }  # fmt: skip


def test_figure_1_of_the_zero_paper() -> None:
    """7.5 billion parameters, 64 ranks: 120, 31.4, 16.6 and 1.9 GB."""
    found = states(7.5e9, 64)
    assert [round(found[name], 1) for name in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3 or FSDP")] == [
        120.0,
        31.4,
        16.6,
        1.9,
    ]


def test_the_shape_of_llama_7b() -> None:
    one = make_transformer(6.7e9)
    assert abs(one.layers - 32) <= 1
    assert abs(one.hidden - 4096) <= 128
    assert one.heads == one.hidden // 128
    assert (
        make_transformer(6.7e9, layers=32).hidden == 4224
        or make_transformer(6.7e9, layers=32).hidden == 4096
    )


def test_activations_by_the_formula() -> None:
    """GPT-3 175B of Korthikanti et al.: s 2048, b 1, h 12288, a 96, 96 layers, t 8."""
    one = make_transformer(175e9, 96, 12288, 96, 2048, 1, attention=True, vocabulary=0)
    assert count_activation_bytes(one) == 96 * 2048 * 12288 * (34 + 5 * 96 * 2048 / 12288)
    assert count_activation_bytes(one, 8) == count_activation_bytes(one) / 8
    assert (
        count_activation_bytes(
            make_transformer(175e9, 96, 12288, 96, 2048, 1, recompute=True, vocabulary=0)
        )
        == 96 * 2 * 2048 * 12288
    )


@given(st.floats(1e6, 1e13), st.integers(1, 16), st.integers(1, 512))
def test_more_sharding_never_takes_more_state(params: float, gpus: int, nodes: int) -> None:
    by = {use.strategy: use for use in list_strategies(make_transformer(params), gpus, nodes)}
    if gpus * nodes > 1:
        assert by["DDP"].optimizer >= by["ZeRO-1"].optimizer >= by["ZeRO-3 or FSDP"].optimizer > 0
        assert by["ZeRO-1"].gradients >= by["ZeRO-2"].gradients
    for use in by.values():
        assert use.total > 0
        assert most_batch(make_transformer(params), use, 0.0) == 0


def test_what_is_not_known_is_asked_for() -> None:
    assert find_gpu_memory("H100")[0] == 81559 * (1 << 20)
    assert "https://" in find_gpu_memory("h100")[1]
    with pytest.raises(InputError, match="not known here"):
        find_gpu_memory("x100")
    assert read_gpus("h100:8") == ("h100", 8)
    assert read_gpus("H200") == ("H200", 1)
    for text in ("h100:0", "8", ":8", "h 100:8"):
        if text != "8":
            with pytest.raises(InputError):
                read_gpus(text)


def test_the_verb() -> None:
    def plan(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hpcstack", "plan", *words],
            capture_output=True,
            text=True,
            check=False,
        )

    done = plan("--params", "7e9", "--gpus", "h100:8", "-N", "4", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["choose"] == "ZeRO-1"
    text = plan("--params", "7e9", "--gpus", "h100:8", "-N", "4").stdout
    assert "choose ZeRO-1: the simplest that fits" in text
    assert "arxiv.org/abs/1910.02054" in text
    assert plan("--params", "7e12", "--gpus", "h100:8").returncode == 1
    assert plan("--params", "7", "--gpus", "h100:8").returncode == 2


@pytest.mark.parametrize(
    ("said", "means"),
    [("7e9", 7e9), ("13B", 13e9), ("350m", 350e6), ("1.5 b", 1.5e9), ("2e10", 2e10)],
)
def test_parameters_as_people_write_them(said: str, means: float) -> None:
    assert read_params(said) == means


@pytest.mark.parametrize("said", ["many", "-7e9", "7e999", "", "13 GB"])
def test_no_number_of_parameters(said: str) -> None:
    with pytest.raises(InputError, match="--params"):
        read_params(said)


@pytest.mark.parametrize(
    ("params", "shape"), [(13e9, (40, 5120, 40)), (7e9, (32, 4096, 32)), (70e9, (80, 8192, 64))]
)
def test_shapes_are_real_ones(params: float, shape: tuple[int, int, int]) -> None:
    one = make_transformer(params)
    assert (one.layers, one.hidden, one.heads) == shape
    assert one.heads % 8 == 0


def test_the_fewest_nodes_and_a_configuration() -> None:
    one, have = make_transformer(70e9), 80 * GIB
    least = fewest_nodes(one, 8, have)
    assert any(fits_in_memory(use, have) for use in list_strategies(one, 8, least))
    assert least == 1 or not any(
        fits_in_memory(use, have) for use in list_strategies(one, 8, least - 1)
    )
    by_name = {use.strategy: use for use in list_strategies(one, 8, 2)}
    assert make_deepspeed_config(one, by_name["DDP"])["zero_optimization"] == {"stage": 0}
    assert make_deepspeed_config(one, by_name["ZeRO-2"])["zero_optimization"] == {
        "stage": 2,
        "overlap_comm": True,
    }
    for none in (by_name["tensor 8 + ZeRO-1"], None):
        with pytest.raises(InputError, match="more than DeepSpeed alone does|no strategy fits"):
            make_deepspeed_config(one, none)


def test_tensor_parallelism_gives_each_gpu_whole_heads() -> None:
    assert not any(
        "tensor" in use.strategy
        for use in list_strategies(make_transformer(13e9, 40, 5248, 41), 8, 2)
    )
