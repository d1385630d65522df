"""How much memory training takes on each GPU, and which strategy fits: arithmetic with its sources, no measurement.

- Weights, gradients and Adam in mixed precision: 2 + 2 + 12 bytes a parameter; ZeRO-1, 2, 3 divide 12, 12 + 2, and all
  by the number of ranks: Rajbhandari et al., ZeRO, https://arxiv.org/abs/1910.02054, section 3.1 and figure 1.
- FSDP with full sharding holds what ZeRO-3 holds: Zhao et al., https://arxiv.org/abs/2304.11277.
- Activations of a transformer layer: s*b*h*(34 + 5*a*s/h) bytes; without the attention's own (FlashAttention,
  selective recomputation) s*b*h*34; with all of it recomputed 2*s*b*h; tensor and sequence parallel divide by t:
  Korthikanti et al., https://arxiv.org/abs/2205.05198, equations 2 and 4 and table 2.
- Parameters of a transformer: about 12 * layers * hidden^2: Kaplan et al., https://arxiv.org/abs/2001.08361, table 1. A
  shape that is not given has hidden = 128 * layers, as LLaMA's 7B and 13B: https://arxiv.org/abs/2302.13971, table 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hpcstack.errors import InputError, did_you_mean
from hpcstack.facts import source, table

GIB = float(1 << 30)
RESERVED = 0.08  # of the GPU: CUDA's context, NCCL's buffers, fragmentation. An assumption, not a measurement.
ASPECT, HEAD = 128, 128
LIVE_LAYERS = 2  # layers whose whole weights are there at once under ZeRO-3 and FSDP: the one that runs, and the next


@dataclass(frozen=True)
class Model:
    """A transformer: parameters, its shape, and what one GPU trains at a time."""

    params: float
    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    attention: bool = False  # whether the attention's own activations are kept
    recompute: bool = False


@dataclass(frozen=True)
class Use:
    """Bytes on each GPU."""

    strategy: str
    weights: float
    gradients: float
    optimizer: float
    activations: float
    formula: str

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations


def model(params: float, layers: int = 0, hidden: int = 0, heads: int = 0, sequence: int = 4096, batch: int = 1,
          *, attention: bool = False, recompute: bool = False) -> Model:  # fmt: skip
    """A transformer of PARAMS parameters; what is not given of its shape is made of the rest."""
    if not 1e6 <= params <= 1e14:
        raise InputError(f"--params {params:g}: between 1e6 and 1e14 are counted", "e.g. --params 7e9")
    if not layers:
        layers = max(1, round((params / 12 / hidden**2) if hidden else (params / 12 / ASPECT**2) ** (1 / 3)))
    hidden = hidden or max(HEAD, round((params / 12 / layers) ** 0.5 / HEAD) * HEAD)
    return Model(params, layers, hidden, heads or max(1, hidden // HEAD), sequence, batch, attention, recompute)


def activations(one: Model, tensor: int = 1) -> float:
    """Bytes of one GPU's activations, all layers, for `batch` sequences; split TENSOR ways, sequence parallel too."""
    unit = float(one.sequence * one.batch * one.hidden)
    if one.recompute:
        return one.layers * 2 * unit / tensor
    own = 5 * one.heads * one.sequence / one.hidden if one.attention else 0.0
    return one.layers * unit * (34 + own) / tensor


def uses(one: Model, gpus: int, nodes: int) -> list[Use]:
    """Every strategy on NODES nodes of GPUS each, the simplest first."""
    ranks = gpus * nodes
    psi, act = one.params, activations(one)
    live = LIVE_LAYERS * 2 * psi / one.layers
    out = [
        Use("DDP", 2 * psi, 2 * psi, 12 * psi, act, "2P + 2P + 12P"),
        Use("ZeRO-1", 2 * psi, 2 * psi, 12 * psi / ranks, act, "2P + 2P + 12P/N"),
        Use("ZeRO-2", 2 * psi, 2 * psi / ranks, 12 * psi / ranks, act, "2P + (2 + 12)P/N"),
        Use("ZeRO-3 or FSDP", 2 * psi / ranks + live, 2 * psi / ranks, 12 * psi / ranks, act, "16P/N + 2 layers"),
    ]
    if gpus > 1:
        data = nodes
        out.append(Use(f"tensor {gpus} + ZeRO-1", 2 * psi / gpus, 2 * psi / gpus, 12 * psi / gpus / data,
                       activations(one, gpus), "4P/t + 12P/(t*d)"))  # fmt: skip
        live_t = live / gpus
        out.append(Use(f"tensor {gpus} + FSDP", 2 * psi / ranks + live_t, 2 * psi / ranks, 12 * psi / ranks,
                       activations(one, gpus), "16P/N + 2 layers/t"))  # fmt: skip
    if gpus > 1 and nodes > 1:
        # The first of p stages keeps p micro-batches of its layers/p layers: as much as all layers of one.
        out.append(Use(f"tensor {gpus} + pipeline {nodes}", 2 * psi / ranks, 2 * psi / ranks, 12 * psi / ranks,
                       activations(one, gpus), "16P/(t*p)"))  # fmt: skip
    return [use for use in out if ranks > 1 or use.strategy in ("DDP",)] or out[:1]


def memory(gpu: str) -> tuple[float, str]:
    """Bytes of a GPU by its model's name, and the source. InputError where it is not known."""
    rows = {row["gpu"].lower(): row for row in table("gpu-memory")["gpus"]}
    row = rows.get(gpu.lower())
    if row is None:
        near = did_you_mean(gpu.lower(), rows)
        raise InputError(f"the memory of {gpu!r} is not known here{near}", "say it: --memory 80 (GiB)")
    return int(row["mib"]) * float(1 << 20), "; ".join(source("gpu-memory", key) for key in row["source"])


def read_gpus(text: str) -> tuple[str, int]:
    """`h100:8` as (model, GPUs a node)."""
    match = re.fullmatch(r"([A-Za-z0-9-]+)(?::(\d{1,3}))?", text)
    if not match or match[2] == "0":
        raise InputError(f"--gpus {text}: MODEL:NUMBER of a node", "e.g. --gpus h100:8")
    return match[1], int(match[2] or 1)


def fits(use: Use, have: float) -> bool:
    return use.total <= have * (1 - RESERVED)


def most_batch(one: Model, use: Use, have: float) -> int:
    """How many sequences at a time would fit with USE; 0 for none."""
    fixed = use.total - use.activations
    each = use.activations / one.batch
    return max(0, int((have * (1 - RESERVED) - fixed) // each)) if each else 0


def smaller(one: Model) -> Model:
    """The same with all activations recomputed."""
    return replace(one, recompute=True)
