"""`hpcstack plan`.

Tested in tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import answer, format_table, json_option
from hpcstack.core.errors import format_count

if TYPE_CHECKING:
    from hpcstack.hardware.memory import Transformer, Use


@click.command("plan")
@click.option(
    "--params",
    required=True,
    metavar="NUMBER",
    help="Number of parameters of the model, as 7e9 or 13B.",
)
@click.option(
    "--gpus",
    required=True,
    metavar="MODEL:N",
    help="Model and number of the GPUs in a node, as h100:8.",
)
@click.option(
    "-N",
    "--nodes",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100_000),
    metavar="NUMBER",
    help="Number of nodes.",
)
@click.option(
    "--memory",
    "gib",
    default=0.0,
    type=click.FloatRange(0, 10_000),
    metavar="GIB",
    show_default="as known of the model",
    help="Memory of a GPU in GiB.",
)
@click.option(
    "--layers",
    default=0,
    type=click.IntRange(0, 10_000),
    metavar="NUMBER",
    show_default="as usual for the parameters",
    help="Number of layers of the model.",
)
@click.option(
    "--hidden",
    default=0,
    type=click.IntRange(0, 10_000_000),
    metavar="NUMBER",
    show_default="as usual for the parameters",
    help="Hidden size of the model.",
)
@click.option(
    "--heads",
    default=0,
    type=click.IntRange(0, 100_000),
    metavar="NUMBER",
    show_default="as usual for the hidden size",
    help="Number of attention heads.",
)
@click.option(
    "--sequence",
    default=4096,
    show_default=True,
    type=click.IntRange(1, 100_000_000),
    metavar="NUMBER",
    help="Length of a sequence in tokens.",
)
@click.option(
    "--batch",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    metavar="NUMBER",
    help="Number of sequences on each GPU at a time.",
)
@click.option(
    "--vocabulary",
    default=32000,
    show_default=True,
    type=click.IntRange(1, 10_000_000),
    metavar="NUMBER",
    help="Size of the vocabulary, which counts for the logits.",
)
@click.option(
    "--deepspeed", is_flag=True, help="Print a configuration for DeepSpeed to begin with."
)
@click.option(
    "--attention",
    is_flag=True,
    help="Count the attention's own activations as kept, as without FlashAttention.",
)
@click.option(
    "--recompute",
    is_flag=True,
    help="Count all activations as recomputed (activation checkpointing).",
)
@json_option
def command(
    params: str,
    gpus: str,
    nodes: int,
    gib: float,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    vocabulary: int,
    deepspeed: bool,
    attention: bool,
    recompute: bool,
    as_json: bool,
) -> None:
    """Estimate the GPU memory that training takes, and say which strategy fits.

    A transformer is trained in mixed precision with Adam. The numbers are arithmetic from the
    papers that the output names, not a measurement. Exit code 1: no strategy fits.
    """
    from hpcstack.hardware import memory

    name, count = memory.read_gpus(gpus)
    if gib:
        have, source = gib * memory.GIB, "--memory"
    else:
        have, source = memory.find_gpu_memory(name)

    one = memory.make_transformer(
        memory.read_params(params),
        layers,
        hidden,
        heads,
        sequence,
        batch,
        attention=attention,
        recompute=recompute,
        vocabulary=vocabulary,
    )
    found = memory.list_strategies(one, count, nodes)
    first = next((use for use in found if memory.fits_in_memory(use, have)), None)
    if deepspeed:
        answer(memory.make_deepspeed_config(one, first), True, str)
        return

    fewest = memory.fewest_nodes(one, count, have)
    document = {
        "fewest_nodes": fewest,
        "model": asdict(one),
        "gpu": name,
        "gpus_per_node": count,
        "nodes": nodes,
        "bytes_per_gpu": have,
        "reserved": memory.RESERVED,
        "source": source,
        "choose": first.strategy if first else "",
        "strategies": [
            {
                **asdict(use),
                "total": use.total,
                "fits": memory.fits_in_memory(use, have),
                "most_batch": memory.most_batch(one, use, have),
            }
            for use in found
        ],
    }
    gpu = f"{name}: {have / memory.GIB:.1f} GiB, {source}"
    answer(document, as_json, lambda: _format_text(one, found, have, first, gpu, fewest))
    raise click.exceptions.Exit(0 if first else 1)


def _format_text(
    one: Transformer, found: list[Use], have: float, first: Use | None, gpu: str, fewest: int
) -> str:
    from hpcstack.hardware import memory

    def gib(number: float) -> str:
        return f"{number / memory.GIB:.1f}"

    rows = [
        (
            use.strategy,
            gib(use.weights),
            gib(use.gradients),
            gib(use.optimizer),
            gib(use.activations),
            gib(use.total),
            "fits" if memory.fits_in_memory(use, have) else "NO",
            str(memory.most_batch(one, use, have)),
            use.formula,
        )
        for use in found
    ]
    head = (
        "STRATEGY",
        "WEIGHTS",
        "GRADIENTS",
        "OPTIMIZER",
        "ACTIVATIONS",
        "TOTAL GiB",
        "",
        "BATCH UP TO",
        "OF P, N RANKS",
    )
    shape = f"{one.params:g} parameters: {one.layers} layers of {one.hidden}, {one.heads} heads"
    tokens = f"{one.batch} x {one.sequence} tokens a GPU"
    verdict = _explain_none(one, found, have)
    if first:
        verdict = f"choose {first.strategy}: the simplest that fits"
    if fewest:
        verdict += f"; it fits from {format_count(fewest, 'node')} on"

    # after its summary, the module's docstring says which papers the arithmetic is from
    paragraphs = (memory.__doc__ or "").partition("\n\n")[2]
    sources = [f"  {line.strip()}" for line in paragraphs.splitlines()]
    return "\n".join(
        [
            f"{shape}; {tokens}; {gpu}; {memory.RESERVED:.0%} of it left free",
            "",
            format_table(rows, head),
            verdict,
            "",
            *sources,
        ]
    )


def _explain_none(one: Transformer, found: list[Use], have: float) -> str:
    """Return what could be done where no strategy fits into HAVE bytes."""
    from hpcstack.hardware import memory

    # would the strategy that takes least, but for activations, fit if all of those were recomputed?
    if not one.recompute:
        least = min(found, key=lambda use: use.total - use.activations)
        with_less = (
            least.total
            - least.activations
            + memory.count_activation_bytes(memory.recompute_all(one))
        )
        if with_less <= have * (1 - memory.RESERVED):
            return f"none fits; with all activations recomputed {least.strategy} would: --recompute"
    return (
        "none fits: more nodes, a smaller batch, or offload to the host's memory (ZeRO-Offload, "
        "ZeRO-Infinity)"
    )
