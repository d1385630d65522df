"""One rank of the MPI step, which Slurm's PMI starts; and the checks of scope `mpi`.

    python3 -m hpcstack_smoke.apps.mpi FOLDER     in every task of `srun --mpi=pmix`

The first rank compiles a program (mpi_source.py) in the image; all ranks run it. The first rank
reads what it printed, judges it, and writes mpi-0.json into the run's FOLDER. Each check gets what
was FOUND: what the program printed, how it was compiled, and what the run was asked for.
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
from hpcstack_smoke.result import (
    ERROR,
    PASS,
    SKIP,
    Result,
    Skip,
    judge_result,
    run_check,
    write_document,
)

if TYPE_CHECKING:
    from hpcstack_smoke.select import Check

SAMPLES = {"quick": 2_000_000, "standard": 20_000_000, "full": 200_000_000}
WAIT_S = 120.0  # for the compiler, and for what the first rank says
RUN_S = 600.0  # for a program over all ranks


def check_mpi_world(found: Any) -> Result:
    """Judge whether there are as many ranks as tasks, on as many hosts as nodes.

    With a PMI that does not fit the MPI, each rank is alone in a world of 1.
    """
    measured = f"{found['world']} ranks on {found['hosts']} host(s), {found['library']}"
    good = found["world"] == found["tasks"] and found["hosts"] == found["nodes"]
    return judge_result(
        good,
        measured,
        f"{found['tasks']} ranks on {found['nodes']} host(s)",
        "Slurm",
        remedy="the image's MPI and Slurm's PMI do not fit: srun --mpi=list, hpcstack doctor",
    )


def check_mpi_exact(found: Any) -> Result:
    """Judge the values of point-to-point messages and eight collectives."""
    return judge_result(
        found["wrong"] == 0, f"{found['wrong']} wrong values", "0", "values as computed"
    )


def check_mpi_device(found: Any) -> Result:
    """Judge whether MPI, given a GPU's memory to send from and to receive into, did it right."""
    # 0: it did; 1: it did not; 2: it was not tried
    outcome = found.get("device", 2)
    if outcome == 2:
        _gpus_are_missed(found)
        raise Skip("no GPU, or no CUDA driver, on these nodes")
    return judge_result(
        outcome == 0,
        "right" if outcome == 0 else "another content",
        "each value as sent",
        "CUDA-aware MPI",
        remedy="this MPI is not built for CUDA, or UCX has no cuda transport: ucx_info -d",
    )


def _gpus_are_missed(found: Any) -> None:
    """RuntimeError where GPUs were asked for, although a rank found none.

    That happens where a GPU is broken: cuInit fails.
    """
    if found.get("gpus"):
        raise RuntimeError(
            f"{found['gpus']} GPU(s) a node were asked for, and a rank has none: run nvidia-smi "
            f"on each node"
        )


def check_mpi_compile(found: Any) -> Result:
    """Report which compiler of the image made the program, and how fast. It ran, so this passes."""
    took = f"{found['compiler']} in {found['compile_s']:.1f} s"
    return Result(PASS, took, "compiled and started in the image")


def check_mpi_cuda(found: Any) -> Result:
    """Judge pi, computed on every rank's GPU by a kernel that the image's nvcc compiled.

    The kernel throws points at a square; the share within the circle is pi / 4. The limit is five
    standard deviations of such an estimate.
    """
    if "gpu_thrown" not in found:
        why = found.get("cuda_skip")  # empty where there is a kernel, and no GPU
        if not why:
            _gpus_are_missed(found)
        raise Skip(why or "no GPU, or no CUDA driver, on these nodes")
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


def check_mpi_pi(found: Any) -> Result:
    """Judge pi by Monte Carlo and by the midpoint rule, on 1, 2, 4, ... and all ranks.

    The result has the strong and weak scaling of these runs; where ranks share cores, that is
    informational.
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

    measured = f"midpoint off by {off:.1e}, Monte Carlo by {dots:.1e}"
    measured += f"; S({last['ranks']}) = {strong:.2f}, weak E = {weak:.2f}"
    if crowded:
        measured += "; informational (oversubscribed)"

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


def check_mpi_nccl(found: Any) -> Result:
    """Judge nccl-tests' own all_reduce_perf over all ranks: no wrong value, all ranks in one group.

    Its bus bandwidth can be compared with what the check nccl.bandwidth measures by torch.
    """
    if "nccl_tests" not in found:
        raise Skip(found.get("nccl_skip", "no all_reduce_perf in the image"))
    table = read_table(found["nccl_tests"])
    if not table.rows:
        raise RuntimeError(f"all_reduce_perf printed no row: {found['nccl_tests'][-300:]}")

    sizes = sorted(table.rows)
    bandwidths = [table.rows[size][1] for size in sizes]
    figures = {f"all_reduce_float32_{size}_busbw_GB_s": table.rows[size][1] for size in sizes}
    # of small messages the time is what counts
    figures |= {f"all_reduce_{size}_us": table.rows[size][0] for size in sizes if size <= 65536}
    series = [
        {
            "name": "nccl-tests all_reduce",
            "x": sizes,
            "y": bandwidths,
            "x_unit": "bytes",
            "y_unit": "GB/s",
        }
    ]
    measured = f"{bandwidths[-1]:g} GB/s busbw at {sizes[-1]} bytes, {table.wrong} wrong"
    measured += f", {table.ranks} ranks"
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
    "mpi.world": check_mpi_world,
    "mpi.exact": check_mpi_exact,
    "mpi.device": check_mpi_device,
    "mpi.compile": check_mpi_compile,
    "mpi.pi": check_mpi_pi,
    "mpi.cuda": check_mpi_cuda,
    "mpi.nccl": check_mpi_nccl,
}


def find_compiler() -> str:
    """Return the path of the image's MPI compiler; empty where there is none."""
    for name in ("mpicc", "mpicc.openmpi", "mpicc.mpich"):
        path = shutil.which(name)
        if path:
            return path
    return ""


def _compile(argv: list[str]) -> str:
    """Run the compiler ARGV. Return an empty text, or how it failed."""
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=WAIT_S
    )
    if not done.returncode:
        return ""
    said = " ".join(done.stdout.decode(errors="replace").split())
    return f"ended with {done.returncode}: {said[:300]}"


def build_program(output: str) -> dict[str, Any]:
    """Compile the program to OUTPUT/mpi-probe.

    Return {compiler, compile_s, cuda_skip}, where `cuda_skip` says why the program is without the
    CUDA kernel; or {skip} where the image has no compiler; or {error} where it failed.
    """
    compiler = find_compiler()
    if not compiler:
        return {"skip": "no mpicc in the image"}

    source = os.path.join(output, "mpi-probe.c")
    binary = os.path.join(output, "mpi-probe")
    with open(source, "w") as file:
        file.write(SOURCE)

    began = time.monotonic()
    kernel, why = compile_kernel(output)
    failed = _compile([compiler, "-O2", "-o", f"{binary}.part", source, *kernel, "-lm", "-ldl"])
    if failed:
        return {"error": f"{compiler} {failed}"}
    os.replace(f"{binary}.part", binary)
    return {"compiler": compiler, "compile_s": time.monotonic() - began, "cuda_skip": why}


def compile_kernel(output: str) -> tuple[list[str], str]:
    """Compile the CUDA kernel into OUTPUT.

    Return (the words that mpicc needs to link it, ""), or ([], why there is none).
    """
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc:
        return [], "no nvcc in the image"

    source = os.path.join(output, "mpi-probe.cu")
    target = os.path.join(output, "mpi-probe-cuda.o")
    with open(source, "w") as file:
        file.write(KERNEL)
    # mpicc links it as C: nothing of C++'s library may be needed
    plain = ["-Xcompiler", "-fno-exceptions,-fno-threadsafe-statics"]
    failed = _compile([nvcc, "-O2", *plain, "-c", source, "-o", target])
    if failed:
        return [], f"nvcc {failed}"

    home = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    paths = []
    for folder in (f"{home}/lib64", f"{home}/lib"):
        if os.path.isdir(folder):
            paths += [f"-L{folder}", f"-Wl,-rpath,{folder}"]
    return ["-DHPCSTACK_CUDA", target, *paths, "-lcudart_static", "-lrt", "-lpthread"], ""


def await_build(output: str) -> dict[str, Any]:
    """Wait for the first rank and return what `build_program` returned there.

    Where the first rank says nothing in time, return {error}.
    """
    path = os.path.join(output, "mpi-built.json")
    if not _wait_for(path):
        return {"error": "the first rank did not say that the program is compiled"}
    with open(path) as file:
        built: dict[str, Any] = json.load(file)
    return built


def _wait_for(path: str) -> bool:
    """Wait up to WAIT_S seconds for the file PATH. Return whether it is there."""
    until = time.monotonic() + WAIT_S
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.1)
    return os.path.exists(path)


def make_rows(
    checks: list[Check], built: dict[str, Any], found: dict[str, Any] | None, why: str, named: bool
) -> list[dict[str, Any]]:
    """Return a row for each of CHECKS.

    With FOUND each is judged. Without it the program did not run: WHY says why, or BUILT does.
    Then each row is an ERROR; where the image has no compiler, that is a SKIP unless the checks
    were NAMED.
    """
    where = f"{socket.gethostname()}:0"
    if found is not None:
        return [
            run_check(check.code, lambda code=check.code: FUNCTIONS[code](found), where)  # type: ignore[misc]
            for check in checks
        ]

    status = SKIP if "skip" in built and not named else ERROR
    return [
        {
            "code": check.code,
            "where": where,
            "seconds": 0.0,
            "status": status,
            "evidence": why or built.get("skip") or built.get("error", ""),
        }
        for check in checks
    ]


def main() -> int:
    """Take part in the MPI step as the rank that Slurm says. Return 0: results are in the rows."""
    request = read_request(sys.argv[1])
    checks = request.checks("mpi")
    codes = {check.code for check in checks}
    rank = int(os.environ.get("SLURM_PROCID", "0"))
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))

    if rank == 0:
        write_document(request.output, "mpi-built.json", build_program(request.output))
    built = await_build(request.output)

    found = None
    why = ""
    if "compiler" in built:
        device = "mpi.device" in codes
        found, why = start_mpi_program(request.output, request.tier, rank, device=device)
        if "mpi.nccl" in codes and _first_went_well(request.output, rank, found):
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
        rows = make_rows(checks, built, found, why, bool(request.tests))
        for row in rows:
            tell_row(row)
        write_document(request.output, "mpi-0.json", {"rows": rows})
    return 0


def _first_went_well(output: str, rank: int, found: dict[str, Any] | None) -> bool:
    """Whether the program went well on the first rank, which tells the others.

    If it did not, the first rank starts no second program, and the others would wait for it in
    MPI_Init.
    """
    path = os.path.join(output, "mpi-went.json")
    if rank == 0:
        write_document(output, "mpi-went.json", {"well": found is not None})
        return found is not None

    _wait_for(path)
    try:
        with open(path) as file:
            return bool(json.load(file)["well"])
    except OSError:
        return False


def nccl_tests(tier: str) -> dict[str, Any]:
    """Take part in a run of all_reduce_perf over all ranks.

    Return {nccl_tests: what it printed here}, which is empty but on the rank that prints; or
    {nccl_skip: why it was not started}.
    """
    path = find_program()
    if not path:
        return {"nccl_skip": "no all_reduce_perf in the image"}
    if not os.path.exists("/proc/driver/nvidia/version"):
        return {"nccl_skip": "no GPU: NCCL does not run here"}

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
    """Run the compiled program as RANK. DEVICE: let it send a GPU's memory, too.

    Return (what it printed, ""), or (None, why it did not run). The values are those of the first
    rank; on other ranks they are {}.
    """
    env = dict(os.environ)
    for name in ("HPCSTACK_SMOKE_DEVICE", "HPCSTACK_SMOKE_CUDA"):
        env.pop(name, None)
    if os.path.exists("/proc/driver/nvidia/version"):
        env["HPCSTACK_SMOKE_CUDA"] = "1"
        if device:
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
    if rank:
        return {}, ""

    text = done.stdout.decode(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines or (done.returncode and "HPCSTACK_SMOKE_DEVICE" not in env):
        said = done.stderr.decode(errors="replace").strip()[-300:]
        return None, f"the program ended with {done.returncode}: {said}"

    printed: dict[str, Any] = {}
    # An MPI that is not built for CUDA crashes when it is given a GPU's memory. The program does
    # that last, so that all else was printed before.
    if done.returncode:
        printed["device"] = 1
    for line in lines:
        printed |= json.loads(line)
    return printed, ""


if __name__ == "__main__":
    sys.exit(main())
