"""Capsules of runs on the made-up clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcstack.suite.capsule import REPLAYED, Capsule, gather_capsule
from hpcstack_smoke.agent import import_check
from hpcstack_smoke.node import inventory, machine
from hpcstack_smoke.node.recorder import Recorder
from hpcstack_smoke.request import write_request
from hpcstack_smoke.result import run_check, write_document
from hpcstack_smoke.select import CHECKS
from support import clusters


def run_nodes(name: str, folder: Path, fault: dict[str, Any] | None = None) -> Capsule:
    """The capsule of a run of the replayed checks on the cluster NAME, with FAULT."""
    own = {**fault, "change": fault["on"][name]} if fault else None
    cluster = clusters.Cluster(name, own)
    request = replace(cluster.request, output=str(folder), tests=",".join(sorted(REPLAYED)))
    write_request(request)
    for node in cluster.nodes:
        recorder = Recorder(node.machine)
        before, machine.HERE = machine.HERE, recorder
        try:
            rows = [
                run_check(check.code, lambda check=check: import_check(check)(request), node.host)  # type: ignore[misc]
                for check in CHECKS
                if check.code in REPLAYED
            ]
            made = inventory.make_inventory(request)
        finally:
            machine.HERE = before
        document = {"host": node.host, "inventory": made, "rows": rows}
        write_document(str(folder), f"node-{node.host}.json", document)
        write_document(
            str(folder),
            f"machine-{node.host}.json",
            {"host": node.host, "answers": recorder.answers},
        )
    report = clusters.judged(cluster)
    return gather_capsule(folder, report)
