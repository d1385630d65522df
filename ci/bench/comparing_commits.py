"""What publish, build and launch cost now, against an earlier commit, in turn in one run.

    ci/bench/since COMMIT [--rounds 11] [--verbs publish,build,launch] [--megabytes 400] [--json]

Both are clones, in the same place, run by this Python and its libraries; what is not committed does
not count. `publish` needs Lmod and no cluster; its image holds so many MEGABYTES that do not
compress. `build` (a stack of the catalogue, from scratch, by the builtin engine) and `launch` (one
task that does nothing, by each runtime that is there) need the testbed. Bar: no verb
takes more than 1.05 times what it took.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
STACK = "pytorch-24.11"
PROGRAMS = ("torchrun", "deepspeed", "python3", "python")
BAR = 1.05
# Stores an image of the first argument's file in a site below the second.
PREPARE = """
import sys
from pathlib import Path
from support.modules import Place
image, top = map(Path, sys.argv[1:])
place = Place(top)
place.artifact(place.stack(), image.read_bytes())
"""


@dataclass(frozen=True)
class Row:
    """Seconds of one verb, before and now: medians, with the least and the most."""

    what: str
    before: list[float]
    now: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.now) / statistics.median(self.before)

    def show(self) -> str:
        cells = [self.what]
        for times in (self.before, self.now):
            spread = f"{min(times):.2f} to {max(times):.2f}"
            cells.append(f"{statistics.median(times):.2f} s ({spread})")
        verdict = "ok" if self.ratio < BAR else "MISSED"
        return " | ".join([*cells, f"{self.ratio:.2f}", verdict])


def measure(what: str, run: Callable[[Path], float], sources: list[Path], rounds: int) -> Row:
    """RUN with each of SOURCES in turn, first one first and then the other; the first is dropped."""
    times: dict[Path, list[float]] = {source: [] for source in sources}
    for turn in range(rounds + 1):
        for source in sources if turn % 2 else reversed(sources):
            seconds = run(source)
            if turn:
                times[source].append(seconds)
        print(f"{what}: {turn} of {rounds}", file=sys.stderr)
    before, now = times.values()
    return Row(what, before, now)


def run_timed(argv: list[str], **variables: str) -> float:
    began = time.perf_counter()
    environment = {**os.environ, **variables}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{argv}: {done.stderr}")
    return time.perf_counter() - began


def measure_publish(top: Path, sources: list[Path], rounds: int, megabytes: int) -> Row:
    tree = top / "tree"
    (tree / "usr/bin").mkdir(parents=True)
    for name in PROGRAMS:
        (tree / "usr/bin" / name).write_text("#!/bin/sh\n")
        (tree / "usr/bin" / name).chmod(0o755)
    with (tree / "data").open("wb") as file:
        for number in range(megabytes):
            file.write(random.Random(number).randbytes(1 << 20))
    image = top / "image.sqsh"
    pack = ["mksquashfs", str(tree), str(image), "-quiet", "-no-progress", "-noD"]
    subprocess.run(pack, check=True)

    for source in sources:
        site = top / f"site-{sources.index(source)}"
        site.mkdir()
        prepare = [sys.executable, "-c", PREPARE, str(image), str(site)]
        run_timed(prepare, PYTHONPATH=f"{source}/src:{source}/tests")
        folders = {key: str(site / name) for key, name in
                   (("store", "store"), ("lock_dir", "locks"), ("module_root", "modules"))}  # fmt: skip
        (site / "site.yaml").write_text(json.dumps(folders))

    def publish(source: Path) -> float:
        site = top / f"site-{sources.index(source)}"
        for folder in (site / "modules", site / "store/releases"):
            shutil.rmtree(folder, ignore_errors=True)
        words = ["--site", str(site / "site.yaml"), "publish", STACK]
        return run_timed([find_hpcstack(), *words], PYTHONPATH=f"{source}/src", HOME=str(top))

    return measure(f"publish, an image of {megabytes} MB", publish, sources, rounds)


def find_hpcstack() -> str:
    return str(Path(sys.executable).with_name("hpcstack"))


def run_on_testbed(source: Path, *words: str) -> float:
    before = [str(REPO / "ci/testbed"), "exec", "env", f"PYTHONPATH={source}/src"]
    return run_timed([*before, "hpcstack", *words])


def measure_build(sources: list[Path], rounds: int) -> Row:
    words = ("build", STACK, "--no-cache", "--engine", "builtin")
    return measure(
        f"build {STACK}, from scratch", lambda one: run_on_testbed(one, *words), sources, rounds
    )


def measure_launch(sources: list[Path], rounds: int) -> list[Row]:
    run_on_testbed(sources[-1], "build", STACK)
    rows = []
    for runtime in ("apptainer", "pyxis", "enroot"):
        words = ("launch", STACK, "-n1", "--runtime", runtime, "--mode", "plain", "--", "true")
        tried = subprocess.run(
            [str(REPO / "ci/testbed"), "exec", "hpcstack", *words], capture_output=True, check=False
        )
        if tried.returncode:
            print(f"launch by {runtime}: it is not there", file=sys.stderr)
            continue
        rows.append(
            measure(
                f"launch, one task, {runtime}",
                lambda one, words=words: run_on_testbed(one, *words),  # type: ignore[misc]
                sources,
                rounds,
            )
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/bench/since")
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--verbs", default="publish,build,launch")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory(prefix="hpcstack-since-") as name:
        top = Path(name)
        top.chmod(0o755)  # the testbed's user reads the clone
        sources: list[Path] = []
        for commit in (options.commit, "HEAD"):
            clone = top / f"clone-{len(sources)}"
            subprocess.run(
                ["git", "clone", "--quiet", "--shared", str(REPO), str(clone)], check=True
            )
            subprocess.run(["git", "-C", str(clone), "checkout", "--quiet", commit], check=True)
            sources.append(clone)
        verbs = options.verbs.split(",")
        if "publish" in verbs:
            rows.append(measure_publish(top, sources, options.rounds, options.megabytes))
        if "build" in verbs:
            rows.append(measure_build(sources, options.rounds))
        if "launch" in verbs:
            rows += measure_launch(sources, options.rounds)

    if options.json:
        print(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=1))
    else:
        print("\n".join(row.show() for row in rows))
    return 0 if all(row.ratio < BAR for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
