"""`hpcstack plan`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import answer, format_table, json_option
from hpcstack.core.errors import format_count

if TYPE_CHECKING:
    from hpcstack.hardware.memory import Transformer, Use


@click.command("plan")
@click.option("--params", required=True, help="Parameters of the model, e.g. 7e9 or 13B.")
@click.option("--gpus", required=True, metavar="MODEL:N", help="GPUs of a node, e.g. h100:8.")
@click.option("-N", "--nodes", default=1, show_default=True, type=click.IntRange(1, 100_000))
@click.option(
    "--memory",
    "gib",
    default=0.0,
    type=click.FloatRange(0, 10_000),
    help="GiB of a GPU, if not known here.",
)
@click.option("--layers", default=0, type=click.IntRange(0, 10_000))
@click.option("--hidden", default=0, type=click.IntRange(0, 10_000_000), help="Width of the model.")
@click.option("--heads", default=0, type=click.IntRange(0, 100_000))
@click.option(
    "--sequence",
    default=4096,
    show_default=True,
    type=click.IntRange(1, 100_000_000),
    help="Tokens.",
)
@click.option(
    "--batch",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Sequences a GPU.",
)
@click.option(
    "--vocabulary",
    default=32000,
    show_default=True,
    type=click.IntRange(1, 10_000_000),
    help="For the logits.",
)
@click.option(
    "--deepspeed", is_flag=True, help="Print a configuration for DeepSpeed to begin with."
)
@click.option(
    "--attention",
    is_flag=True,
    help="The attention's own activations are kept (no FlashAttention).",
)
@click.option("--recompute", is_flag=True, help="All activations are recomputed (checkpointing).")
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
    """Say how much memory training a transformer takes on each GPU, and which strategy fits. Exit
    1: none does.

    Mixed precision with Adam. Arithmetic from the papers that it names, not a measurement.
    """
    from hpcstack.hardware import memory

    name, count = memory.read_gpus(gpus)
    have, source = (gib * memory.GIB, "--memory") if gib else memory.find_gpu_memory(name)
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
        answer(memory.deepspeed_config(one, first), True, str)
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
    answer(document, as_json, lambda: _text(one, found, have, first, gpu, fewest))
    raise click.exceptions.Exit(0 if first else 1)


def _text(
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
    told = f"choose {first.strategy}: the simplest that fits" if first else _none(one, found, have)
    told += f"; it fits from {format_count(fewest, 'node')} on" if fewest else ""
    return "\n".join(
        [
            (
                f"{shape}; {one.batch} x {one.sequence} tokens a GPU; {gpu}; {memory.RESERVED:.0%} "
                f"of it left free"
            ),
            "",
            format_table(rows, head),
            told,
            "",
            *[f"  {line.strip()}" for line in (memory.__doc__ or "").splitlines()[2:]],
        ]
    )


def _none(one: Transformer, found: list[Use], have: float) -> str:
    from hpcstack.hardware import memory

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
