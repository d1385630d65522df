"""The steps of ci/gpu that are not the suite's own checks.

    python3 ci/gpu_steps.py STEP FOLDER

Each writes FOLDER/rows.json: rows of {status, code, measured}. Without a GPU a step says SKIP.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = {
    "nvidia-smi-q.txt": ["-q"], "nvidia-smi-L.txt": ["-L"], "nvlink-s.txt": ["nvlink", "-s"],
    "nvlink-e.txt": ["nvlink", "-e"], "topo-m.txt": ["topo", "-m"], "help-query-gpu.txt": ["--help-query-gpu"],
    "help-query-remapped-rows.txt": ["--help-query-remapped-rows"],
}  # fmt: skip
SECRET = re.compile(
    r"^(\s*(?:Serial Number|GPU UUID|Board ID|Chassis Serial Number|GUID)\s*:).*$", re.MULTILINE
)
UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F-]{8,}")
# A field of --help-query-gpu: its name in quotes, perhaps with other names after it
FIELD = re.compile(r'^"([a-z0-9_.]+)"', re.MULTILINE)
ASKED = 50  # times that nvidia-smi is timed
HEALTH_S = 20  # how long `site health` waits for nvidia-smi
AGREE = 0.05  # our timing may be off wall time by this share
# Seconds after which torch's watchdog ends a collective, and that the fault may take to be told
WATCHDOG_S, ASK_AFTER_S = 30, 12


class Absent(Exception):
    """Raised where this machine has not what a step needs."""


def smi(arguments: list[str]) -> str:
    """What nvidia-smi prints, without serial numbers; empty where it fails."""
    if not shutil.which("nvidia-smi"):
        raise Absent("no nvidia-smi here")
    done = subprocess.run(
        ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return UUID.sub(r"\1-hidden", SECRET.sub(r"\1 hidden", done.stdout))


def need_torch_gpu() -> Any:
    try:
        import torch
    except ImportError:
        raise Absent("no torch here") from None
    if not torch.cuda.is_available():
        raise Absent("torch sees no GPU")
    return torch


def row(status: str, code: str, said: str, **figures: float) -> dict[str, Any]:
    return {"status": status, "code": code, "where": "here", "measured": said, "figures": figures}


# -- A


def texts(folder: Path) -> list[dict[str, Any]]:
    """nvidia-smi's texts as they are here, each field of its queries alone, and sysfs's links."""
    from hpcstack_smoke.node import nvidia

    if "GPU 0" not in smi(["-L"]):
        raise Absent("nvidia-smi lists no GPU")
    kept = {name: smi(words) for name, words in TEXTS.items()}
    fields = sorted(set(FIELD.findall(kept["help-query-gpu.txt"])))
    values = {}
    for name in fields:
        values[name] = smi([f"--query-gpu={name}", "--format=csv,noheader,nounits"]).strip()
    kept["fields.csv"] = "".join(f"{name}\t{value}\n" for name, value in values.items())
    for name, text in kept.items():
        if text:
            (folder / name).write_text(text)

    # What the suite asks for must be answered, alone and together
    asked = {
        "identity": nvidia.IDENTITY, "firmware": nvidia.FIRMWARE, "ecc": nvidia.ECC, "pcie": nvidia.PCIE,
        "throttle": nvidia.THROTTLE, "load": nvidia.UNDER_LOAD, "recovery": (nvidia.RECOVERY,),
    }  # fmt: skip
    rows = []
    for name, group in asked.items():
        found = nvidia.query_gpus(group)
        lacking = [one for one in group if not any(one in gpu for gpu in found)]
        status = "PASS" if found else "FAIL"
        said = f"{len(found)} GPU(s); without a value: {', '.join(lacking) or 'none'}"
        rows.append(row(status, f"query.{name}", said))
    refused = [name for name, value in values.items() if not value]
    said = f"{len(fields)} fields, refused alone: {', '.join(refused[:20]) or 'none'}"
    rows.append(row("PASS" if fields else "FAIL", "query.fields", said))
    return rows


def latency_at_rest(folder: Path) -> list[dict[str, Any]]:
    return [_time_nvidia_smi(folder)]


def _time_nvidia_smi(folder: Path) -> dict[str, Any]:
    """Time what `site health` asks, ASKED times: it waits HEALTH_S for it."""
    smi(["-L"])
    took = []
    for _ in range(ASKED):
        began = time.monotonic()
        smi(["--query-gpu=index,uuid,pstate,ecc.errors.uncorrected.volatile.total", "--format=csv"])
        took.append(round(time.monotonic() - began, 4))
    (folder / "seconds.txt").write_text("".join(f"{one}\n" for one in took))
    median, most = statistics.median(took), max(took)
    said = f"{ASKED} times: median {median:.2f} s, at most {most:.2f} s"
    status = "PASS" if most < HEALTH_S else "WARN"
    return row(status, "smi.latency", said, median_s=median, most_s=most)


# -- B


def timing(_folder: Path) -> list[dict[str, Any]]:
    """Seconds of one product by our events, by wall time, and by torch's profiler."""
    from hpcstack_smoke.gpu.clock import time_calls

    torch = need_torch_gpu()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
    wall = (time.perf_counter() - began) / 50
    ours = time_calls(lambda: a @ a, 50)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(50):
            a @ a
        torch.cuda.synchronize()
    kernels = [one for one in profile.key_averages() if one.count >= 50]
    names = ("device_time_total", "cuda_time_total")
    busy = sum(next(getattr(one, name) for name in names if hasattr(one, name)) for one in kernels)
    busy = busy / 50 / 1e6
    said = f"events {ours * 1e3:.3f} ms, wall {wall * 1e3:.3f} ms, profiler {busy * 1e3:.3f} ms"
    agree = abs(ours - wall) < AGREE * wall and abs(ours - busy) < AGREE * ours
    return [row("PASS" if agree else "FAIL", "timing.agrees", said, events_s=ours, wall_s=wall)]


def latency_under_load(folder: Path) -> list[dict[str, Any]]:
    torch = need_torch_gpu()
    ended = threading.Event()

    def load() -> None:
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        while not ended.is_set():
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()

    worker = threading.Thread(target=load)
    worker.start()
    try:
        return [_time_nvidia_smi(folder)]
    finally:
        ended.set()
        worker.join()


def health(folder: Path) -> list[dict[str, Any]]:
    """The health check of nodes, made for this machine's GPUs, must be silent here."""
    listed = smi(["-L"]).count("GPU ")
    if not listed:
        raise Absent("nvidia-smi lists no GPU")
    try:
        from hpcstack.render.launchers import render_health
        from hpcstack.site.load import load_site
    except ImportError as error:
        raise Absent(f"hpcstack's own libraries are not here: {error}") from None

    site = folder / "site.yaml"
    name = smi(["--query-gpu=name", "--format=csv,noheader"]).splitlines()[0]
    site.write_text(
        f"name: one\nnode_types:\n  here: {{nodes: '{socket.gethostname()}', "
        f"gpus: {{model: {json.dumps(name.removeprefix('NVIDIA '))}, count: {listed}}}}}\n"
    )
    script = folder / "health.sh"
    script.write_text(render_health(load_site(str(site)).site))
    done = subprocess.run(
        ["sh", str(script), "--dry-run"], capture_output=True, text=True, timeout=50, check=False
    )
    said = (done.stdout + done.stderr).strip()
    return [row("FAIL" if said or done.returncode else "PASS", "site.health", said or "silent")]


# -- C

DRIVER = r"""
#include <stdio.h>
int hpcstack_gpu_pi(long, int, int, long *, long *, double *);
int main(void) {
    long inside = 0, thrown = 0;
    double took = 0;
    int error = hpcstack_gpu_pi(200000000L, 0, 0, &inside, &thrown, &took);
    printf("%d %ld %ld %.6f\\n", error, inside, thrown, took);
    return error ? 1 : 0;
}
"""


def kernel(folder: Path) -> list[dict[str, Any]]:
    """The CUDA kernel of the MPI program: compiled by nvcc, linked by a C compiler, and run."""
    from hpcstack_smoke.apps.mpi import check_mpi_cuda, compile_kernel
    from hpcstack_smoke.result import run_check

    smi(["-L"])
    words, why = compile_kernel(str(folder))
    if not words:
        if why.startswith("no nvcc"):
            raise Absent(why)
        return [row("FAIL", "kernel.compiles", why)]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise Absent("no C compiler here")
    source, program = folder / "driver.c", folder / "driver"
    source.write_text(DRIVER)
    linked = subprocess.run(
        [compiler, str(source), *words, "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    if linked.returncode:
        return [row("FAIL", "kernel.links", linked.stderr.strip()[-300:])]
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    values = done.stdout.split()
    if len(values) != 4:
        return [row("FAIL", "kernel.runs", f"{done.returncode}: {done.stderr.strip()[-300:]}")]
    error, inside, thrown, took = values
    found = {
        "gpu_error": int(error), "gpu_inside": int(inside), "gpu_thrown": int(thrown), "gpu_s": float(took)
    }  # fmt: skip
    return [run_check("mpi.cuda", lambda: check_mpi_cuda(found), "here")]


# -- D


def build_nccl(folder: Path) -> list[dict[str, Any]]:
    """NCCL from its source, for this GPU's architecture alone; nothing where it is unpacked."""
    home = Path(os.environ["HPCSTACK_NCCL"])
    have = next(home.rglob("libnccl.so.2"), None)
    if have is None:
        capability = smi(["--query-gpu=compute_cap", "--format=csv,noheader"]).splitlines()
        if not capability or not (home / "Makefile").exists():
            raise Absent(f"no GPU, or {home} is neither NCCL's source nor has libnccl.so.2")
        number = capability[0].replace(".", "")
        code = f"NVCC_GENCODE=-gencode=arch=compute_{number},code=sm_{number}"
        with (folder / "make.log").open("w") as log:
            made = subprocess.run(
                ["make", "-C", str(home), f"-j{os.cpu_count()}", "src.build", code],
                stdout=log, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
        have = next(home.rglob("libnccl.so.2"), None)
        if made.returncode or have is None:
            return [row("FAIL", "nccl.builds", f"make ended with {made.returncode}: make.log")]
    version = _read_nccl_version(have)
    status = "PASS" if version >= 23000 else "FAIL"
    return [row(status, "nccl.version", f"{version} (23000 is the first with many ranks a GPU)")]


def _read_nccl_version(library: Path) -> int:
    import ctypes

    number = ctypes.c_int(0)
    ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(number))
    return number.value


def transports(folder: Path) -> list[dict[str, Any]]:
    """What NCCL's own log says of the two ranks in each step before this one."""
    from hpcstack_smoke.collectives.nccllog import parse_log

    smi(["-L"])
    rows = []
    for step, wanted in (("peers", "P2P"), ("shared_memory", "SHM"), ("sockets", "NET")):
        kinds: set[str] = set()
        for path in (folder.parent / step).glob("nccl-*"):
            log = parse_log(path.read_text(errors="replace").splitlines())
            kinds |= {kind for found in log.pairs.values() for kind in found}
        right = bool(kinds) and all(kind.startswith(wanted) for kind in kinds)
        said = f"{', '.join(sorted(kinds)) or 'no connection'}, {wanted} is due"
        rows.append(row("PASS" if right else "FAIL", f"transport.{step}", said))
    return rows


# -- E

HANGS = """
import os, signal, sys, time
import torch, torch.distributed as dist
rank = int(sys.argv[1])
if sys.argv[3] == "nodes":
    os.environ["NCCL_HOSTID"] = f"host-{rank}"
torch.cuda.set_device(0)
from datetime import timedelta
dist.init_process_group("nccl", init_method=f"file://{sys.argv[4]}/store", rank=rank, world_size=2,
                        timeout=timedelta(seconds=int(sys.argv[5])))
value = torch.ones(1024, device="cuda")
for step in range(6):
    odd = sys.argv[2] if rank == 1 and step == 3 else ""
    if odd == "sleeps":
        time.sleep(300)
    elif odd == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif odd == "dies":
        os._exit(9)
    if odd != "skips":
        dist.all_reduce(value)
    torch.cuda.synchronize()
dist.barrier()
"""


def hang(folder: Path, fault: str) -> list[dict[str, Any]]:
    """Two NCCL ranks on the GPU, one of which goes wrong: what RAS, flights and the log tell."""
    need_torch_gpu()
    program = folder / "hangs.py"
    program.write_text(HANGS)
    environment = {
        **os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/flight-",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/flight-", "NCCL_DEBUG": "WARN",
    }  # fmt: skip
    ranks = []
    for number in range(2):
        log = (folder / f"rank-{number}.log").open("w")
        words = [sys.executable, str(program), str(number), fault, "nodes", str(folder)]
        words.append(str(WATCHDOG_S))
        ranks.append(subprocess.Popen(words, env=environment, stdout=log, stderr=subprocess.STDOUT))
    rows = []
    try:
        time.sleep(ASK_AFTER_S)
        rows.append(_ask_ras(folder, fault))
        ranks[0].wait(timeout=WATCHDOG_S + 45)
    except subprocess.TimeoutExpired:
        rows.append(row("FAIL", "hang.watchdog", "the watchdog has not ended rank 0"))
    finally:
        for one in ranks:
            one.send_signal(signal.SIGKILL)
            one.wait()
    return [*rows, _judge_flights(folder, fault), _explain(folder)]


def _ask_ras(folder: Path, fault: str) -> dict[str, Any]:
    """NCCL's RAS must name the rank that is behind or gone."""
    from hpcstack.launch.ras import parse_ras

    said = ""
    try:
        with socket.create_connection(("localhost", 28028), timeout=10) as line:
            line.sendall(b"timeout 8\nset format json\nverbose status\n")
            line.settimeout(10)
            while block := line.recv(1 << 16):
                said += block.decode(errors="replace")
    except OSError as error:
        said += f"\n{error}"
    (folder / "ras.txt").write_text(said)
    answer = parse_ras("\n".join(f"hpcstack-ras: {line}" for line in said.splitlines()))
    if answer is None or not answer.whole:
        return row("FAIL", f"ras.{fault}", f"no answer that can be read: {said[-200:]}")
    named = "; ".join((*answer.odd, *answer.notes))
    return row("PASS" if "rank 1" in named else "FAIL", f"ras.{fault}", named or "nobody is named")


def _judge_flights(folder: Path, fault: str) -> dict[str, Any]:
    """The recorders' files must name rank 1 as the root."""
    from hpcstack.core.errors import InputError
    from hpcstack.launch.flights import read_flights
    from hpcstack.launch.wait_graph import diagnose_hang, summarise_diagnosis

    try:
        flights = read_flights(folder, "flight-")
    except InputError as error:
        return row("FAIL", f"flights.{fault}", str(error))
    diagnosis = diagnose_hang(flights)
    said = " | ".join(summarise_diagnosis(flights, diagnosis))
    named = bool(diagnosis.roots) and diagnosis.roots[0].ranks == (1,)
    return row("PASS" if named else "FAIL", f"flights.{fault}", said[:600])


def _explain(folder: Path) -> dict[str, Any]:
    """`explain` must know what rank 0's log ends with."""
    try:
        from hpcstack.diagnose.examine_log import explain_log
    except ImportError as error:
        return row("SKIP", "explain", f"hpcstack's own libraries are not here: {error}")
    found = explain_log((folder / "rank-0.log").read_text(errors="replace"))
    said = "; ".join(one.signature.id for one in found[:3])
    return row("PASS" if found else "FAIL", "explain", said or "nothing is known of rank-0.log")


STEPS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "texts": texts,
    "latency_at_rest": latency_at_rest,
    "timing": timing,
    "latency_under_load": latency_under_load,
    "health": health,
    "kernel": kernel,
    "build_nccl": build_nccl,
    "transports": transports,
    "hang_sleeps": lambda folder: hang(folder, "sleeps"),
    "hang_skips": lambda folder: hang(folder, "skips"),
    "hang_stops": lambda folder: hang(folder, "stops"),
    "hang_dies": lambda folder: hang(folder, "dies"),
}


def main(name: str, folder: Path) -> int:
    try:
        rows = STEPS[name](folder)
    except Absent as reason:
        rows = [row("SKIP", name, str(reason))]
    part = folder / "rows.part"
    part.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    part.replace(folder / "rows.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
