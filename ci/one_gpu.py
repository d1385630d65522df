"""What ci/gpu runs: the suite's parts one after another, and what only this machine can say.

Standard library alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARTS = {
    "one-rank": ("--tier", "full", "--ranks", "1"),
    "two-ranks": ("--tier", "standard", "--ranks", "2"),
    "shared-gpu": (
        "--tier",
        "standard",
        "--ranks",
        "2",
        "--tests",
        "ddp,fsdp,deepspeed,train.checkpointing",
    ),
    "burn": ("--tier", "burn", "--ranks", "1"),
}
TEXTS = {
    "nvidia-smi-q.txt": ["-q"], "nvidia-smi-L.txt": ["-L"], "nvlink-s.txt": ["nvlink", "-s"],
    "nvlink-e.txt": ["nvlink", "-e"], "topo-m.txt": ["topo", "-m"], "help-query-gpu.txt": ["--help-query-gpu"],
}  # fmt: skip
SECRET = re.compile(
    r"^(\s*(?:Serial Number|GPU UUID|Board ID|Chassis Serial Number|GUID)\s*:).*$", re.MULTILINE
)
UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F-]{8,}")
LIMIT = 16 << 20


def smi(arguments: list[str]) -> str:
    """What nvidia-smi prints, without serial numbers; empty where it is not here."""
    if not shutil.which("nvidia-smi"):
        return ""
    done = subprocess.run(
        ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return UUID.sub(r"\1-hidden", SECRET.sub(r"\1 hidden", done.stdout))


def record(folder: Path) -> list[str]:
    """nvidia-smi's texts as they are here, for tests/data: in the forms that the suite reads."""
    from hpcstack_smoke.node import nvidia

    folder.mkdir()
    queries = {"identity": nvidia.IDENTITY, "firmware": nvidia.FIRMWARE, "ecc": nvidia.ECC, "pcie": nvidia.PCIE,
               "throttle": nvidia.THROTTLE, "load": nvidia.UNDER_LOAD}  # fmt: skip
    texts = {name: smi(arguments) for name, arguments in TEXTS.items()}
    texts |= {f"query-{name}.csv": smi([f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
              for name, fields in queries.items()}  # fmt: skip
    for name, text in texts.items():
        if text:
            (folder / name).write_text(text)
    return sorted(name for name, text in texts.items() if text)


def part(
    name: str, words: tuple[str, ...], folder: Path, gpus: int, minutes: str
) -> dict[str, Any]:
    """One run of the suite here; {code: its rows}."""
    output = folder / name
    output.mkdir()
    if name in ("one-rank", "burn") and gpus:
        words = (*words, "--gpus", str(gpus))
    env = {**os.environ, **({"HPCSTACK_SMOKE_SHARE_GPU": "1"} if name == "shared-gpu" else {})}
    argv = [
        sys.executable,
        "-m",
        "hpcstack_smoke",
        *words,
        "--output",
        str(output),
        "--minutes",
        minutes,
    ]
    began = time.monotonic()
    with (output / "said.log").open("w") as log:
        done = subprocess.run(argv, stdout=log, stderr=subprocess.STDOUT, env=env, check=False)
    rows: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(output.glob("*.json")):
        document = json.loads(path.read_text())
        for row in document.get("rows", []):
            rows.setdefault(row["code"], []).append(row)
    return {"status": done.returncode, "seconds": round(time.monotonic() - began, 1), "rows": rows}


def timing() -> dict[str, Any]:
    """Seconds of one product by our events, by wall time, and by torch's profiler: they should
    agree within 5 %.
    """
    try:
        import torch
    except ImportError:
        return {"skip": "no torch"}
    if not torch.cuda.is_available():
        return {"skip": "no GPU"}
    from hpcstack_smoke.gpu.clock import time_calls

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
    wall = (time.perf_counter() - began) / 50
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(50):
            a @ a
        torch.cuda.synchronize()
    kernels = [one for one in profile.key_averages() if one.count >= 50]
    busy = (
        sum(
            getattr(one, "device_time_total", getattr(one, "cuda_time_total", 0.0))
            for one in kernels
        )
        / 50
        / 1e6
    )
    ours = time_calls(lambda: a @ a, 50)
    return {
        "events_s": ours,
        "wall_s": wall,
        "profiler_s": busy,
        "agree": abs(ours - wall) < 0.05 * wall,
    }


def kernel(folder: Path) -> dict[str, Any]:
    """Whether nvcc here compiles the CUDA kernel of the MPI program, and it links."""
    from hpcstack_smoke.apps.mpi import compile_kernel

    made, why = compile_kernel(str(folder))
    return {"skip": why} if not made else {"compiled": True, "needs": made[:2]}


def main() -> int:
    if len(sys.argv) < 2 or Path(sys.argv[1]).exists():
        print("ci/gpu FOLDER [MINUTES]: name a folder that does not exist yet", file=sys.stderr)
        return 2
    folder, minutes = Path(sys.argv[1]).absolute(), sys.argv[2] if len(sys.argv) > 2 else "2"
    folder.mkdir(parents=True)
    gpus = smi(["-L"]).count("GPU ")
    found: dict[str, Any] = {
        "python": sys.version.split()[0],
        "gpus": gpus,
        "recorded": record(folder / "texts"),
    }
    for name, words in PARTS.items():
        print(f"* ci/gpu: {name}", flush=True)
        found[name] = part(name, words, folder, min(gpus, 1), minutes)
    found |= {"timing": timing(), "kernel": kernel(folder)}
    (folder / "report.json").write_text(json.dumps(found, indent=1) + "\n")
    bad = tell(found)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 2**20:.1f} MiB" + ("" if size < LIMIT else ", MORE than 16 MiB"))
    return 1 if bad or size >= LIMIT else 0


def tell(found: dict[str, Any]) -> int:
    """Print every check's worst status of each part; how many failed."""
    bad = 0
    order = ("ERROR", "FAIL", "WARN", "PASS", "SKIP")
    for name in PARTS:
        rows = found[name]["rows"]
        for code, some in sorted(rows.items()):
            row = min(some, key=lambda one: order.index(one["status"]))
            said = row.get("measured") or row.get("evidence", "")
            print(f"{row['status']:<5} {name:<10} {code:<20} {said[:130]}")
            bad += row["status"] in ("FAIL", "ERROR")
        print(f"      {name}: ended with {found[name]['status']} after {found[name]['seconds']} s")
        bad += not rows
    print(
        f"timing: {found['timing']}\nkernel: {found['kernel']}\nrecorded: "
        f"{', '.join(found['recorded']) or 'nothing'}"
    )
    return bad


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    sys.exit(main())
