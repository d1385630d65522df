"""What helps to find out why a run failed: reports of torch, DeepSpeed, GPUs and network, and the
environment.

Written below the run's folder by each node's agent after a failure. Nothing that looks like a
secret is kept.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys

from hpcstack_smoke.collectives.nccllog import parse_log
from hpcstack_smoke.hidden import HIDDEN, LOGIN, SECRET

COMMANDS = {
    "collect_env.txt": [sys.executable, "-m", "torch.utils.collect_env"],
    "ds_report.txt": ["ds_report"],
    "nvidia-smi.txt": ["nvidia-smi", "-q"],
    "topology.txt": ["nvidia-smi", "topo", "-m"],
    "nvlink.txt": ["nvidia-smi", "nvlink", "-s"],
    "ibstat.txt": ["ibstat"],
    "addresses.txt": ["ip", "-brief", "address"],
    "limits.txt": ["sh", "-c", "ulimit -a; df -h /dev/shm /tmp"],
    "kernel.txt": ["sh", "-c", "dmesg --ctime 2>/dev/null | tail -n 200"],
}


def clean_environment(environment: dict[str, str]) -> str:
    """NAME=VALUE lines, sorted, without secrets and without logins in URLs."""
    lines = []
    for name, value in sorted(environment.items()):
        shown = HIDDEN if SECRET.search(name) else LOGIN.sub("://***@", value)
        lines.append(f"{name}={shown}".replace("\n", "\\n"))
    return "\n".join(lines) + "\n"


def nccl_summary(output: str, host: str) -> str:
    """What NCCL's logs of this HOST's ranks say, in a few lines; empty where there are none."""
    lines: list[str] = []
    short = glob.escape(host.partition(".")[0])
    for path in sorted(glob.glob(os.path.join(glob.escape(output), f"nccl-*.{short}*.*"))):
        with open(path, errors="replace") as file:
            lines += file.readlines()
    if not lines:
        return ""
    log = parse_log(lines)
    hung = ", ".join(map(str, log.hung())) or "none"
    out = [
        (
            f"NCCL {log.version} for CUDA {log.cuda}, network {log.network}, plugin "
            f"{log.plugin or 'none'}"
        ),
        f"HCAs: {' '.join(log.hcas) or 'none'}",
        f"pairs by transport: {log.kinds()}",
        f"ranks that began to connect and never finished: {hung}",
        *log.errors[:20],
    ]
    warnings = [line.strip() for line in lines if " NCCL WARN " in line]
    return "\n".join([*out, *dict.fromkeys(warnings[:50])]) + "\n"


def write_bundle(output: str, host: str) -> str:
    """The folder of HOST's part of the bundle.

    A tool that is missing, hangs or fails leaves its words, or nothing.
    """
    folder = os.path.join(output, "bundle", host)
    os.makedirs(folder, exist_ok=True)
    texts = {
        "environment.txt": clean_environment(dict(os.environ)),
        "nccl.txt": nccl_summary(output, host),
    }
    for name, argv in COMMANDS.items():
        texts[name] = run_tool(argv)
    for name, text in texts.items():
        if text:
            with open(os.path.join(folder, name), "w", errors="replace") as file:
                file.write(text)
    return folder


def run_tool(argv: list[str]) -> str:
    """What ARGV prints in a minute at most."""
    if not shutil.which(argv[0]):
        return ""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(argv)}: {error}\n"
    return LOGIN.sub("://***@", done.stdout.decode(errors="replace"))
