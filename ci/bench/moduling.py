"""load, avail and spider of trees of 10, 1,000 and 10,000 published modules, against hand-written
minimal ones.

    ci/bench/modules [--rounds 7] [--sizes 10,1000,10000] [--json]

Needs Lmod, and no cluster. A tree has up to 100 releases a name; a release is rendered and
committed as `publish` does, but for the image, which is one small file, and for the round trip. The
hand-written ones set one variable each and lie in one folder a name. Those of one verb are measured
alternating in the same rounds, each in a process of its own. Bar: a load from the largest tree
takes no more than 1.3 times a load of a hand-written file from the smallest; where the module lies
behind a gateway, with the gateway loaded before (both at once are shown too: that loads two
modules).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from hpcstack.core import data
from hpcstack.core.process import Runner
from hpcstack.publish.load_test import LMOD
from hpcstack.publish.modulefile import Release, render_modulefile, render_modulefile_tcl
from hpcstack.publish.spider import rebuild_cache
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Stack
from hpcstack.releases.changes import publish_entry
from hpcstack.releases.ledger import Dates, Entry, Event
from hpcstack.releases.tree import Tree, TreeChange

BAR, PER_NAME = 1.3, 100


def tree_of(top: Path, count: int) -> Tree:
    """COUNT releases below TOP, committed as `publish` does."""
    tree = Tree(top / "modules")
    image = top / "image.sqsh"
    image.write_bytes(b"x")
    stack = Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack
    for number in range(-(-count // PER_NAME)):
        name = f"stack{number:03d}"
        with tree.hold(name):
            ledger, files = tree.ledger(name), {}
            homes = {
                suffix: home.relative_to(tree.root) for suffix, home in tree.homes(name).items()
            }
            for version in range(min(PER_NAME, count - number * PER_NAME)):
                one = release(stack, name, f"{version}.0", image, top)
                entry = Entry(
                    one.version,
                    f"{version}.0",
                    "production",
                    "key",
                    "0" * 64,
                    "2026-01-01",
                    "bench",
                )
                ledger = publish_entry(
                    ledger, entry, Dates(), Event("2026-01-01", "bench", "publish", one.version)
                )
                files[f"{homes['.lua']}/{name}/{one.version}.lua"] = render_modulefile(one)
                files[f"{homes['']}/{name}/{one.version}"] = render_modulefile_tcl(one)
            tree.commit(TreeChange(ledger, files, "publish"))
    rebuild_cache(tree, Runner())
    return tree


def release(stack: Stack, name: str, version: str, image: Path, top: Path) -> Release:
    named = stack.model_copy(update={"name": name, "version": version})
    plain = Release(
        stack=named,
        number=1,
        image=str(image),
        sha256="0" * 64,
        folder="/opt/x",
        base="nvcr.io/x:1",
    )
    return replace(
        plain, channel="production", dates=str(top / "none"), holds=(("CUDA", "12.6.3.001"), ("NCCL", "2.23.4")),
        pip=(("torch", "2.6.0"), ("deepspeed", "0.16.2"), ("numpy", "1.26.4")),
        environment={"CUDA_VERSION": "12.6.3.001"},
    )  # fmt: skip


def by_hand(top: Path, count: int) -> Path:
    """COUNT minimal modulefiles, all in one tree."""
    for number in range(count):
        path = top / f"hand/stack{number // PER_NAME:03d}/{number % PER_NAME}.0.lua"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('setenv("X", "1")\n')
    return top / "hand"


def timed(lmod: str, folder: str, home: Path, words: str, rc: str = "") -> float:
    """Seconds of one `module WORDS` with FOLDER as MODULEPATH."""
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "MODULEPATH": str(folder),
        "LMOD_PAGER": "none",
        "LMOD_SHORT_TIME": "86400",
    }  # no cache of the user's own between the cases
    env |= {"LMOD_RC": rc} if rc else {}
    began = time.perf_counter()
    done = subprocess.run(
        [lmod, "bash", *words.split()], env=env, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if done.returncode or "false" in done.stdout.splitlines():
        sys.exit(f"module {words}: {done.stderr[-500:]}")
    return took


def cases(top: Path, sizes: list[int]) -> dict[str, tuple[str, str, str]]:
    """{case: (MODULEPATH, words, lmodrc)}."""
    out: dict[str, tuple[str, str, str]] = {}
    for size in sizes:
        place = top / str(size)
        place.mkdir()
        tree, hand = tree_of(place, size), by_hand(place, size)
        rc = str(tree.root / "spider/lmodrc.lua")
        last = f"stack{(size - 1) // PER_NAME:03d}"
        out[f"{size} hand load"] = (str(hand), f"load {last}/5.0", "")
        out[f"{size} ours load"] = (str(tree.core), "load stack000/5.0", "")
        how = tree.how(last, "5.0").removeprefix("module ")
        if tree.behind(last):
            out[f"{size} ours load behind a gateway"] = (
                f"{tree.home(last)}:{tree.core}",
                f"load {last}/5.0",
                "",
            )
            out[f"{size} ours load with its gateway"] = (str(tree.core), how, "")
        for verb in ("avail", f"spider {last}"):
            name = verb.split()[0]
            out[f"{size} hand {name}"] = (str(hand), verb, "")
            out[f"{size} ours {name}"] = (str(tree.core), verb, "")
            out[f"{size} ours {name} cached"] = (str(tree.core), verb, rc)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", default="10,1000,10000")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [int(one) for one in options.sizes.split(",")]
    lmod = next((path for path in LMOD if Path(path).exists()), "") or sys.exit(
        "Lmod is not on this machine"
    )
    with tempfile.TemporaryDirectory(prefix="hpcstack-bench-") as folder:
        os.chmod(folder, 0o755)
        home = Path(folder) / "home"
        home.mkdir()
        chosen = cases(Path(folder), sizes)
        times: dict[str, list[float]] = {name: [] for name in chosen}
        for verb in (
            "load",
            "avail",
            "spider",
        ):  # like with like: what reads 10,000 files is not between two loads
            mine = {name: case for name, case in chosen.items() if case[1].startswith(verb)}
            for number in range(options.rounds + 1):
                for name, (path, words, rc) in mine.items():
                    took = timed(lmod, path, home, words, rc)
                    if number:  # the first round warms the files
                        times[name].append(took)
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = medians[f"{sizes[0]} hand load"]
    judged = (f"{sizes[-1]} ours load", f"{sizes[-1]} ours load behind a gateway")
    loads = {name: medians[name] / base for name in medians if name in judged}
    worst = max(loads.values())
    if options.json:
        print(json.dumps({"seconds": medians, "ratio": worst, "bar": BAR}, indent=1))
    else:
        for name, value in medians.items():
            print(
                f"{name:32} {value * 1000:8.1f} ms  {value / base:6.2f} x the smallest "
                f"hand-written load"
            )
        print(f"a load of {sizes[-1]:,} published modules: {worst:.2f} times that (bar {BAR})")
    sys.exit(0 if worst <= BAR else 1)


if __name__ == "__main__":
    main()
