"""The suite over many simulated nodes: what is opened, moved and taken, at 64, 256 and 1,024 nodes
of eight ranks.

    ci/bench/scale [NODES...]

Simulated are the nodes; real are the store and its connections (one process plays a node's agent
for its eight tasks), the files that ranks leave, in the number and form of a standard run, the
reading and judging of them, the page, and the plan of a sweep. Growth is from each size to the
next; n log n is what it may be at most.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpcstack.report import Report
from hpcstack.report.html import render_html
from hpcstack.suite.bisect import Bisection, Measured
from hpcstack.suite.judge import judge_report
from hpcstack.suite.outcomes import SuiteRun, make_outcomes
from hpcstack.suite.run import collect_run
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import write_document
from hpcstack_smoke.select import select_checks
from hpcstack_smoke.store import Client, Store

RANKS, TOKEN, THREADS = 8, "0123456789abcdef", 64
Row = dict[str, float]


OPENED = [0]


def count_opens(event: str, _: tuple[Any, ...]) -> None:
    """Every open of a file by this process, as Python's audit events tell."""
    OPENED[0] += event == "open"


def meeting(nodes: int) -> Row:
    """The tasks of tasks.exchange and io.shared meet: each asks for its neighbour's place, all wait
    for all.
    """
    store = Store(TOKEN)
    store.start()
    leaders = [Client("127.0.0.1", store.port, TOKEN) for _ in range(nodes)]
    world = nodes * RANKS

    def work(share: int) -> None:
        mine = range(share, nodes, THREADS)
        for node in mine:
            for rank in range(node * RANKS, (node + 1) * RANKS):
                leaders[node].put("place", rank, ["10.0.0.1", 40000, f"node{node}"])
        for node in mine:
            for rank in range(node * RANKS, (node + 1) * RANKS):
                leaders[node].get("place", (rank + 1) % world, 300)
            leaders[node].wait("place", world, 300)

    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    took = time.perf_counter() - began
    for one in leaders:
        one.close()
    return {"connections": store.opened, "bytes": store.bytes, "seconds": took}


def rank_files(folder: Path, nodes: int) -> Row:
    """What agents and ranks leave: every check of a standard run, by every rank."""
    began, before = time.perf_counter(), OPENED[0]
    for node in range(nodes):
        rows = [row(check.code, f"n{node}") for check in select_checks("", "node", "standard")]
        inventory = {
            "gpu": "NVIDIA H100 80GB HBM3",
            "gpus": 8,
            "ports": 8,
            "alike": {"ports": "a,b"},
        }
        write_document(
            str(folder),
            f"node-n{node}.json",
            {"host": f"n{node}", "inventory": inventory, "rows": rows},
        )
        for rank in range(node * RANKS, (node + 1) * RANKS):
            rows = [
                row(check.code, f"n{node}:{rank}")
                for check in select_checks("", "ranks", "standard")
            ]
            document = {
                "rank": rank,
                "host": f"n{node}",
                "rows": rows,
                "planted": "",
                "backend": "nccl",
            }
            write_document(str(folder), f"rank-{rank}-1.json", document)
    moved = sum(path.stat().st_size for path in folder.iterdir())
    return {"opens": OPENED[0] - before, "bytes": moved, "seconds": time.perf_counter() - began}


def row(code: str, where: str) -> dict[str, Any]:
    figures = {"bf16_TFLOP_s": 744.0} if code == "node.matmul" else {}
    return {"code": code, "where": where, "seconds": 1.0, "status": "PASS", "measured": "as it should be, 12.3 GB/s",
            "expected": ">= 12 GB/s", "source": "the site", "evidence": "", "remedy": "", "figures": figures,
            "series": [], "informational": False}  # fmt: skip


def judging(folder: Path, nodes: int) -> Row:
    """report.json of what lies in FOLDER."""
    began, opened = time.perf_counter(), OPENED[0]
    before = collect_run(folder)
    opened = OPENED[0] - opened
    size = SuiteRun(Request("", tier="standard", nodes=nodes, ranks=RANKS))
    report = Report(
        stack="s-1", image="/i", image_sha256="0" * 64, suite="0", runtime="pyxis", tier="standard", backend="nccl",
        nodes=tuple(sorted(before.hosts)), world_size=size.world, seconds=1.0, started="2026-01-01T00:00:00+00:00",
        inventory=before.inventory, outcomes=tuple(make_outcomes(size, before, "")),
    )  # fmt: skip
    report = judge_report(report, [], {})
    text = report.model_dump_json()
    took = time.perf_counter() - began
    began = time.perf_counter()
    drawing = render_html(report)
    drawn = time.perf_counter() - began
    return {
        "opens": opened,
        "bytes": len(text),
        "seconds": took,
        "page_bytes": len(drawing),
        "page_s": drawn,
    }


def sweeping(nodes: int) -> Row:
    """Rounds and jobs of a bisection with three bad nodes."""
    bad, state, jobs = (
        {"n3", "n4", f"n{nodes - 1}"},
        Bisection(tuple(f"n{n}" for n in range(nodes))),
        0,
    )
    began = time.perf_counter()
    while groups := state.next_groups():
        jobs += len(groups)
        state.learn({group: Measured(12.0 if bad & set(group) else 40.0) for group in groups})
    assert set(state.odd) == bad
    return {"rounds": state.rounds, "jobs": jobs, "seconds": time.perf_counter() - began}


def measured(nodes: int) -> dict[str, Row]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        return {"tasks meet": meeting(nodes), "rank files": rank_files(place, nodes), "judging": judging(place, nodes),
                "sweep": sweeping(nodes)}  # fmt: skip


def worse_than(before: int, after: int) -> float:
    """By how much n log n grows from BEFORE to AFTER nodes."""
    most: Callable[[int], float] = lambda nodes: nodes * RANKS * math.log2(nodes * RANKS)  # noqa: E731
    return most(after) / most(before)


def main() -> int:
    sizes = [int(word) for word in sys.argv[1:]] or [64, 256, 1024]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sys.addaudithook(count_opens)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3 * max(sizes) + 500), hard))
    last: tuple[int, dict[str, Row]] | None = None
    good = True
    for nodes in sizes:
        found = measured(nodes)
        for what, figures in found.items():
            shown = ", ".join(f"{name} {value:,.2f}" if name.endswith("s") and value < 1000 and "." in f"{value}"
                              else f"{name} {value:,.0f}" for name, value in figures.items())  # fmt: skip
            print(f"{nodes:>5} nodes of {RANKS}: {what:<11} {shown}")
            for name, value in figures.items() if last else ():
                growth = value / last[1][what][name] if last and last[1][what][name] else 1.0
                if name not in ("seconds", "page_s") and growth > 1.05 * worse_than(last[0], nodes):  # type: ignore[index]
                    print(
                        f"WORSE than n log n: {what}, {name}, {growth:.1f} times from "
                        f"{last[0] if last else 0}"
                    )
                    good = False
        last = (nodes, found)
    print(json.dumps({"growth no worse than n log n": good}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
