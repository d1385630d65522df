"""One rank of the MPI step: the first compiles the program in the image, all run it, the first
judges what it printed.

python3 -m hpcstack_smoke.apps.mpi FOLDER     in every task of `srun --mpi=pmix`
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.agent import tell_row
from hpcstack_smoke.apps.cuda_source import KERNEL
from hpcstack_smoke.apps.mpi_source import SOURCE
from hpcstack_smoke.collectives.nccltests import find_program, read_table
from hpcstack_smoke.request import read_request
from hpcstack_smoke.result import ERROR, PASS, Result, Skip, judge_result, run_check, write_document

if TYPE_CHECKING:
    from hpcstack_smoke.select import Check

SAMPLES = {"quick": 2_000_000, "standard": 20_000_000, "full": 200_000_000}
WAIT_S, RUN_S = 120.0, 600.0


def world(found: Any) -> Result:
    """As many ranks as tasks: with a PMI that does not fit, each would be alone in a world of 1."""
    measured = f"{found['world']} ranks on {found['hosts']} host(s), {found['library']}"
    good = found["world"] == found["tasks"] and found["hosts"] == found["nodes"]
    return judge_result(
        good,
        measured,
        f"{found['tasks']} ranks on {found['nodes']} host(s)",
        "Slurm",
        remedy="the image's MPI and Slurm's PMI do not fit: srun --mpi=list, hpcstack doctor",
    )


def exact(found: Any) -> Result:
    """Point-to-point and eight collectives."""
    return judge_result(
        found["wrong"] == 0, f"{found['wrong']} wrong values", "0", "values as computed"
    )


def device(found: Any) -> Result:
    """A GPU's memory, sent and received as it is."""
    if found.get("device", 2) == 2:
        _gpus_are_missed(found)
        raise Skip("no GPU, or no CUDA driver, on these nodes")
    return judge_result(
        found["device"] == 0,
        "right" if found["device"] == 0 else "another content",
        "each value as sent",
        "CUDA-aware MPI",
        remedy="this MPI is not built for CUDA, or UCX has no cuda transport: ucx_info -d",
    )


def _gpus_are_missed(found: Any) -> None:
    """RuntimeError where GPUs were asked for and a rank found none: cuInit fails on a broken one."""
    if found.get("gpus"):
        raise RuntimeError(
            f"{found['gpus']} GPU(s) a node were asked for, and a rank has none: nvidia-smi on "
            f"each node"
        )


def compiled(found: Any) -> Result:
    """mpicc is in the image and what it makes runs."""
    return Result(
        PASS,
        f"{found['compiler']} in {found['compile_s']:.1f} s",
        "compiled and started in the image",
    )


def cuda(found: Any) -> Result:
    """pi by a kernel that the image's nvcc compiled, on every rank's GPU."""
    if "gpu_thrown" not in found:
        if not found.get("cuda_skip"):
            _gpus_are_missed(found)
        raise Skip(found.get("cuda_skip") or "no GPU, or no CUDA driver, on these nodes")
    if found["gpu_error"] or not found["gpu_thrown"]:
        remedy = "the image's CUDA and the node's driver do not fit: node.driver, hpcstack lint"
        return judge_result(
            False, f"CUDA's error {found['gpu_error']}", "0", "the CUDA runtime", remedy=remedy
        )
    thrown = found["gpu_thrown"]
    off = abs(4 * found["gpu_inside"] / thrown - math.pi)
    limit = 5 * 4 * math.sqrt(math.pi / 4 * (1 - math.pi / 4) / thrown)
    rate = thrown / max(found["gpu_s"], 1e-9) / 1e9
    return judge_result(
        off < limit,
        f"off by {off:.1e}, {rate:.3g} billion points a second",
        f"within {limit:.1e}",
        "pi; five standard deviations",
        figures={"points_G_s": round(rate, 3)},
    )


def pi(found: Any) -> Result:
    """Both rules on 1 to all ranks: the values, and strong and weak scaling; informational where
    ranks share cores.
    """
    runs = found["runs"]
    samples = found["samples"]
    off = max(abs(one["midpoint"] - math.pi) for one in runs)
    # five standard deviations of 4 * (a share of hits)
    limit = 5 * 4 * math.sqrt(math.pi / 4 * (1 - math.pi / 4) / samples)
    dots = max(abs(one["monte_carlo"] - math.pi) for one in runs)
    first, last = runs[0], runs[-1]
    strong = first["strong_s"] / max(last["strong_s"], 1e-9)
    weak = first["weak_s"] / max(last["weak_s"], 1e-9)
    crowded = found["world"] // found["nodes"] > len(os.sched_getaffinity(0)) or found["virtual"]
    note = "; informational (oversubscribed)" if crowded else ""
    measured = f"midpoint off by {off:.1e}, Monte Carlo by {dots:.1e}"
    measured += f"; S({last['ranks']}) = {strong:.2f}, weak E = {weak:.2f}{note}"
    ranks = [one["ranks"] for one in runs]
    series = [
        {
            "name": "pi: strong speed-up",
            "x": ranks,
            "y": [round(first["strong_s"] / max(one["strong_s"], 1e-9), 3) for one in runs],
            "x_unit": "ranks",
            "y_unit": "S(n)",
            "ideal": [float(n) for n in ranks],
        },
        {
            "name": "pi: weak efficiency",
            "x": ranks,
            "y": [round(first["weak_s"] / max(one["weak_s"], 1e-9), 3) for one in runs],
            "x_unit": "ranks",
            "y_unit": "E(n)",
        },
    ]
    return judge_result(
        off < 1e-9 and dots < limit,
        measured,
        f"midpoint within 1e-9, Monte Carlo within {limit:.1e}",
        "pi; five standard deviations",
        figures={"strong_speedup": round(strong, 3), "weak_efficiency": round(weak, 3)},
        series=series,
        informational=bool(crowded),
    )


def nccl(found: Any) -> Result:
    """nccl-tests' all_reduce_perf over all ranks: no wrong value, and its bus bandwidth beside
    torch's.
    """
    if "nccl_tests" not in found:
        raise Skip(found.get("nccl_skip", "no all_reduce_perf in the image"))
    table = read_table(found["nccl_tests"])
    if not table.rows:
        raise RuntimeError(f"all_reduce_perf printed no row: {found['nccl_tests'][-300:]}")
    sizes = sorted(table.rows)
    figures = {f"all_reduce_float32_{size}_busbw_GB_s": table.rows[size][1] for size in sizes}
    figures |= {f"all_reduce_{size}_us": table.rows[size][0] for size in sizes if size <= 65536}
    series = [
        {
            "name": "nccl-tests all_reduce",
            "x": sizes,
            "y": [table.rows[size][1] for size in sizes],
            "x_unit": "bytes",
            "y_unit": "GB/s",
        }
    ]
    measured = (
        f"{table.rows[sizes[-1]][1]:g} GB/s busbw at {sizes[-1]} bytes, {table.wrong} wrong, "
        f"{table.ranks} ranks"
    )
    return judge_result(
        table.wrong == 0 and table.ranks == found["tasks"],
        measured,
        f"0 wrong, {found['tasks']} ranks",
        "nccl-tests -c 1",
        figures=figures,
        series=series,
        remedy="ranks that are alone: the image's nccl-tests were built without MPI=1",
    )


FUNCTIONS = {
    "mpi.world": world,
    "mpi.exact": exact,
    "mpi.device": device,
    "mpi.compile": compiled,
    "mpi.pi": pi,
    "mpi.cuda": cuda,
    "mpi.nccl": nccl,
}


def find_compiler() -> str:
    """The MPI compiler of the image; empty where there is none."""
    return next(
        (
            found
            for name in ("mpicc", "mpicc.openmpi", "mpicc.mpich")
            if (found := shutil.which(name) or "")
        ),
        "",
    )


def build_program(output: str) -> dict[str, Any]:
    """Compile the program into OUTPUT; what is to know of it, or why there is none."""
    found = find_compiler()
    if not found:
        return {"skip": "no mpicc in the image"}
    source, binary = os.path.join(output, "mpi-probe.c"), os.path.join(output, "mpi-probe")
    with open(source, "w") as file:
        file.write(SOURCE)
    began = time.monotonic()
    kernel, why = compiled_kernel(output)
    argv = [found, "-O2", "-o", f"{binary}.part", source, *kernel, "-lm", "-ldl"]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=WAIT_S
    )
    if done.returncode:
        said = " ".join(done.stdout.decode(errors="replace").split())
        return {"error": f"{found} ended with {done.returncode}: {said[:300]}"}
    os.replace(f"{binary}.part", binary)
    return {"compiler": found, "compile_s": time.monotonic() - began, "cuda_skip": why}


def compiled_kernel(output: str) -> tuple[list[str], str]:
    """(what the linker needs of the CUDA kernel, or nothing) and why there is none."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc:
        return [], "no nvcc in the image"
    source, target = os.path.join(output, "mpi-probe.cu"), os.path.join(output, "mpi-probe-cuda.o")
    with open(source, "w") as file:
        file.write(KERNEL)
    # mpicc links it as C: nothing of C++'s library may be needed
    plain = ["-Xcompiler", "-fno-exceptions,-fno-threadsafe-statics"]
    argv = [nvcc, "-O2", *plain, "-c", source, "-o", target]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=WAIT_S
    )
    if done.returncode:
        return (
            [],
            (
                f"nvcc ended with {done.returncode}: "
                f"{' '.join(done.stdout.decode(errors='replace').split())[:300]}"
            ),
        )
    home = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    folders = [one for one in (f"{home}/lib64", f"{home}/lib") if os.path.isdir(one)]
    paths = [word for one in folders for word in (f"-L{one}", f"-Wl,-rpath,{one}")]
    return ["-DHPCSTACK_CUDA", target, *paths, "-lcudart_static", "-lrt", "-lpthread"], ""


def await_build(output: str) -> dict[str, Any]:
    """What the first rank says of the program."""
    path = os.path.join(output, "mpi-built.json")
    until = time.monotonic() + WAIT_S
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.1)
    if not os.path.exists(path):
        return {"error": "the first rank did not say that the program is compiled"}
    with open(path) as file:
        said: dict[str, Any] = json.load(file)
    return said


def make_rows(
    checks: list[Check], built: dict[str, Any], found: dict[str, Any] | None, why: str, named: bool
) -> list[dict[str, Any]]:
    """A row for each of CHECKS: from what the program FOUND, or why it did not."""
    where = f"{socket.gethostname()}:0"
    out = []
    for check in checks:
        if found is not None:
            out.append(run_check(check.code, lambda code=check.code: FUNCTIONS[code](found), where))  # type: ignore[misc]
        else:
            status = "SKIP" if "skip" in built and not named else ERROR
            out.append(
                {
                    "code": check.code,
                    "where": where,
                    "seconds": 0.0,
                    "status": status,
                    "evidence": why or built.get("skip") or built.get("error", ""),
                }
            )
    return out


def main() -> int:
    request = read_request(sys.argv[1])
    checks = request.checks("mpi")
    rank, tasks = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
    if rank == 0:
        write_document(request.output, "mpi-built.json", build_program(request.output))
    built = await_build(request.output)
    found, why = None, ""
    if "compiler" in built:
        device = any(check.code == "mpi.device" for check in checks)
        found, why = start_mpi_program(request.output, request.tier, rank, device=device)
    if (
        any(check.code == "mpi.nccl" for check in checks)
        and "compiler" in built
        and _goes_on(request.output, rank, found)
    ):
        found = (found or {}) | nccl_tests(request.tier)
    if rank == 0:
        if found is not None:
            found |= built | {
                "tasks": tasks,
                "nodes": request.nodes,
                "gpus": request.gpus,
                "samples": SAMPLES[request.tier],
                "virtual": len(os.sched_getaffinity(0)) * request.nodes < tasks,
            }
        made = make_rows(checks, built, found, why, bool(request.tests))
        for row in made:
            tell_row(row)
        write_document(request.output, "mpi-0.json", {"rows": made})
    return 0


def _goes_on(output: str, rank: int, found: dict[str, Any] | None) -> bool:
    """Whether the first rank's program went well: else it starts no second one, and the others
    would wait for it.
    """
    path = os.path.join(output, "mpi-went.json")
    if rank == 0:
        write_document(output, "mpi-went.json", {"well": found is not None})
        return found is not None
    until = time.monotonic() + WAIT_S
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.1)
    try:
        with open(path) as file:
            return bool(json.load(file)["well"])
    except OSError:
        return False


def nccl_tests(tier: str) -> dict[str, Any]:
    """What all_reduce_perf printed here, if this rank is the one that prints; every rank takes
    part.
    """
    path = find_program()
    if not path or not os.path.exists("/proc/driver/nvidia/version"):
        return {
            "nccl_skip": "no all_reduce_perf in the image"
            if not path
            else "no GPU: NCCL does not run here"
        }
    most = {"quick": "256M", "standard": "1G", "full": "8G"}[tier]
    argv = [path, "-b", "8", "-e", most, "-f", "4", "-g", "1", "-c", "1", "-n", "20", "-w", "5"]
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=RUN_S
        )
    except subprocess.TimeoutExpired:
        return {"nccl_tests": f"all_reduce_perf did not end in {RUN_S:.0f} s"}
    return {"nccl_tests": done.stdout.decode(errors="replace")}


def start_mpi_program(
    output: str, tier: str, rank: int, *, device: bool
) -> tuple[dict[str, Any] | None, str]:
    """(what the program printed on the first rank, or nothing) and why it said nothing."""
    env = dict(os.environ)
    for name in ("HPCSTACK_SMOKE_DEVICE", "HPCSTACK_SMOKE_CUDA"):
        env.pop(name, None)
    if os.path.exists("/proc/driver/nvidia/version"):
        env["HPCSTACK_SMOKE_CUDA"] = "1"
    if device and os.path.exists("/proc/driver/nvidia/version"):
        env["HPCSTACK_SMOKE_DEVICE"] = "1"
    argv = [os.path.join(output, "mpi-probe"), str(SAMPLES[tier])]
    try:
        done = subprocess.run(
            argv,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
            timeout=RUN_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"the program did not end in {RUN_S:.0f} s"
    text, said = (
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace").strip()[-300:],
    )
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if rank:
        return {}, ""
    if not lines or (done.returncode and "HPCSTACK_SMOKE_DEVICE" not in env):
        return None, f"the program ended with {done.returncode}: {said}"
    printed: dict[str, Any] = {"device": 1} if done.returncode else {}  # it died of a GPU's memory
    for line in lines:
        printed |= json.loads(line)
    return printed, ""


if __name__ == "__main__":
    sys.exit(main())
