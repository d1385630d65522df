"""How fast the first steps are, as ratios against a peer in the same run.

    python3 ci/bench [--json]

Start-up is measured against `python -c "import click"` of the same interpreter, the median of
several alternating runs; lint and render of 1,000 generated stacks against 10, so that the cost per
stack can be seen to stay flat. Bars: --help under 2, show, lint and lock --check under 5 times
`import click`; 1,000 lints under 6 s; render of the whole catalogue under 1.5 s; the cost of a
stack among 1,000 under 1.5 times that among 10.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
RUNS = 15
RECIPE = """\
apiVersion: hpcstack/v1
extends: _shared
name: made
version: "{number}"
summary: Generated stack {number}
base: {{image: "nvcr.io/nvidia/pytorch:24.11-py3"}}
packages:
  apt: [infiniband-diags]
  pip: [deepspeed==0.19.8, transformers==4.57.6]
run:
  - {{name: greet, command: echo hello}}
environment: {{A: "1", PATH: {{prepend: /opt/made/bin}}}}
labels: {{org.example.number: "{number}"}}
module: {{commands: [torchrun, deepspeed]}}
"""
SHARED = 'apiVersion: hpcstack/v1\nenvironment: {SHARED: "1"}\ntests: [node, ddp]\n'
EACH = """\
import sys, time
from datetime import date
from pathlib import Path
sys.path.insert(0, {tests!r})
from hpcstack.lint import warnings
from hpcstack.preview import render_stack_files
from hpcstack.site.load import Site
from hpcstack.recipe.catalog import Catalog
from support.locks import base_lock
site = Site.model_validate({{"store": "/s", "lock_dir": "/l", "module_root": "/m"}})
catalog = Catalog([Path({folder!r})])
warm = Catalog([Path({folder!r})])
first = warm.read(warm.files()[0])[0]
render_stack_files(first.stack, base_lock(first.stack), site, first.stack.base.platforms[0])
began = time.perf_counter()
count = 0
for path in catalog.files():
    for recipe in catalog.read(path):
        if {verb!r} == "render":
            render_stack_files(recipe.stack, base_lock(recipe.stack), site, recipe.stack.base.platforms[0])
        else:
            warnings(recipe, site, None, (), date(2026, 1, 1), needs_lock=True)
        count += 1
print(count, time.perf_counter() - began)
"""


@dataclass(frozen=True)
class Row:
    """One measurement: seconds, what it is compared with, and the bar it must stay under."""

    what: str
    seconds: float
    against: str
    value: float
    bar: float

    @property
    def good(self) -> bool:
        return self.value < self.bar


def timed(argv: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def start_up(folder: Path, env: dict[str, str]) -> list[Row]:
    """The verbs that people and completion call all day, each beside `import click`, alternating."""
    peer = [PYTHON, "-c", "import click"]
    hpcstack = [str(Path(PYTHON).parent / "hpcstack"), "--recipes", str(folder)]
    verbs = {
        "--help": ([*hpcstack[:1], "--help"], 2.0),
        "show of one recipe": ([*hpcstack, "show", "made-1"], 5.0),
        "lint of one recipe": ([*hpcstack, "lint", "made-1"], 5.0),
        "lock --check of one recipe": ([*hpcstack, "lock", "made-1", "--check"], 5.0),
    }
    times: dict[str, list[float]] = {name: [] for name in ("peer", *verbs)}
    for _ in range(RUNS):
        times["peer"].append(timed(peer, env))
        for name, (argv, _bar) in verbs.items():
            times[name].append(timed(argv, env))
    base = statistics.median(times["peer"])
    return [
        Row(name, statistics.median(times[name]), f'{base * 1000:.0f} ms of python -c "import click"',
            statistics.median(times[name]) / base, bar)
        for name, (_argv, bar) in verbs.items()
    ]  # fmt: skip


def generate(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "_shared.yaml").write_text(SHARED)
    for number in range(1, count + 1):
        (folder / f"made-{number}.yaml").write_text(RECIPE.format(number=number))
    return folder


def lock(folder: Path) -> None:
    """A lock beside made-1, so that lock --check has one to look at."""
    sys.path.insert(0, str(REPO / "tests"))
    from hpcstack.recipe.catalog import Catalog
    from support.locks import base_lock

    stack = Catalog([folder]).find("made-1").stack
    (folder / "made-1.lock.json").write_text(base_lock(stack).text())


def many(verb: str, folders: dict[int, Path], env: dict[str, str]) -> Row:
    """The cost of a stack among 1,000 beside that among 10, in a process that is warm: it must stay
    flat.
    """
    each = {
        count: min(seconds(verb, folder, env) for _ in range(5)) / count
        for count, folder in folders.items()
    }
    against = f"{each[10] * 1000:.2f} ms a stack among 10"
    return Row(f"{verb}, a stack among 1,000", each[1000], against, each[1000] / each[10], 1.5)


def lint_all(folder: Path, env: dict[str, str]) -> Row:
    """`hpcstack lint --all` of 1,000 stacks, start-up and all."""
    argv = [str(Path(PYTHON).parent / "hpcstack"), "--recipes", str(folder), "lint", "--all"]
    taken = min(timed(argv, env) for _ in range(3))
    return Row(
        "lint --all of 1,000 stacks and the catalogue", taken, "the clock, in seconds", taken, 6.0
    )


def seconds(verb: str, folder: Path, env: dict[str, str]) -> float:
    script = EACH.format(tests=str(REPO / "tests"), folder=str(folder), verb=verb)
    done = subprocess.run(
        [PYTHON, "-c", script], env=env, check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[1])


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        env = {"HOME": str(top), "PATH": os.environ["PATH"], "HPCSTACK_RECIPES": ""}
        folders = {count: generate(top / str(count), count) for count in (10, 1000)}
        lock(folders[10])
        rows = [*start_up(folders[10], env), lint_all(folders[1000], env)]
        rows += [many("lint", folders, env), many("render", folders, env)]
        catalogue = min(seconds("render", REPO / "recipes", env) for _ in range(3))
        rows.append(
            Row("render of the whole catalogue", catalogue, "the clock, in seconds", catalogue, 1.5)
        )
    if "--json" in sys.argv:
        print(json.dumps([{**asdict(row), "good": row.good} for row in rows], indent=1))
    else:
        print(table(rows))
    return 0 if all(row.good for row in rows) else 1


def table(rows: list[Row]) -> str:
    """Markdown, as docs/performance.md keeps it."""
    lines = ["| what | time | against | value | bar | |", "|---|---|---|---|---|---|"]
    for row in rows:
        verdict = "ok" if row.good else "MISSED"
        value = f"{row.value:.2f} | < {row.bar:g} | {verdict}"
        lines.append(f"| {row.what} | {row.seconds * 1000:.1f} ms | {row.against} | {value} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
