"""How much memory training takes on each GPU, and which strategy fits. Pure.

It is arithmetic, no measurement. Its sources:
- Weights, gradients and Adam in mixed precision: 2 + 2 + 12 bytes a parameter; ZeRO-1, 2, 3 divide
  12, 12 + 2, and all by the number of ranks: Rajbhandari et al., ZeRO,
  https://arxiv.org/abs/1910.02054, section 3.1 and figure 1.
- FSDP with full sharding holds what ZeRO-3 holds: Zhao et al., https://arxiv.org/abs/2304.11277.
- Activations of a transformer layer: s*b*h*(34 + 5*a*s/h) bytes; without the attention's own
  (FlashAttention, selective recomputation) s*b*h*34; with all of it recomputed 2*s*b*h; tensor and
  sequence parallel divide by t: Korthikanti et al., https://arxiv.org/abs/2205.05198, equations 2
  and 4 and table 2.
- Logits in 32 bits: 4*s*b*v bytes for a vocabulary of v: the same paper, section 4.3.
- Parameters of a transformer: about 12 * layers * hidden^2: Kaplan et al.,
  https://arxiv.org/abs/2001.08361, table 1. A shape that is not given is LLaMA's of that size
  (https://arxiv.org/abs/2302.13971, table 2), else hidden is 128 * layers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hpcstack.core.data import read_facts
from hpcstack.core.errors import InputError, did_you_mean
from hpcstack.hardware.facts import find_source

GIB = float(1 << 30)
# Share of the GPU's memory for CUDA's context, NCCL's buffers and fragmentation. An assumption, not
# a measurement.
RESERVED = 0.08
ASPECT = 128  # hidden size divided by the number of layers
HEAD = 128  # size of one attention head
VOCABULARY = 32000  # LLaMA's
LLAMA = {  # {parameters: (layers, hidden size, heads)}
    6.7e9: (32, 4096, 32),
    13.0e9: (40, 5120, 40),
    32.5e9: (60, 6656, 52),
    65.2e9: (80, 8192, 64),
}
# How far from one of these sizes a model is still taken for one: 7e9 is 6.7e9, 70e9 is 65.2e9.
NEAR = 0.08
MOST_NODES = 4096
REMEDY = "more nodes, or --recompute"
# Layers whose whole weights are in memory at once under ZeRO-3 and FSDP: the one that runs, and the
# next.
LIVE_LAYERS = 2


@dataclass(frozen=True)
class Transformer:
    """A transformer: parameters, its shape, and what one GPU trains at a time.

    SEQUENCE is in tokens, BATCH in sequences. ATTENTION says that the attention's own activations
    are kept (else FlashAttention is meant), RECOMPUTE that all activations are recomputed.
    """

    params: float
    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    attention: bool = False
    recompute: bool = False
    vocabulary: int = VOCABULARY


@dataclass(frozen=True)
class Use:
    """Bytes on each GPU with one STRATEGY, and the FORMULA of what does not depend on the batch.

    ZERO_STAGE is DeepSpeed's, where DeepSpeed alone does it; 0 is plain data parallelism.
    """

    strategy: str
    weights: float
    gradients: float
    optimizer: float
    activations: float
    formula: str
    zero_stage: int | None = None

    @property
    def total(self) -> float:
        """All bytes on one GPU."""
        return self.weights + self.gradients + self.optimizer + self.activations


def make_transformer(
    params: float,
    layers: int = 0,
    hidden: int = 0,
    heads: int = 0,
    sequence: int = 4096,
    batch: int = 1,
    *,
    attention: bool = False,
    recompute: bool = False,
    vocabulary: int = VOCABULARY,
) -> Transformer:
    """Return a transformer of PARAMS parameters; what its shape lacks is made from the rest.

    Raise InputError where PARAMS is no size that can be estimated.
    """
    if not 1e6 <= params <= 1e14:
        raise InputError(
            f"--params {params:g} is not between 1e6 and 1e14",
            "e.g. --params 7e9",
            page="does-my-model-fit",
        )

    known = None
    for size, shape in LLAMA.items():
        if abs(params - size) <= NEAR * size:
            known = shape
            break
    if known and not (layers or hidden or heads):
        layers, hidden, heads = known

    # About 12 * layers * hidden^2 parameters, with hidden = ASPECT * layers where both are open.
    if not layers and hidden:
        layers = max(1, round(params / 12 / hidden**2))
    elif not layers:
        layers = max(1, round((params / 12 / ASPECT**2) ** (1 / 3)))
    # From 1e9 parameters on, as many heads as eight GPUs can share.
    step = 8 * HEAD if params >= 1e9 else HEAD
    hidden = hidden or max(step, round((params / 12 / layers) ** 0.5 / step) * step)
    heads = heads or max(1, hidden // HEAD)
    return Transformer(
        params, layers, hidden, heads, sequence, batch, attention, recompute, vocabulary
    )


def read_params(text: str) -> float:
    """Return `7e9`, `13B` or `350M` as a number. Raise InputError for any other text."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e[0-9]{1,2})?) ?([kmbt]?)", text.strip().lower())
    if not match:
        raise InputError(
            f"--params {text} is not a number of parameters",
            "e.g. --params 7e9, 13B or 350M",
            page="does-my-model-fit",
        )
    factors = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
    return float(match[1]) * factors[match[2]]


def count_activation_bytes(one: Transformer, tensor: int = 1) -> float:
    """Return the bytes of one GPU's activations, of all layers and of a whole batch.

    They are split TENSOR ways by tensor and sequence parallelism.
    """
    unit = float(one.sequence * one.batch * one.hidden)
    logits = 4.0 * one.sequence * one.batch * one.vocabulary / tensor
    if one.recompute:
        return one.layers * 2 * unit / tensor + logits
    own = 5 * one.heads * one.sequence / one.hidden if one.attention else 0.0  # the attention's
    return one.layers * unit * (34 + own) / tensor + logits


def list_strategies(one: Transformer, gpus: int, nodes: int) -> list[Use]:
    """Return every strategy on NODES nodes of GPUS each, the simplest first."""
    ranks = gpus * nodes
    # Bytes of the whole model in mixed precision, and of what is gathered of it at once.
    weights = 2 * one.params
    gradients = 2 * one.params
    adam = 12 * one.params
    live = LIVE_LAYERS * weights / one.layers
    act = count_activation_bytes(one)

    out = [
        Use("DDP", weights, gradients, adam, act, "2P + 2P + 12P", zero_stage=0),
        Use("ZeRO-1", weights, gradients, adam / ranks, act, "2P + 2P + 12P/N", zero_stage=1),
        Use(
            "ZeRO-2",
            weights,
            gradients / ranks,
            adam / ranks,
            act,
            "2P + (2 + 12)P/N",
            zero_stage=2,
        ),
        Use(
            "ZeRO-3 or FSDP",
            weights / ranks + live,
            gradients / ranks,
            adam / ranks,
            act,
            "16P/N + 2 layers",
            zero_stage=3,
        ),
    ]

    # Tensor parallelism, within a node, gives each GPU whole heads.
    splits = gpus > 1 and one.heads % gpus == 0
    split_act = count_activation_bytes(one, gpus)
    if splits:
        out.append(
            Use(
                f"tensor {gpus} + ZeRO-1",
                weights / gpus,
                gradients / gpus,
                adam / gpus / nodes,
                split_act,
                "4P/t + 12P/(t*d)",
            )
        )
        out.append(
            Use(
                f"tensor {gpus} + FSDP",
                weights / ranks + live / gpus,
                gradients / ranks,
                adam / ranks,
                split_act,
                "16P/N + 2 layers/t",
            )
        )
    if splits and nodes > 1:
        # The first of p stages keeps p micro-batches of its layers/p layers: as much as all layers
        # of one.
        out.append(
            Use(
                f"tensor {gpus} + pipeline {nodes}",
                weights / ranks,
                gradients / ranks,
                adam / ranks,
                split_act,
                "16P/(t*p)",
            )
        )

    if ranks == 1:
        return out[:1]  # on one GPU nothing can be divided
    return out


def find_gpu_memory(gpu: str) -> tuple[float, str]:
    """Return the bytes of a GPU's memory, by its model's name, and the source.

    Raise InputError where the model is not known.
    """
    rows = {row["gpu"].lower(): row for row in read_facts("gpu-memory")["gpus"]}
    row = rows.get(gpu.lower())
    if row is None:
        near = did_you_mean(gpu.lower(), rows)
        raise InputError(
            f"the memory of {gpu!r} is not known here{near}",
            f"give it in GiB (--memory N), or one of: {', '.join(sorted(rows))}",
            page="does-my-model-fit",
        )
    size = int(row["mib"]) * float(1 << 20)
    return size, "; ".join(find_source("gpu-memory", key) for key in row["source"])


def read_gpus(text: str) -> tuple[str, int]:
    """Return `h100:8` as (model, GPUs of a node). Raise InputError for any other text."""
    match = re.fullmatch(r"([A-Za-z0-9-]+)(?::(\d{1,3}))?", text)
    if not match or match[2] == "0":
        raise InputError(
            f"--gpus {text} is not MODEL:NUMBER, the GPUs of one node",
            "e.g. --gpus h100:8",
            page="does-my-model-fit",
        )
    return match[1], int(match[2] or 1)


def fits_in_memory(use: Use, have: float) -> bool:
    """Return whether USE fits into a GPU that has HAVE bytes, less what is reserved."""
    return use.total <= have * (1 - RESERVED)


def fewest_nodes(one: Transformer, gpus: int, have: float) -> int:
    """Return the fewest nodes of GPUS on which a strategy fits; 0 where none does.

    HAVE is a GPU's memory in bytes.
    """

    def fit(nodes: int) -> bool:
        return any(fits_in_memory(use, have) for use in list_strategies(one, gpus, nodes))

    # Find a power of two that is enough, then search between it and the one before.
    nodes = 1
    while nodes <= MOST_NODES and not fit(nodes):
        nodes *= 2
    if nodes > MOST_NODES:
        return 0
    return next(count for count in range(nodes // 2 + 1, nodes + 1) if fit(count))


def make_deepspeed_config(one: Transformer, use: Use | None) -> dict[str, object]:
    """Return a configuration for DeepSpeed to begin with, with the ZeRO stage of USE.

    Raise InputError where USE has none, or nothing fits.
    Keys: https://www.deepspeed.ai/docs/config-json/.
    """
    if use is None:
        raise InputError(
            "no strategy fits, so there is none to configure", REMEDY, page="does-my-model-fit"
        )
    if use.zero_stage is None:
        raise InputError(
            f"{use.strategy} is more than DeepSpeed alone does", REMEDY, page="does-my-model-fit"
        )
    zero: dict[str, object] = {"stage": use.zero_stage}
    if use.zero_stage:
        zero["overlap_comm"] = True
    return {
        "train_micro_batch_size_per_gpu": one.batch,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }


def most_batch(one: Transformer, use: Use, have: float) -> int:
    """Return how many sequences at a time would fit with USE; 0 for none."""
    fixed = use.total - use.activations
    each = use.activations / one.batch
    if not each:
        return 0
    return max(0, int((have * (1 - RESERVED) - fixed) // each))


def recompute_all(one: Transformer) -> Transformer:
    """Return the same transformer with all activations recomputed."""
    return replace(one, recompute=True)
