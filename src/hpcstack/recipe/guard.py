"""The packages that NVIDIA built or chose for its images.

A step that replaces one of them breaks the image. The build's guard, the lock's constraints and
lint all take them from here.

Tested in tests/unit/render/test_render.py.
"""

from __future__ import annotations

import fnmatch
import re

# Patterns for the names of pip's projects, and prefixes of the names of the distribution's packages:
# NVIDIA names those of rpm as those of Debian, but for a number or -devel at the end.
PIP = (
    "torch", "torchvision", "torchaudio", "triton", "pytorch[-_]triton", "torch[-_]tensorrt",
    "transformer[-_]engine[-_a-z0-9]*", "flash[-_]attn", "apex", "numpy", "mpi4py",
    "jax", "jaxlib", "jax[-_]cuda.*", "tensorflow", "tensorflow[-_]cpu", "horovod", "torchao",
    "nvidia[-_].*", "cuda[-_].*", "cupy.*",
)  # fmt: skip
# CUDA's own libraries, by their families: `libcu` would be libcurl, too, and `libnv` libnvme.
OF_CUDA = (
    "cuda-", "libcublas", "libcuda", "libcudss", "libcufft", "libcufile", "libcuobj", "libcupti",
    "libcurand", "libcusolver", "libcusparse", "libcutensor", "libnpp", "libnvcomp", "libnvfatbin",
    "libnvidia", "libnvimgcodec", "libnvinfer", "libnvjitlink", "libnvjpeg", "libnvml", "libnvonnx",
    "libnvparsers", "libnvptxcompiler", "libnvrtc", "libnvshmem", "libnvtoolsext", "libnvvm",
)  # fmt: skip
APT = (
    "libnccl", "libcudnn", *OF_CUDA, "rdma-core", "libibverbs", "librdmacm",
    "libibumad", "ibverbs-providers", "libucx", "ucx", "openmpi", "libopenmpi", "hpcx",
)  # fmt: skip
GUARDED_PIP = re.compile(f"^(?:{'|'.join(PIP)})$", re.IGNORECASE)
GUARDED_APT = re.compile(f"^(?:{'|'.join(APT)})")

# The variable in which an NVIDIA image names the version of a guarded package that it brings.
PIP_VARIABLES = {
    "torch": "PYTORCH_VERSION",
    "transformer-engine": "TRANSFORMER_ENGINE_VERSION",
    "nvidia-nccl": "NCCL_VERSION",
    "nvidia-cudnn": "CUDNN_VERSION",
    "tensorflow": "TENSORFLOW_VERSION",
    "jax": "JAX_VERSION",
}
APT_VARIABLES = {
    "libnccl": "NCCL_VERSION",
    "libcudnn": "CUDNN_VERSION",
    "cuda-": "CUDA_VERSION",
    "rdma-core": "RDMACORE_VERSION",
    "libibverbs": "RDMACORE_VERSION",
    "librdmacm": "RDMACORE_VERSION",
    "libucx": "OPENUCX_VERSION",
    "ucx": "OPENUCX_VERSION",
    "openmpi": "OPENMPI_VERSION",
    "libopenmpi": "OPENMPI_VERSION",
    "hpcx": "HPCX_VERSION",
}

# What extensions are compiled against: another version of it has another ABI.
BUILT_AGAINST = ("torch", "tensorflow", "jax")
# Projects whose source distributions are compiled against torch. flash-attn imports it and declares
# no build requirement. The others declare it, and would be compiled against PyPI's, whose ABI is
# not that of NVIDIA's.
BUILT_AGAINST_TORCH = ("causal-conv1d", "flash-attn", "mamba-ssm")


def is_guarded_package(name: str, allowed: tuple[str, ...] = ()) -> bool:
    """Return whether the package NAME of Debian or of rpm must stay as the base has it.

    That is so where NVIDIA chose it, unless it belongs to a family or package of ALLOWED, which a
    recipe allows to be replaced.
    """
    free: list[str] = []
    for one in allowed:
        if one in FAMILIES:
            free.extend(FAMILIES[one][1])
        else:
            free.append(one)
    return bool(GUARDED_APT.match(name)) and not name.startswith(tuple(free))


def find_variable(name: str, variables: dict[str, str]) -> str:
    """Return the variable of the longest prefix of NAME in VARIABLES; empty where there is none."""
    found = [prefix for prefix in variables if name == prefix or name.startswith(prefix)]
    if not found:
        return ""
    return variables[max(found, key=len)]


# What `packages.allow_replace` may name: {family: (pip names, apt prefixes, names of its files)}.
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "torch": (
        ("torch", "torchvision", "torchaudio", "triton", "pytorch[-_]triton"),
        (),
        ("libtorch*.so*", "libc10*.so*"),
    ),
    "cuda": (
        ("cuda[-_].*",),
        OF_CUDA,
        ("libcudart.so*", "libcublas*.so*", "libcufft.so*", "libcusparse.so*", "libcusolver.so*",
         "libnvrtc.so*", "libcurand.so*"),
    ),
    "nccl": (("nvidia[-_]nccl.*",), ("libnccl",), ("libnccl.so*",)),
    "cudnn": (("nvidia[-_]cudnn.*",), ("libcudnn",), ("libcudnn*.so*",)),
    "transformer-engine": (
        ("transformer[-_]engine[-_a-z0-9]*",),
        (),
        ("libtransformer_engine*.so*",),
    ),
    "mpi": (
        ("mpi4py",),
        ("openmpi", "libopenmpi", "hpcx"),
        ("libmpi.so*", "libopen-pal.so*", "libopen-rte.so*"),
    ),
    "ucx": ((), ("libucx", "ucx"), ("libucp.so*", "libuct*.so*", "libucs*.so*", "libucm*.so*")),
    "rdma-core": (
        (),
        ("rdma-core", "libibverbs", "librdmacm", "libibumad", "ibverbs-providers"),
        ("libibverbs.so*", "librdmacm.so*", "libmlx5*.so*", "libibumad.so*"),
    ),
}  # fmt: skip

# By match, on a file's name: a library of one of the families.
LIBRARIES = re.compile(
    "|".join(fnmatch.translate(glob) for _, _, globs in FAMILIES.values() for glob in globs)
)


def render_guard(allowed: tuple[str, ...] = ()) -> str:
    """Return the patterns as lines of bash, for images/lib.sh.

    What a recipe allows to be replaced, ALLOWED, is not compared.
    """
    pip: list[str] = []
    apt: list[str] = []
    for name in allowed:
        if name in FAMILIES:
            pip.extend(FAMILIES[name][0])
            apt.extend(FAMILIES[name][1])
        else:
            pattern = re.sub(r"([.+])", r"\\\1", name)
            pip.append(pattern)
            apt.append(pattern)

    built = [name for name in BUILT_AGAINST if name not in allowed]
    files: list[str] = []
    for name, (_, _, globs) in FAMILIES.items():
        if name not in allowed:
            files.extend(globs)

    # A lone `-` stands for no pattern at all: nothing has that name.
    built_names = "|".join(built) or "-"
    pip_names = "|".join(pip) or "-"
    apt_names = "|".join(apt) or "-"
    find_files = " -o ".join(f"-name '{glob}'" for glob in files)
    return (
        "# shellcheck shell=bash disable=SC2034\n"
        f"HPCSTACK_GUARDED_PIP='^({'|'.join(PIP)})=='\n"
        f"HPCSTACK_BUILT_AGAINST='^({built_names})=='\n"
        f"HPCSTACK_GUARDED_APT='^({'|'.join(APT)})'\n"
        f"HPCSTACK_GUARDED_FILES=({find_files})\n"
        f"HPCSTACK_ALLOWED='^(pip ({pip_names})==|(apt|rpm) ({apt_names}))'\n"
    )
