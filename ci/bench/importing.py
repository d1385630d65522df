"""How fast a base becomes a squashfs, beside `enroot import` and `apptainer pull` in the same run.

    ci/bench/import [--rounds N] [--folder DIR] [--image cuda|small|wide] [--json]

Every tool fetches the same image (cuda_image.py: real CUDA libraries, or 300,000 small files) from
the same registry on loopback, with a cold cache, at its own defaults; rounds alternate, the median
counts, the output is synced within the time. Which of the peers is not installed is left out, and
said. Bars: 4 times faster than Enroot, 10 times faster than Apptainer, extra disk under 1.1 times
the output, memory under 500 MB, output at most 1.1 times Apptainer's.
With `--image wide`, see wide_folders.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cuda_image
import wide_folders

NAME = "bench/cuda:1"
EVERY_S = 0.25
HPCSTACK = (sys.executable, "-m", "hpcstack")


@dataclass(frozen=True)
class Run:
    """One import: wall seconds with sync, CPU seconds, peaks of memory and of disk beside the
    output, in bytes.
    """

    tool: str
    seconds: float
    cpu: float
    memory: int
    disk: int
    size: int


@contextlib.contextmanager
def registry(folder: Path, kind: str) -> Iterator[str]:
    """A registry on loopback with the image in it; HOST:PORT."""
    layout = cuda_image.image(folder, kind)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    data = folder / "registry"
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: {address}}}\n"
        f"storage: {{filesystem: {{rootdirectory: {data}}}}}\n"
    )
    with (folder / "registry.log").open("w") as log:
        server = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
        try:
            time.sleep(1.5)
            copy = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", "--format", "v2s2"]
            subprocess.run(
                [*copy, f"oci:{layout}:latest", f"docker://{address}/{NAME}"],
                check=True,
                stdout=log,
            )
            yield address
        finally:
            server.terminate()
            server.wait()


def commands(address: str, work: Path) -> dict[str, tuple[list[str], dict[str, str], Path]]:
    """{tool: (argv, environment, output)} of those that are installed."""
    site = work / "site.yaml"
    site.write_text(
        f"apiVersion: hpcstack/site/v1\nname: bench\nstore: {work}/s\nlock_dir: "
        f"{work}/l\nmodule_root: {work}/m\n"
        f'registries: {{"{address}": {{plain_http: true}}}}\nbuild: {{cachedir: {work}/cache}}\n'
    )
    folders = {
        f"ENROOT_{kind}_PATH": str(work / f"enroot-{kind.lower()}")
        for kind in ("CACHE", "DATA", "RUNTIME", "TEMP")
    }
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    out = {
        "hpcstack import": (
            [*HPCSTACK, "--site", str(site), "import", f"{address}/{NAME}", "-o", f"{work}/h.sqsh"],
            {}, work / "h.sqsh",
        ),
        "enroot import": (
            ["enroot", "import", "--output", f"{work}/e.sqsh", f"docker://{address}#{NAME}"],
            {**folders, "ENROOT_ALLOW_HTTP": "yes"}, work / "e.sqsh",
        ),
        "apptainer pull": (
            ["apptainer", "pull", "--no-https", f"{work}/a.sif", f"docker://{address}/{NAME}"],
            {"APPTAINER_CACHEDIR": f"{work}/cache", "APPTAINER_TMPDIR": str(work)}, work / "a.sif",
        ),
    }  # fmt: skip
    return {tool: how for tool, how in out.items() if shutil.which(how[0][0])}


def warm(data: Path) -> None:
    """The registry's files in memory: a run that follows a long one would else wait for the
    server's disk.
    """
    for path in data.rglob("data"):
        with path.open("rb") as file:
            while file.read(1 << 22):
                pass


def measured(tool: str, address: str, folder: Path) -> Run:
    """One cold import by TOOL in a folder of its own, which goes again."""
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    argv, env, output = commands(address, work)[tool]
    with (folder / f"{tool.split()[0]}.log").open("w") as log:
        warm(folder / "registry")
        os.sync()
        before, began = shutil.disk_usage(work).used, time.monotonic()
        process = subprocess.Popen(
            argv, env={**os.environ, "HOME": str(work), **env}, cwd=work, stdout=log, stderr=log
        )
        peaks = Peaks(process.pid, work, before)
        _, status, usage = os.wait4(process.pid, 0)
        with output.open("rb") as file:
            os.fsync(file.fileno())
        seconds = time.monotonic() - began
        peaks.end()
    if status:
        sys.exit(f"{tool} failed: see {log.name}")
    size = output.stat().st_size
    shutil.rmtree(work, ignore_errors=True)
    return Run(
        tool,
        seconds,
        usage.ru_utime + usage.ru_stime,
        peaks.memory,
        max(0, peaks.disk - size),
        size,
    )


class Peaks:
    """The most memory that a process and its children held, and the most disk that was taken."""

    def __init__(self, pid: int, folder: Path, before: int) -> None:
        self.pid, self.folder, self.before = pid, folder, before
        self.memory = self.disk = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.ended.wait(EVERY_S):
            self.memory = max(self.memory, sum(map(resident, family(self.pid))))
            self.disk = max(self.disk, shutil.disk_usage(self.folder).used - self.before)

    def end(self) -> None:
        self.ended.set()
        self.thread.join()


def family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def resident(pid: int) -> int:
    """Memory of PID that is its own share (PSS): threads and forks do not count twice."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return 0


def bars(medians: dict[str, float], runs: list[Run]) -> list[tuple[str, float, str, bool]]:
    """(what, value, bar, whether it is met)."""
    mine = [run for run in runs if run.tool == "hpcstack import"]
    size = mine[0].size
    disk, memory = max(run.disk for run in mine) / size, max(run.memory for run in mine) / 1e6
    out = [
        ("extra disk, of the output", disk, "< 1.1", disk < 1.1),
        ("memory, MB", memory, "< 500", memory < 500),
    ]
    for tool, wanted in (("enroot import", 4.0), ("apptainer pull", 10.0)):
        if tool in medians:
            ratio = medians[tool] / medians["hpcstack import"]
            out.append((f"times faster than {tool}", ratio, f">= {wanted:.0f}", ratio >= wanted))
    theirs = [run.size for run in runs if run.tool == "apptainer pull"]
    if theirs:
        out.append(("output, of Apptainer's", size / theirs[0], "<= 1.1", size <= 1.1 * theirs[0]))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(os.environ.get("HPCSTACK_BENCH", "build/bench")).resolve(),
    )
    parser.add_argument("--image", default="cuda", choices=["cuda", "small", "wide"])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.image == "wide":
        sys.exit(report_wide(chosen.folder, chosen.rounds, as_json=chosen.json))
    runs: list[Run] = []
    with registry(chosen.folder, chosen.image) as address:
        work = chosen.folder / "work"
        work.mkdir(exist_ok=True)
        tools = list(commands(address, work))
        for _ in range(chosen.rounds):
            for tool in tools:
                runs.append(measured(tool, address, chosen.folder))
                one = runs[-1]
                print(f"{one.tool:16} {one.seconds:6.1f} s", file=sys.stderr, flush=True)
    medians = {
        tool: statistics.median(run.seconds for run in runs if run.tool == tool) for tool in tools
    }
    verdicts = bars(medians, runs)
    document = {"runs": [asdict(run) for run in runs], "medians": medians,
                "bars": [{"what": what, "value": value, "bar": bar, "met": met} for what, value, bar, met in verdicts],
                "cores": os.cpu_count()}  # fmt: skip
    (chosen.folder / f"import-{chosen.image}.json").write_text(json.dumps(document, indent=1))
    if chosen.json:
        print(json.dumps(document, indent=1))
    else:
        print(table(tools, runs, medians, verdicts))
    sys.exit(0 if all(met for *_, met in verdicts) else 1)


def report_wide(folder: Path, rounds: int, *, as_json: bool) -> int:
    """Measure wide folders and print what was found. Return the exit status."""
    medians = wide_folders.measure(folder, rounds)
    verdicts = wide_folders.list_bars(medians)
    if as_json:
        bars = [
            {"what": what, "value": value, "bar": bar, "met": met}
            for what, value, bar, met in verdicts
        ]
        print(json.dumps({"medians": medians, "bars": bars, "cores": os.cpu_count()}, indent=1))
    else:
        lines = ["| what | median s |", "|---|---|"]
        lines += [f"| {what} | {seconds:.1f} |" for what, seconds in medians.items()]
        print("\n".join([*lines, "", *show_verdicts(verdicts)]))
    return 0 if all(met for *_, met in verdicts) else 1


def show_verdicts(verdicts: list[tuple[str, float, str, bool]]) -> list[str]:
    """One line for each bar."""
    return [
        f"{'ok ' if met else 'NOT'} {what}: {value:.2f} ({bar})"
        for what, value, bar, met in verdicts
    ]


def table(
    tools: list[str],
    runs: list[Run],
    medians: dict[str, float],
    verdicts: list[tuple[str, float, str, bool]],
) -> str:
    lines = [
        "| tool | wall, median s | CPU s | memory MB | extra disk GB | output GB |",
        "|---|---|---|---|---|---|",
    ]
    for tool in tools:
        mine = [run for run in runs if run.tool == tool]
        cpu = statistics.median(run.cpu for run in mine)
        peaks = max(run.memory for run in mine) / 1e6, max(run.disk for run in mine) / 1e9
        lines.append(
            f"| {tool} | {medians[tool]:.1f} | {cpu:.0f} | {peaks[0]:.0f} | {peaks[1]:.2f} | "
            f"{mine[0].size / 1e9:.2f} |"
        )
    lines += [
        "",
        *show_verdicts(verdicts),
    ]
    missing = [tool for tool in ("enroot import", "apptainer pull") if tool not in tools]
    return "\n".join([*lines, *(f"not installed, left out: {tool}" for tool in missing)])


if __name__ == "__main__":
    main()
