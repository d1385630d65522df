"""What NVIDIA's PyTorch images have inside beside torch, as far as public sources say, for the
stand-in of each month.

Real in a stand-in: variables, files of settings, dpkg's records, metadata of Python packages. Not
real: libcuda, cudaCheck, and the packages behind that metadata. Sources, where a row names none:
the image configs and histories that facts/ngc-pytorch.yaml names, and NVIDIA's release notes of
25.12, which tell of /etc/pip/constraint.txt.
"""

from __future__ import annotations

from layers import NUMPY, SITE_PACKAGES

# pypa/pip 14250, SHI-Labs/NATTEN 28: images up to 24.x name it, and it is in no DNS since August
# 2026.
DEAD_INDEX = "https://pypi.ngc.nvidia.com"
PATH = "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIBRARIES = ("torch/lib", "torch_tensorrt/lib")
NODE_LIBRARIES = "/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64"

BASHRC = "if [ -r /etc/shinit_v2 ]; then . /etc/shinit_v2; fi\n"
# On a node with a GPU NVIDIA's own puts compat/lib before the driver where cudaCheck says so, and
# keeps a marker.
SHINIT = """\
# Stand-in: does on a node with a GPU what NVIDIA's does.
if [ -e /dev/nvidiactl ] && [ -d "$_CUDA_COMPAT_PATH" ]; then
    if LD_LIBRARY_PATH="$_CUDA_COMPAT_PATH/lib.real:$LD_LIBRARY_PATH" cudaCheck >/dev/null 2>&1; then
        ln -sfn lib.real "$_CUDA_COMPAT_PATH/lib" 2>/dev/null
    else
        rm -f "$_CUDA_COMPAT_PATH/lib" 2>/dev/null
    fi
    : 2>/dev/null >"$_CUDA_COMPAT_PATH/.$CUDA_DRIVER_VERSION.$(uname -n).checked"
fi
"""
CUDA_CHECK = """\
#!/bin/sh
# Stand-in: no GPU, no libcuda. STANDIN_CUDA_CHECK says what it is to answer.
exit "${STANDIN_CUDA_CHECK:-1}"
"""
BANNER = "".join(
    (
        f"STAND-IN: Debian and torch for CPU; not NVIDIA's image (line {n} of 20, as long as "
        f"NVIDIA's)\n"
    )
    for n in range(1, 21)
)
# 26.x keep about ten pins; of which projects is sourced for packaging alone.
PINS_OF_26 = "packaging==23.2\n"
PINS_OF_25 = f"protobuf==4.24.4\nnumpy=={NUMPY}\n"  # and torch
# Built by NVIDIA, without a file behind the metadata: their versions are the stand-in's own.
BUILT = ("torchvision", "apex", "transformer_engine", "flash_attn", "torchao", "pytorch_triton")
VERSION = "0.0.0a0+standin"
RDMA_OF_DEBIAN = 44  # rdma-core's major in Debian 12's archive
UNKNOWN = "99+standin"  # where no source says which version a month has; no archive has a newer one


def month_of(facts: dict[str, object]) -> tuple[int, int]:
    """(24, 11) of a tag 24.11-py3."""
    year, _, rest = str(facts["tag"]).partition(".")
    return int(year), int(rest[:2])


def environment(facts: dict[str, object]) -> dict[str, str]:
    """The variables that public sources say of the month, over those of FACTS."""
    known = facts["environment"]
    assert isinstance(known, dict)
    month = month_of(facts)
    libraries = ":".join(f"/{SITE_PACKAGES}/{folder}" for folder in LIBRARIES)
    out = {
        "PATH": PATH,
        "LD_LIBRARY_PATH": f"{libraries}:{NODE_LIBRARIES}",
        "PIP_DEFAULT_TIMEOUT": "100",
        "OPAL_PREFIX": "/usr/local/mpi" if month >= (26, 7) else "/opt/hpcx/ompi",
        "NVIDIA_BUILD_REF": "",  # variables without a value are in every month
    }
    if month >= (25, 10):
        out["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
    if month >= (26, 7):
        out["NCCL_NET_PLUGIN"] = "spcx"
        out["_CUDA_COMPAT_TIMEOUT"] = "90"
    return {**known, **out}


def constraint(facts: dict[str, object]) -> str | None:
    """/etc/pip/constraint.txt of the month; None before 25.03, which had none."""
    month = month_of(facts)
    if month < (25, 3):
        return None
    if month < (25, 10):
        return f"{PINS_OF_25}torch=={facts['torch_version']}\n"
    return "" if month < (26, 1) else PINS_OF_26


def dpkg_records(facts: dict[str, object]) -> list[dict[str, object]]:
    """What somebody put in by `dpkg -i`: NCCL is held, and the libraries of rdma-core's -dev
    packages are removed.
    """
    known = facts["environment"]
    assert isinstance(known, dict)
    month = month_of(facts)
    cuda = ".".join(str(known.get("CUDA_VERSION", "12.0")).split(".")[:2])
    rdma = str(known.get("RDMACORE_VERSION", UNKNOWN))
    if rdma[:2].isdigit() and int(rdma[:2]) < RDMA_OF_DEBIAN:
        # NVIDIA's goes with an older Ubuntu's archive, and apt would take Debian's newer one
        rdma = UNKNOWN
    # 25.10 deletes .so and .a of the -dev packages, 26.07 the .a alone.
    removed = "libibverbs.a" if month >= (26, 7) else "libibverbs.so"
    return [
        {
            "name": "libnccl2",
            "version": f"{known.get('NCCL_VERSION', UNKNOWN)}-1+cuda{cuda}",
            "hold": True,
        },
        {
            "name": f"libcudnn9-cuda-{cuda.partition('.')[0]}",
            "version": f"{known.get('CUDNN_VERSION', UNKNOWN)}-1",
        },
        {"name": "rdma-core", "version": f"{rdma}-1", "hold": True},
        {
            "name": "libibverbs-dev",
            "version": f"{rdma}-1",
            "files": [f"/usr/lib/x86_64-linux-gnu/{removed}"],
        },
    ]


def metadata(name: str) -> dict[str, dict[str, str]]:
    """{path: file} of the metadata of a Python package that was installed from a file, as NVIDIA's
    own are.
    """
    version = VERSION
    folder = f"{SITE_PACKAGES}/{name}-{version}.dist-info"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n",
        "INSTALLER": "pip\n",
        "direct_url.json": f'{{"url": "file:///opt/pytorch/{name}.whl", "archive_info": {{}}}}\n',
        "RECORD": "",
    }
    return {f"{folder}/{file}": {"text": text} for file, text in texts.items()}


def with_inside(facts: dict[str, object]) -> dict[str, object]:
    """FACTS of a PyTorch image with what its month has inside."""
    known = facts["environment"]
    assert isinstance(known, dict)
    month = month_of(facts)
    toolkit = "cuda-" + ".".join(str(known.get("CUDA_VERSION", "12.0")).split(".")[:2])
    mpi = "opt/hpcx/ompi5" if month >= (26, 7) else "opt/hpcx/ompi"
    files: dict[str, dict[str, str]] = {
        "etc/bash.bashrc": {"text": BASHRC},
        "etc/shinit_v2": {"text": SHINIT},
        "usr/local/bin/cudaCheck": {"text": CUDA_CHECK, "mode": "0755"},
        f"usr/local/{toolkit}/compat/lib.real/libcuda.so.1": {"text": "stand-in: no library\n"},
        "usr/local/cuda": {"link": toolkit},
        "opt/nvidia/entrypoint.d/10-banner.txt": {"text": BANNER},
        f"{mpi}/share/openmpi/stand-in.txt": {"text": "stand-in: no MPI\n"},
        "usr/local/mpi": {"link": f"/{mpi}"},
    }
    if month < (25, 1):
        files["etc/pip.conf"] = {"text": f"[global]\nextra-index-url = {DEAD_INDEX}\n"}
    pins = constraint(facts)
    if pins is not None:
        files["etc/pip/constraint.txt"] = {"text": pins}
    for name in BUILT:
        files |= metadata(name)
    given = facts.get("files", {})
    assert isinstance(given, dict)
    return {
        **facts,
        "environment": environment(facts),
        "files": {**files, **given},
        "dpkg": dpkg_records(facts),
    }
