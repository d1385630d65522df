"""The first ten minutes on a machine with a GPU: what everything else supposes, asked for itself.

    ci/gpu FOLDER --part 0 [--nccl DIR]
    python3 ci/gpu_contact.py FOLDER [--nccl DIR] [--device cpu] [--only NAME,...]

Needs Python's standard library, nvidia-smi, torch, and nothing else of hpcstack's to be right. Only
the burn runs the suite, in a process of its own, and last.

Each question is a process of its own with a limit of its own. What it prints goes straight to
FOLDER/NAME.txt, line by line; then FOLDER/answers.jsonl gets a line {name, status, seconds}, and
FOLDER/contact.tar.gz is written anew. So whatever ends the run, what was seen so far is kept.

It judges nothing: a status says how the process ended, and nothing here says PASS. Without a GPU
each question says SKIP. `--device cpu` tries the questions themselves on a machine without one, in
small, and says so in each file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
WHOLE_S = 580  # all questions together: machines that are lent end a command after 600 s
SKIPPED = 77  # the exit status of a question that has nothing to ask
SECRET = re.compile(
    r"^(\s*(?:Serial Number|GPU UUID|GPU PDI|Board ID|Chassis Serial Number|Fabric GUID|GUID"
    r"|Platform Info.*GUID|MIG UUID)\s*:).*$",
    re.MULTILINE | re.IGNORECASE,
)
UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F-]{8,}")
FIELD = re.compile(r'^"([A-Za-z0-9_.]+)"', re.MULTILINE)  # of --help-query-gpu
SECRET_FIELDS = re.compile(r"serial|uuid|pdi|guid|board_id", re.IGNORECASE)


@dataclass(frozen=True)
class Question:
    """One thing to be found out. `needs_gpu`: without one there is nothing to ask."""

    name: str
    seconds: int
    ask: Callable[[Machine], None]
    needs_gpu: bool = True


@dataclass(frozen=True)
class Machine:
    """Where a question is asked: `device` is cuda, or cpu to try the questions themselves."""

    folder: Path
    device: str
    nccl: str

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"


class Nothing(Exception):
    """Raised where there is nothing to ask; the text says why."""


def say(*words: object) -> None:
    """Print at once: the process may be killed at the next line."""
    print(*words, flush=True)


def hide(text: str) -> str:
    """TEXT of nvidia-smi without what names this very board."""
    return UUID.sub(r"\1-hidden", SECRET.sub(r"\1 hidden", text))


def run(argv: list[str], seconds: float, **environment: str) -> int:
    """Run ARGV; say what it printed, how it ended, and how long it took."""
    say(f"$ {' '.join(argv)}")
    began = time.monotonic()
    child = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **environment},
        start_new_session=True,
    )
    ender = threading.Timer(seconds, _end_group, [child.pid])
    ender.start()
    assert child.stdout
    for line in child.stdout:
        say(hide(line.rstrip("\n")))
    status = child.wait()
    late = not ender.is_alive()
    ender.cancel()
    _end_group(child.pid)
    ended = f"was ended after {seconds:.0f} s" if late else f"status {status}"
    say(f"# {ended}, {time.monotonic() - began:.2f} s")
    return status


def _end_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def smi(*words: str, seconds: float = 60) -> str:
    """What nvidia-smi prints; raise Nothing where it is not here."""
    if not shutil.which("nvidia-smi"):
        raise Nothing("no nvidia-smi here")
    began = time.monotonic()
    done = subprocess.run(
        ["nvidia-smi", *words], capture_output=True, text=True, timeout=seconds, check=False
    )
    say(
        f"$ nvidia-smi {' '.join(words)}  # status {done.returncode}, {time.monotonic() - began:.2f} s"
    )
    return hide(done.stdout + done.stderr)


def load_torch(machine: Machine) -> Any:
    """torch, which sees the device; raise Nothing where there is none."""
    try:
        import torch
    except ImportError:
        raise Nothing("no torch here") from None
    if machine.is_gpu and not torch.cuda.is_available():
        # The reason is what one wants: nvidia-smi may be well all the same (error 802)
        try:
            torch.cuda.init()
        except Exception as error:
            say(f"torch.cuda.init(): {type(error).__name__}: {error}")
        raise Nothing("torch sees no GPU")
    return torch


def wait_for_gpu(torch: Any, machine: Machine) -> None:
    if machine.is_gpu:
        torch.cuda.synchronize()


@contextmanager
def keep_busy(machine: Machine) -> Iterator[None]:
    """The device multiplies matrices meanwhile, in a process of its own."""
    argv = [sys.executable, str(HERE), str(machine.folder), "--device", machine.device]
    child = subprocess.Popen([*argv, "--ask", "multiply_until_killed"], stdout=subprocess.PIPE)
    assert child.stdout
    try:
        child.stdout.readline()  # it has begun
        yield
    finally:
        child.kill()
        child.wait()


def multiply_until_killed(machine: Machine) -> None:
    torch = load_torch(machine)
    size = 8192 if machine.is_gpu else 256
    a = torch.randn(size, size, device=machine.device)
    a @ a
    wait_for_gpu(torch, machine)
    say("begun")
    while True:
        a @ a
        wait_for_gpu(torch, machine)


# -- the questions


def ask_names(machine: Machine) -> None:
    """1. Does the host's name resolve, does torch see the GPU, does torchrun start a rank?"""
    name = socket.gethostname()
    run(["getent", "hosts", name], 20)
    run(["getent", "ahosts", "localhost"], 20)
    with suppress(OSError):
        say(Path("/etc/hosts").read_text())
    torch = load_torch(machine)
    say(
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    )
    if machine.is_gpu:
        for number in range(torch.cuda.device_count()):
            say(hide(str(torch.cuda.get_device_properties(number))))
        say(f"NCCL {torch.cuda.nccl.version()}, architectures {torch.cuda.get_arch_list()}")
    empty = machine.folder / "empty.py"
    empty.write_text(
        "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    run([*torchrun, "--standalone", "--local-addr", "127.0.0.1", str(empty)], 40)
    run([*torchrun, "--standalone", str(empty)], 40)


def ask_latency(machine: Machine) -> None:
    """2. Persistence mode, and how long nvidia-smi takes at rest and under load."""
    say(smi("--query-gpu=name,driver_version,persistence_mode,pstate", "--format=csv"))
    for _ in range(5):
        smi("-L")
    with keep_busy(machine):
        for _ in range(5):
            smi("-L")


def ask_texts(_machine: Machine) -> None:
    """3. nvidia-smi's texts, and all fields of its queries: first in one query, then by tens."""
    say(smi("-q"))
    say(smi("nvlink", "-s"))
    say(smi("topo", "-m"))
    fields = FIELD.findall(smi("--help-query-gpu"))
    asked = [name for name in fields if not SECRET_FIELDS.search(name)]
    say(f"# {len(fields)} fields, {len(asked)} asked for")
    say(smi(f"--query-gpu={','.join(asked)}", "--format=csv"))
    for first in range(0, len(asked), 10):
        ten = asked[first : first + 10]
        answer = smi(f"--query-gpu={','.join(ten)}", "--format=csv,noheader,nounits")
        say(f"{','.join(ten)}\n{answer}")


LINKS = (
    "pcie.link.gen.current,pcie.link.gen.max,pcie.link.gen.gpumax,pcie.link.gen.hostmax,"
    "pcie.link.width.current,pcie.link.width.max"
)


def ask_links(machine: Machine) -> None:
    """4. The PCIe link at rest and while copying; copies to and from the device, in GB/s."""
    torch = load_torch(machine)
    if machine.is_gpu:
        say(smi(f"--query-gpu={LINKS}", "--format=csv"))
    size = 1 << 30 if machine.is_gpu else 1 << 24
    host = torch.empty(size, dtype=torch.uint8, pin_memory=machine.is_gpu)
    device = torch.empty(size, dtype=torch.uint8, device=machine.device)
    for name, source, target in (
        ("host to device", host, device),
        ("device to host", device, host),
    ):
        for turn in range(6):
            began = time.monotonic()
            target.copy_(source, non_blocking=True)
            wait_for_gpu(torch, machine)
            took = time.monotonic() - began
            say(f"{name}, {turn}: {size / took / 1e9:.2f} GB/s")
        if machine.is_gpu:
            until = time.monotonic() + 4
            asked = threading.Thread(
                target=lambda: say(smi(f"--query-gpu={LINKS}", "--format=csv,noheader"))
            )
            asked.start()
            while time.monotonic() < until or asked.is_alive():
                target.copy_(source, non_blocking=True)
                wait_for_gpu(torch, machine)


def ask_rate(machine: Machine) -> None:
    """5. bf16 8192³ for 30 s after a warm-up of 3 s: TFLOP/s, clock and power each second."""
    torch = load_torch(machine)
    size, warm_up, seconds = (8192, 3.0, 30.0) if machine.is_gpu else (512, 0.2, 2.0)
    a = torch.randn(size, size, device=machine.device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=machine.device, dtype=torch.bfloat16)
    began = time.monotonic()
    while time.monotonic() - began < warm_up:
        a @ b
        wait_for_gpu(torch, machine)
    watch = None
    if machine.is_gpu:
        query = (
            "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
        )
        watch = subprocess.Popen(["nvidia-smi", f"--query-gpu={query}", "--format=csv", "-l", "1"])
    began = time.monotonic()
    try:
        while time.monotonic() - began < seconds:
            start, times = time.monotonic(), 0
            while time.monotonic() - start < 1:
                for _ in range(20 if machine.is_gpu else 1):
                    a @ b
                    times += 1
                wait_for_gpu(torch, machine)
            took = time.monotonic() - start
            say(
                f"{time.monotonic() - began:5.1f} s: {2 * size**3 * times / took / 1e12:.1f} TFLOP/s"
            )
    finally:
        if watch:
            watch.terminate()
            watch.wait()


def ask_memory(machine: Machine) -> None:
    """7. The device's memory: copies, and 80 % of it filled and read back."""
    torch = load_torch(machine)
    size = 8 << 30 if machine.is_gpu else 1 << 24
    source = torch.ones(size // 4, dtype=torch.float32, device=machine.device)
    target = torch.empty_like(source)
    for turn in range(10):
        began = time.monotonic()
        target.copy_(source)
        wait_for_gpu(torch, machine)
        say(
            f"copy, {turn}: {2 * size / (time.monotonic() - began) / 1e12:.3f} TB/s, read and written"
        )
    del source, target
    if not machine.is_gpu:
        return
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    say(f"free {free}, total {total}")
    kept: list[Any] = []
    block = 1 << 30
    began = time.monotonic()
    while sum(one.numel() for one in kept) < 0.8 * free:
        kept.append(torch.full((block,), len(kept) % 251, dtype=torch.uint8, device="cuda"))
    wrong = [number for number, one in enumerate(kept) if not bool((one == number % 251).all())]
    say(
        f"{len(kept)} GiB filled and read in {time.monotonic() - began:.1f} s; wrong blocks: {wrong}"
    )


def ask_compile(machine: Machine) -> None:
    """8. torch.compile from cold, with an empty cache; whether there is a C compiler."""
    for name in ("cc", "gcc", "nvcc", "ptxas"):
        say(f"{name}: {shutil.which(name)}")
    torch = load_torch(machine)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(machine.folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(machine.folder / "triton")

    def function(x: Any) -> Any:
        return torch.nn.functional.gelu(x @ x).sum(dim=0)

    x = torch.randn(1024, 1024, device=machine.device)
    compiled = torch.compile(function)
    for turn in range(3):
        began = time.monotonic()
        out = compiled(x)
        wait_for_gpu(torch, machine)
        say(f"call {turn}: {time.monotonic() - began:.3f} s")
    say(f"largest difference: {float((out - function(x)).abs().max()):.2e}")


def ask_profiler(machine: Machine) -> None:
    """9. Kernels in the profiler's trace; its time on the device beside that of events."""
    torch = load_torch(machine)
    from torch.profiler import ProfilerActivity, profile

    size = 4096 if machine.is_gpu else 256
    a = torch.randn(size, size, device=machine.device)
    a @ a
    wait_for_gpu(torch, machine)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if machine.is_gpu else [])]
    with profile(activities=activities) as profiler:
        for _ in range(10):
            a @ a
        wait_for_gpu(torch, machine)
    trace = machine.folder / "trace.json"
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    kernels = [one for one in events if one.get("cat") == "kernel"]
    say(f"{len(events)} events, {len(kernels)} kernels: {sum(one['dur'] for one in kernels)} us")
    if machine.is_gpu:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(10):
            a @ a
        last.record()
        torch.cuda.synchronize()
        say(f"by events: {first.elapsed_time(last) * 1000:.0f} us")


RANKS = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

backend, device, what = sys.argv[1:4]
if device == "cuda":
    torch.cuda.set_device(0)
dist.init_process_group(backend, timeout=timedelta(seconds=30))
rank = dist.get_rank()
print(rank, "joined", flush=True)


def told(name, call):
    began = time.monotonic()
    try:
        said = call()
    except Exception as error:
        said = f"{type(error).__name__}: {str(error)[:300]}"
    print(f"{rank} {name}: {said} ({time.monotonic() - began:.2f} s)", flush=True)


def reduce_large():
    length = (64 << 20) if device == "cuda" else (1 << 20)
    x = torch.ones(length, device=device)
    dist.all_reduce(x)
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(5):
        dist.all_reduce(x)
    if device == "cuda":
        torch.cuda.synchronize()
    rate = 5 * 4 * length / (time.monotonic() - began) / 1e9
    return f"{4 * length >> 20} MiB: busbw {rate:.1f} GB/s, value {float(x[0])} of 64.0"


def exchange():
    x = torch.full((1024,), float(rank), device=device)
    if rank == 0:
        dist.send(x, 1)
        return "sent"
    dist.recv(x, 0)
    return f"received {float(x.sum())} of 0.0"


def shard():
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(64, 64).to(device)
    fully_shard(model)
    loss = model(torch.ones(8, 64, device=device)).sum()
    loss.backward()
    return f"loss {float(loss.detach()):.3f}"


def split():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = torch.nn.Sequential(torch.nn.Linear(64, 64)).to(device)
    parallelize_module(model, init_device_mesh(device, (2,)), {"0": ColwiseParallel()})
    return f"sum {float(model(torch.ones(8, 64, device=device)).detach().sum()):.3f}"


def sleep():
    dist.all_reduce(torch.ones(4, device=device))
    if rank == 1:
        time.sleep(25)
    dist.all_reduce(torch.ones(4, device=device))
    if device == "cuda":
        torch.cuda.synchronize()
    return "both are through"


for name in what.split(","):
    told(name, globals()[name])
os._exit(0)
"""


def run_ranks(
    machine: Machine, backend: str, what: str, seconds: float, **environment: str
) -> subprocess.Popen[bytes]:
    """Start two ranks on the one device, without torchrun; their lines go where ours go."""
    program = machine.folder / "ranks.py"
    program.write_text(RANKS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = " ".join(f"{name}={value}" for name, value in environment.items())
    say(f"$ two ranks by {backend}: {what} {words}")
    rank = f'"{sys.executable}" "{program}" {backend} {machine.device} {what}'
    script = f"for rank in 0 1; do RANK=$rank {rank} & done; wait"
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **environment,
    }
    if machine.nccl:
        library = next((str(path) for path in Path(machine.nccl).rglob("libnccl.so.2")), "")
        if library:
            common["LD_PRELOAD"] = library
    argv = ["timeout", "-k", "2", str(int(seconds)), "bash", "-c", script]
    return subprocess.Popen(argv, env={**os.environ, **common}, stderr=subprocess.STDOUT)


NCCL_ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "lo"}
HOW = {
    "peer access": {},
    "shared memory": {"NCCL_P2P_DISABLE": "1"},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"},
}


def ask_nccl(machine: Machine) -> None:
    """10. Two NCCL ranks on the one GPU (NCCL 2.30), by peer access, shared memory, sockets."""
    load_torch(machine)
    if not machine.is_gpu:
        raise Nothing("NCCL needs GPUs")
    for name, environment in HOW.items():
        say(f"== {name}")
        run_ranks(machine, "nccl", "reduce_large", 40, **NCCL_ONE_GPU, **environment).wait()


def ask_ras(machine: Machine) -> None:
    """11. A rank sleeps: NCCL's RAS and torch's flight recorder, polled until both have counts."""
    load_torch(machine)
    if not machine.is_gpu:
        raise Nothing("NCCL needs GPUs")
    dump = str(machine.folder / "flight-")
    flights = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": dump,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dump,
    }
    child = run_ranks(machine, "nccl", "sleep", 60, **NCCL_ONE_GPU, **flights)
    began = time.monotonic()
    while child.poll() is None:
        time.sleep(2)
        say(f"-- {time.monotonic() - began:.0f} s")
        with suppress(OSError), socket.create_connection(("127.0.0.1", 28028), timeout=3) as ras:
            ras.settimeout(5)
            ras.sendall(b"verbose status\n")
            with suppress(OSError):
                while got := ras.recv(65536):
                    say(got.decode(errors="replace"))
    for path in sorted(machine.folder.glob("flight-*")):
        say(f"{path.name}: {path.stat().st_size} bytes")


def ask_gloo(machine: Machine) -> None:
    """12. What gloo does with the device's tensors: all_reduce, send, fsdp2, tensor parallel."""
    load_torch(machine)
    for what in ("reduce_large", "exchange", "shard", "split"):
        run_ranks(machine, "gloo", what, 40).wait()


def ask_burn(machine: Machine) -> None:
    """6. The suite's burn, 20 s, without and with one wrong bit."""
    plant = {
        "HPCSTACK_SMOKE_PLANT": str(ROOT / "tests/plants/bitflip.py"),
        "HPCSTACK_PLANT_RANK": "0",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    for name, environment in (("burn", {}), ("burn-with-a-wrong-bit", plant)):
        words = ["--tier", "burn", "--ranks", "1", "--minutes", "0.33", "--deadline", "50"]
        gpus = ["--gpus", "1"] if machine.is_gpu else []
        argv = [
            sys.executable,
            "-m",
            "hpcstack_smoke",
            *words,
            *gpus,
            "--output",
            str(machine.folder / name),
        ]
        run(argv, 60, **environment)


QUESTIONS = (
    Question("names", 140, ask_names, needs_gpu=False),
    Question("latency", 60, ask_latency),
    Question("texts", 60, ask_texts),
    Question("links", 40, ask_links),
    Question("rate", 50, ask_rate),
    Question("memory", 40, ask_memory),
    Question("compile", 60, ask_compile),
    Question("profiler", 40, ask_profiler),
    Question("nccl", 90, ask_nccl),
    Question("ras", 70, ask_ras),
    Question("gloo", 100, ask_gloo),
    Question("burn", 130, ask_burn),
)
ASKED = {**{one.name: one.ask for one in QUESTIONS}, "multiply_until_killed": multiply_until_killed}


# -- the run


def ask_all(machine: Machine, only: list[str], seconds: float = WHOLE_S) -> list[dict[str, Any]]:
    """Ask the QUESTIONS, or ONLY some, for SECONDS in all; {name, status, seconds} of each."""
    began = time.monotonic()
    answers = []
    for question in QUESTIONS:
        if only and question.name not in only:
            continue
        left = seconds - (time.monotonic() - began)
        answer = _ask_one(machine, question, left)
        answers.append(answer)
        with (machine.folder / "answers.jsonl").open("a") as file:
            file.write(json.dumps(answer) + "\n")
            file.flush()
            os.fsync(file.fileno())
        _pack(machine.folder)
        say(f"{question.name:10} {answer['status']:10} {answer['seconds']:6.1f} s")
    return answers


def _ask_one(machine: Machine, question: Question, left: float) -> dict[str, Any]:
    began = time.monotonic()
    if left < 10:
        return {"name": question.name, "status": "LEFT OUT", "seconds": 0.0}
    path = machine.folder / f"{question.name}.txt"
    argv = [sys.executable, "-u", str(HERE), str(machine.folder), "--ask", question.name]
    argv += ["--device", machine.device, "--nccl", machine.nccl]
    limit = min(question.seconds, left)
    with path.open("w") as output:
        if not machine.is_gpu:
            output.write("ON A CPU: this tries the question, and says nothing of a GPU\n")
            output.flush()
        child = subprocess.Popen(
            argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = None
        _end_group(child.pid)
        child.wait()
    status = {0: "ended", SKIPPED: "SKIP", None: "late"}.get(code, f"status {code}")
    return {"name": question.name, "status": status, "seconds": round(time.monotonic() - began, 1)}


def _pack(folder: Path) -> None:
    """Write the archive of FOLDER's texts, whole or not at all."""
    part = folder / "contact.part"
    with tarfile.open(part, "w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            if (
                path.is_file()
                and path.suffix in (".txt", ".json", ".jsonl", ".log")
                and path.stat().st_size < 8 << 20
            ):
                tar.add(path, arcname=str(path.relative_to(folder)))
    part.replace(folder / "contact.tar.gz")


def ask_here(machine: Machine, name: str) -> int:
    """Ask the question NAME in this process; its exit status."""
    needs_gpu = any(one.name == name and one.needs_gpu for one in QUESTIONS)
    try:
        if needs_gpu and machine.is_gpu and "GPU 0" not in smi("-L"):
            raise Nothing("nvidia-smi lists no GPU")
        ASKED[name](machine)
    except Nothing as why:
        say(f"SKIP: {why}")
        return SKIPPED
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ci/gpu --part 0", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "folder", help="where the texts go; what is there of an earlier run is kept"
    )
    parser.add_argument(
        "--nccl", default="", help="NCCL 2.30 or newer, unpacked: two ranks share the GPU"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: try the questions"
    )
    parser.add_argument("--only", default="", help=f"of {', '.join(one.name for one in QUESTIONS)}")
    parser.add_argument("--ask", choices=tuple(ASKED), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    folder = Path(options.folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(folder, options.device, options.nccl)
    if options.ask:
        return ask_here(machine, options.ask)

    only = [name for name in options.only.split(",") if name]
    unknown = sorted(set(only) - {one.name for one in QUESTIONS})
    if unknown:
        parser.error(
            f"no question {', '.join(unknown)}: they are {', '.join(one.name for one in QUESTIONS)}"
        )
    ask_all(machine, only)
    size = (folder / "contact.tar.gz").stat().st_size
    say(f"{folder}/contact.tar.gz: {size} bytes. It judges nothing: read the texts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
