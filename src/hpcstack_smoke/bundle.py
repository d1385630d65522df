"""The bundle: what helps to find out why a run failed.

After a failure each node's agent writes it below the run's folder: reports of torch, DeepSpeed,
GPUs and network, and the environment. Nothing that looks like a secret is kept.
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
    """Return ENVIRONMENT as sorted lines NAME=VALUE, without secrets and logins in URLs."""
    lines = []
    for name, value in sorted(environment.items()):
        shown = HIDDEN if SECRET.search(name) else LOGIN.sub("://***@", value)
        lines.append(f"{name}={shown}".replace("\n", "\\n"))
    return "\n".join(lines) + "\n"


def summarize_nccl_logs(output: str, host: str) -> str:
    """Return a short text of what NCCL's logs of HOST's ranks say; empty where there are none."""
    lines: list[str] = []
    # NCCL's %h is the host's name up to its first dot
    short = glob.escape(host.partition(".")[0])
    for path in sorted(glob.glob(os.path.join(glob.escape(output), f"nccl-*.{short}*.*"))):
        with open(path, errors="replace") as file:
            lines += file.readlines()
    if not lines:
        return ""

    log = parse_log(lines)
    hung = ", ".join(map(str, log.hung())) or "none"
    plugin = log.plugin or "none"
    out = [
        f"NCCL {log.version} for CUDA {log.cuda}, network {log.network}, plugin {plugin}",
        f"HCAs: {' '.join(log.hcas) or 'none'}",
        f"pairs by transport: {log.kinds()}",
        f"ranks that began to connect and never finished: {hung}",
        *log.errors[:20],
    ]
    warnings = [line.strip() for line in lines if " NCCL WARN " in line]
    return "\n".join([*out, *dict.fromkeys(warnings[:50])]) + "\n"


def write_bundle(output: str, host: str) -> str:
    """Write HOST's part of the bundle below OUTPUT. Return its folder.

    A tool that fails or hangs leaves what it printed or why it failed; one that is missing leaves
    no file.
    """
    folder = os.path.join(output, "bundle", host)
    os.makedirs(folder, exist_ok=True)
    texts = {
        "environment.txt": clean_environment(dict(os.environ)),
        "nccl.txt": summarize_nccl_logs(output, host),
    }
    for name, argv in COMMANDS.items():
        texts[name] = run_tool(argv)
    for name, text in texts.items():
        if text:
            with open(os.path.join(folder, name), "w", errors="replace") as file:
                file.write(text)
    return folder


def run_tool(argv: list[str]) -> str:
    """Run ARGV, for at most a minute, and return what it printed, without logins in URLs.

    Empty where the program is missing; the reason where it cannot be run or takes too long.
    """
    if not shutil.which(argv[0]):
        return ""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(argv)}: {error}\n"
    return LOGIN.sub("://***@", done.stdout.decode(errors="replace"))
