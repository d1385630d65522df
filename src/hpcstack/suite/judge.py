"""A report, judged: by the gates of its topology, then by the site's own history; virtual nodes
prove no figure.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpcstack.core.dirs import state_folder
from hpcstack.core.files import write_text
from hpcstack.launch.resources import machine_of
from hpcstack.site.model import PLATFORMS
from hpcstack.slurm.query import find_allocation
from hpcstack.store.find import newest_image
from hpcstack.store.store import open_store
from hpcstack.suite import gates, history
from hpcstack.suite.run import run_suite

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.launch.resources import Resources
    from hpcstack.recipe.model import Stack
    from hpcstack.report import Report
    from hpcstack.site.fabric import Baseline
    from hpcstack.site.load import Site
    from hpcstack.suite.run import Wanted
    from hpcstack.suite.steps import Say

TIMED = (
    "_s",
    "_us",
    "speedup",
    "efficiency",
)  # figures that virtual nodes, which share one machine, say nothing of


def judge_report(
    report: Report, pasts: list[history.Past], baselines: Mapping[str, Baseline]
) -> Report:
    """REPORT with each outcome held against what is known, and against the site's BASELINES of such
    nodes.
    """
    same = [
        past
        for past in pasts
        if past.key == history.make_history_key(report) and past.verdict not in ("FAIL", "ERROR")
    ]
    out = []
    for outcome in report.outcomes:
        if report.virtual_nodes and any(name.endswith(TIMED) for name in outcome.figures):
            outcome = outcome.model_copy(update={"informational": True})
        if not outcome.informational:
            outcome = gates.judge_baselines(gates.judge_outcome(outcome, report), baselines)
            outcome = history.judge_regression(outcome, same)
        out.append(outcome)
    return report.model_copy(update={"outcomes": tuple(out)})


def run_and_judge(
    stack: Stack, wanted: Wanted, resources: Resources, site: Site, runner: Runner, say: Say
) -> tuple[Report, Path]:
    """One run of the image of STACK that was built last, judged; report.json in its folder, its
    line in the history.
    """
    store = open_store(site)
    platform = PLATFORMS.get(machine_of(resources, site, find_allocation(os.environ)), "")
    image = newest_image(stack.full_name, store, platform)
    report, folder = run_suite(stack, image, wanted, resources, site, runner, say)
    write_text(
        folder / "report.json", report.model_dump_json(indent=1) + "\n"
    )  # before anything can go wrong
    path = state_folder() / "history" / f"{stack.full_name}.jsonl"
    report = judge_report(
        report, history.load_history(path), site.baselines.get(report.node_type, {})
    )
    with store.acting("the report was not written"):
        write_text(folder / "report.json", report.model_dump_json(indent=1) + "\n")
        if not report.planted:
            history.append_run(path, report, str(folder))
    return report, folder
