"""What ci/gpu runs: parts of steps, each step a process of its own with a limit of its own.

A step ends with rows: of the suite's checks, or of what ci/gpu_steps.py found. After each step the
report is written anew, and the archive. Standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BITS = {"A": 1, "B": 2, "C": 4, "D": 8, "E": 16, "F": 32}
USAGE = 64  # the exit status of wrong words
ORDER = ("ERROR", "FAIL", "WARN", "PASS", "SKIP")
BAD = ("ERROR", "FAIL")
KEPT_BYTES = 16 << 20  # of the archive: what machines that are lent give back


@dataclass(frozen=True)
class Step:
    """One step of a part: it is ended after `seconds`.

    `suite` are words for `python3 -m hpcstack_smoke`; without them `name` is a function of
    gpu_steps.py. With `nccl` it needs the NCCL that --nccl names. Of a step that `expects` a status
    of each code, any other one is a FAIL.
    """

    name: str
    seconds: int
    suite: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    nccl: bool = False
    expects: dict[str, str] = field(default_factory=dict)


FULL = (
    "node.arch,node.memory,node.hbm,node.matmul,node.copies,io.gds,train.compile,train.attention,"
    "train.profiler,jax.psum,serve.transformers"
)
TRAINING = "ddp,fsdp,parallel,train.checkpointing,train.resume,train.reshard,train.restart"
PAIR = ("--ranks", "2", "--tier", "standard")
TWO_NCCL = (*PAIR, "--tests", "nccl.exact,nccl.transport,nccl.bandwidth,nccl.latency")
ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
PARTS: dict[str, tuple[Step, ...]] = {
    "A": (
        Step("texts", 120),
        Step("quick", 150, ("--tier", "quick", "--ranks", "1")),
        Step("latency_at_rest", 60),
    ),
    "B": (
        Step("burn", 190, ("--tier", "burn", "--ranks", "1", "--minutes", "2")),
        Step(
            "burn_with_a_wrong_bit",
            120,
            ("--tier", "burn", "--ranks", "1", "--minutes", "0.7"),
            {
                "HPCSTACK_SMOKE_PLANT": str(HERE.parent / "tests/plants/bitflip.py"),
                "HPCSTACK_PLANT_RANK": "0",
            },
            expects={"burn.compute": "FAIL"},
        ),
        Step("timing", 60),
        Step("latency_under_load", 60),
        Step("health", 60),
    ),
    "C": (
        Step("full", 450, ("--tier", "full", "--ranks", "1", "--tests", FULL)),
        Step("kernel", 90),
    ),
    "D": (
        Step("build_nccl", 300, nccl=True),
        Step("peers", 90, TWO_NCCL, {**ONE_GPU, "HPCSTACK_SMOKE_SHARE_GPU": "nccl"}, nccl=True),
        Step(
            "shared_memory",
            90,
            TWO_NCCL,
            {**ONE_GPU, "HPCSTACK_SMOKE_SHARE_GPU": "nccl", "NCCL_P2P_DISABLE": "1"},
            nccl=True,
        ),
        Step(
            "sockets",
            90,
            TWO_NCCL,
            {**ONE_GPU, "HPCSTACK_SMOKE_SHARE_GPU": "nccl-nodes", "NCCL_IB_DISABLE": "1"},
            nccl=True,
        ),
        Step("transports", 20, nccl=True),
    ),
    "E": tuple(
        Step(f"hang_{fault}", 120, nccl=True) for fault in ("sleeps", "skips", "stops", "dies")
    ),
    "F": (Step("training", 500, (*PAIR, "--tests", TRAINING), {"HPCSTACK_SMOKE_SHARE_GPU": "1"}),),
}


class Kit:
    """One run of ci/gpu: where it writes, and what it has found so far."""

    def __init__(self, folder: Path, nccl: str) -> None:
        self.folder = folder
        self.nccl = nccl
        self.path = folder / "report.json"
        self.found: dict[str, Any] = {"python": sys.version.split()[0], "parts": {}}
        with contextlib.suppress(OSError, ValueError):
            self.found = json.loads(self.path.read_text())

    def run_part(self, name: str) -> bool:
        """Run part NAME; return whether no step of it failed."""
        steps: dict[str, Any] = {}
        self.found["parts"][name] = steps
        for step in PARTS[name]:
            print(f"* {name} {step.name}", flush=True)
            steps[step.name] = self.run_step(name, step)
            self.write()
            tell(f"{name} {step.name}", steps[step.name])
        return not any(row["status"] in BAD for step in steps.values() for row in step["rows"])

    def run_step(self, part: str, step: Step) -> dict[str, Any]:
        """Run STEP within its limit; return {status, seconds, rows}."""
        output = self.folder / part / step.name
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        if step.nccl and not self.nccl:
            return make_rows("SKIP", step.name, "needs NCCL 2.30 or newer: --nccl DIR")

        argv = [sys.executable, str(HERE / "gpu_steps.py"), step.name, str(output)]
        if step.suite:
            ranks = step.suite[step.suite.index("--ranks") + 1]
            gpus = ["--gpus", "1"] if has_gpu() and ranks == "1" else []
            argv = [sys.executable, "-m", "hpcstack_smoke", *select_tests(step.suite), *gpus]
            argv += ["--output", str(output), "--deadline", str(step.seconds - 10)]
        environment = {**os.environ, **step.environment, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if step.nccl:
            environment |= {"HPCSTACK_NCCL": self.nccl}
            library = find_library(Path(self.nccl))
            if library:
                environment["LD_PRELOAD"] = library
        began = time.monotonic()
        status = run_within(argv, environment, output / "said.log", step.seconds)
        took = round(time.monotonic() - began, 1)
        rows = read_rows(output)
        if status == "late":
            rows.append(row("ERROR", step.name, f"it was ended after its {step.seconds} s"))
        elif not rows:
            rows.append(row("ERROR", step.name, f"it ended with {status} and left no result"))
        return {"status": status, "seconds": took, "rows": hold_to(step.expects, rows)}

    def write(self) -> None:
        """Write the report and the archive, whole or not at all."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.found, indent=1) + "\n")
        part.replace(self.path)
        archive = self.folder / "results.tar.gz"
        with tarfile.open(archive.with_suffix(".part"), "w:gz") as tar:
            for path in sorted(self.folder.rglob("*")):
                small = path.is_file() and path.stat().st_size < KEPT_BYTES // 16
                if small and path.suffix not in (".gz", ".part", ".so", ".o"):
                    tar.add(path, arcname=str(path.relative_to(self.folder)))
        archive.with_suffix(".part").replace(archive)


def has_gpu() -> bool:
    """Whether nvidia-smi lists a GPU."""
    if not shutil.which("nvidia-smi"):
        return False
    done = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False
    )
    return "GPU 0" in done.stdout


def select_tests(words: tuple[str, ...]) -> list[str]:
    """WORDS of the suite, without checks of what this Python does not have."""
    lacking = [
        name for name in ("deepspeed", "jax", "transformers") if not importlib.util.find_spec(name)
    ]
    families = {"deepspeed": "deepspeed", "jax": "jax", "transformers": "serve.transformers"}
    skipped = ",".join(families[name] for name in lacking)
    return [*words, *(["--skip", skipped] if skipped else [])]


def find_library(folder: Path) -> str:
    """The NCCL library in FOLDER, built or unpacked; empty where there is none yet."""
    return next((str(path) for path in sorted(folder.rglob("libnccl.so.2"))), "")


def run_within(argv: list[str], environment: dict[str, str], log: Path, seconds: int) -> int | str:
    """Run ARGV for SECONDS at most, and end all that it started; its status, or `late`."""
    with log.open("w") as said:
        child = subprocess.Popen(
            argv, stdout=said, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            return child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return "late"
        finally:
            for kind in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, kind)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=5)


def row(status: str, code: str, said: str) -> dict[str, Any]:
    return {"status": status, "code": code, "where": "here", "measured": said}


def make_rows(status: str, code: str, said: str) -> dict[str, Any]:
    return {"status": 0, "seconds": 0.0, "rows": [row(status, code, said)]}


def read_rows(output: Path) -> list[dict[str, Any]]:
    """The rows in the documents of OUTPUT; one that is cut, or no document, loses itself alone."""
    out = []
    for path in sorted(output.glob("*.json")):
        try:
            document = json.loads(path.read_text())
            rows = document.get("rows", []) if isinstance(document, dict) else []
            out += [one for one in rows if one["status"] in ORDER and one["code"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            out.append(row("ERROR", path.name, f"{type(error).__name__}: {error}"))
    return out


def hold_to(expects: dict[str, str], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """ROWS, with those of which something else was expected turned round."""
    out = []
    for one in rows:
        want = expects.get(one["code"])
        if want and one["status"] == want:
            said = f"{want}, as it must be: {one.get('measured', '')}"
            one = {**one, "status": "PASS", "measured": said}
        elif want and one["status"] != "SKIP":
            one = {**one, "status": "FAIL", "measured": f"{one['status']}, and not {want}"}
        out.append(one)
    return out


def tell(name: str, step: dict[str, Any]) -> None:
    """Print the worst status of each code of STEP, then how it ended."""
    codes: dict[str, list[dict[str, Any]]] = {}
    for one in step["rows"]:
        codes.setdefault(one["code"], []).append(one)
    for code, rows in codes.items():
        worst = min(rows, key=lambda one: ORDER.index(one["status"]))
        said = worst.get("measured") or worst.get("evidence", "")
        print(f"{worst['status']:<5} {code:<22} {str(said)[:150]}")
    print(f"      {name}: ended with {step['status']} after {step['seconds']} s", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ci/gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", default="", help="new, or of an earlier part")
    parser.add_argument("--part", default=",".join(PARTS), help="A to F, separated by commas")
    parser.add_argument("--nccl", default="", help="NCCL 2.30 or newer: its source, or unpacked")
    parser.add_argument("--list", action="store_true", help="print the steps and exit")
    options = parser.parse_args(arguments)
    if options.list:
        for part, steps in PARTS.items():
            print(f"{part}: {', '.join(f'{one.name} ({one.seconds} s)' for one in steps)}")
        return 0
    parts = [part for part in options.part.upper().split(",") if part]
    if not options.folder or any(part not in PARTS for part in parts):
        parser.print_usage(sys.stderr)
        return USAGE

    folder = Path(options.folder).absolute()
    is_ours = (folder / "report.json").exists() or (folder / "0/answers.jsonl").exists()
    if folder.exists() and not is_ours:
        print(f"ci/gpu: {folder} is not a folder of an earlier part", file=sys.stderr)
        return USAGE
    folder.mkdir(parents=True, exist_ok=True)
    kit = Kit(folder, options.nccl)
    failed = 0
    for part in parts:
        began = time.monotonic()
        good = kit.run_part(part)
        failed += 0 if good else BITS[part]
        print(f"* {part}: {'well' if good else 'FAILED'} after {time.monotonic() - began:.0f} s\n")
    size = (folder / "results.tar.gz").stat().st_size
    print(f"{folder}/results.tar.gz: {size / 2**20:.1f} MiB; exit {failed}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
