"""What is known of CUDA, GPUs and NVIDIA's images, each row of facts/ with its source.

It is the offline answer: where a registry has answered, the image's own config is the truth.

Tested in tests/unit/hardware/test_compatibility.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hpcstack.core.data import read_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

# The variable of an image's config that each column of ngc-pytorch.yaml stands for.
VARIABLES = {
    "cuda": "CUDA_VERSION",
    "cuda_driver_version": "CUDA_DRIVER_VERSION",
    "pytorch": "PYTORCH_VERSION",
    "cudnn": "CUDNN_VERSION",
    "nccl": "NCCL_VERSION",
    "rdma_core": "RDMACORE_VERSION",
    "openucx": "OPENUCX_VERSION",
    "openmpi": "OPENMPI_VERSION",
    "hpcx": "HPCX_VERSION",
    "transformer_engine": "TRANSFORMER_ENGINE_VERSION",
}
# A GPU's kind follows from its model's name: RTX 4000 Ada is a workstation's, RTX 4090 is not.
CONSUMER = re.compile(r"\bGTX\b|\bRTX [2-5]0[0-9x]{2}\b(?! Ada)|\bTitan\b|GeForce", re.IGNORECASE)
WORKSTATION = re.compile(r"\bRTX\b|\bQuadro\b", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """A GPU model. An empty text is unknown.

    CAPABILITY is its compute capability, such as 9.0. CUDA_FIRST and CUDA_LAST are the releases of
    CUDA that know it, FIRST_DRIVER and LAST_DRIVER the branches of the driver. KIND is data-centre,
    workstation, consumer or jetson.
    """

    model: str
    capability: str
    cuda_first: str
    cuda_last: str
    first_driver: str
    last_driver: str
    kind: str
    source: tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """Which cores are near which GPU, for one kind of node, as somebody recorded it there."""

    name: str
    gpu: str
    gpu_cpus: tuple[str, ...]
    source: str


@cache
def read_topologies() -> dict[str, Topology]:
    """Return {name: topology} of facts/topologies.yaml."""
    out = {}
    for row in read_facts("topologies")["topologies"]:
        name, model = row["name"], row["gpus"]["model"]
        out[name] = Topology(name, model, tuple(row["gpu_cpus"]), row["source"])
    return out


def find_source(name: str, key: str) -> str:
    """Return what the source KEY of facts/NAME.yaml stands for."""
    return str(read_facts(name)["sources"].get(key, key))


def image_environment(image: str, platform: str) -> Mapping[str, str]:
    """Return the variables that IMAGE's config is known to hold; empty where nothing is known."""
    known = read_facts("ngc-pytorch")
    repository, _, tag = image.partition("@")[0].rpartition(":")
    row = next((row for row in known["releases"] if row["tag"] == tag), None)
    if repository != known["image"] or row is None:
        return {}

    out = {variable: row[column] for column, variable in VARIABLES.items() if column in row}
    architectures = row.get(f"cuda_arch_list_{platform.rpartition('/')[2]}")
    if architectures:
        out["TORCH_CUDA_ARCH_LIST"] = architectures
    return out


def find_gpu(model: str) -> Gpu | None:
    """Return the GPU that MODEL names, as a site or nvidia-smi writes it; None for none known.

    `H100` and `NVIDIA H100 80GB HBM3` are the same. Of several names in MODEL the longest counts.
    """
    rows = read_facts("gpus")["architectures"]
    found = [(name, row) for row in rows for name in row["gpus"] if _is_named_in(name, model)]
    if not found:
        return None
    name, row = max(found, key=lambda pair: len(pair[0]))
    return Gpu(
        model=name,
        capability=row["cc"],
        cuda_first=_leading_version(row.get("cuda_first", "")),
        cuda_last=_leading_version(row.get("cuda_last", "")),
        first_driver=_find_branch("first_driver", name),
        last_driver=_find_last_driver(row["family"], name),
        kind=_classify(name),
        source=tuple(row["source"]),
    )


def _is_named_in(name: str, model: str) -> bool:
    """Return whether MODEL has the GPU's NAME in it; xx in a name stands for two digits.

    Where slurmd asks NVML itself, Slurm writes NVIDIA's names with _ for each space.
    """
    name = name.partition(" (")[0]  # GB10 (DGX Spark)
    pattern = re.escape(name).replace("xx", r"\d\d").replace(r"\ ", "[ _]")
    return re.search(rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])", model, re.IGNORECASE) is not None


def _leading_version(text: str) -> str:
    """Return the version that TEXT begins with; empty for none."""
    match = re.match(r"\d+(\.\d+)*", text)
    return match[0] if match else ""


def _find_branch(rows: str, name: str) -> str:
    """Return the driver branch in ROWS of facts/gpus.yaml for the GPU NAME; empty for none."""
    for row in read_facts("gpus")[rows]:
        if name in row.get("gpu", "").split("/"):
            return str(row["branch"])
    return ""


def _find_last_driver(family: str, name: str) -> str:
    """Return the last driver branch of a GPU's own row, else that of its family's."""
    own = _find_branch("last_driver", name)
    if own:
        return own
    for row in read_facts("gpus")["last_driver"]:
        if row.get("family") == family:
            return str(row["branch"])
    return ""


def _classify(name: str) -> str:
    """Return the kind of the GPU NAME, by its name."""
    if name.startswith("Jetson"):
        return "jetson"
    if CONSUMER.search(name):
        return "consumer"
    if WORKSTATION.search(name) or "GB10" in name:
        return "workstation"
    return "data-centre"


# What is shown of an image, and the variable that says it.
FACTS = {
    "CUDA": "CUDA_VERSION",
    "CUDA driver": "CUDA_DRIVER_VERSION",
    "cuDNN": "CUDNN_VERSION",
    "NCCL": "NCCL_VERSION",
    "PyTorch": "PYTORCH_VERSION",
    "Open MPI": "OPENMPI_VERSION",
    "UCX": "OPENUCX_VERSION",
    "HPC-X": "HPCX_VERSION",
    "rdma-core": "RDMACORE_VERSION",
    "TensorFlow": "TENSORFLOW_VERSION",
    "JAX": "JAX_VERSION",
    "Transformer Engine": "TRANSFORMER_ENGINE_VERSION",
    "GPU architectures": "TORCH_CUDA_ARCH_LIST",
}


def read_facts_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an image with the variables ENVIRONMENT says that it holds, {fact: value}."""
    return {shown: environment[name] for shown, name in FACTS.items() if name in environment}
