"""Judge a report: by the gates of its topology, by what the site expects, and by its history."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpcstack.core.dirs import find_state_folder
from hpcstack.core.files import write_text
from hpcstack.launch.resources import machine_of
from hpcstack.site.model import PLATFORMS
from hpcstack.slurm.query import find_allocation
from hpcstack.store.find import find_newest_image
from hpcstack.store.store import open_store
from hpcstack.suite import gates, history
from hpcstack.suite.run import run_suite

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Say
    from hpcstack.launch.resources import Resources
    from hpcstack.recipe.model import Stack
    from hpcstack.report import Report
    from hpcstack.site.fabric import Baseline
    from hpcstack.site.load import Site
    from hpcstack.suite.run import SuiteRequest

# ends of the names of figures that depend on time: virtual nodes, which share one machine, say
# nothing of them
TIMED = ("_s", "_us", "speedup", "efficiency")


def judge_report(
    report: Report, pasts: list[history.Past], baselines: Mapping[str, Baseline]
) -> Report:
    """Return REPORT with each outcome judged, but for those that are only informational.

    It is held against gates, against BASELINES, which the site expects of such nodes, and against
    those of PASTS that can be compared with it and did not fail.
    """
    key = history.make_history_key(report)
    same = [past for past in pasts if past.key == key and past.verdict not in ("FAIL", "ERROR")]
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
    stack: Stack, request: SuiteRequest, resources: Resources, site: Site, runner: Runner, say: Say
) -> tuple[Report, Path]:
    """Run the suite in the image of STACK that was built last, and judge the report.

    Return the report and the run's folder. The report is written there as report.json, and added
    to the stack's history unless a bug was planted.
    """
    store = open_store(site)
    platform = PLATFORMS.get(machine_of(resources, site, find_allocation(os.environ)), "")
    image = find_newest_image(stack.full_name, store, platform)
    report, folder = run_suite(stack, image, request, resources, site, runner, say)
    # written as it is, before judging can go wrong
    write_text(folder / "report.json", report.model_dump_json(indent=1) + "\n")

    path = find_state_folder() / "history" / f"{stack.full_name}.jsonl"
    baselines = site.baselines.get(report.node_type, {})
    report = judge_report(report, history.load_history(path), baselines)
    with store.acting("the report was not written"):
        write_text(folder / "report.json", report.model_dump_json(indent=1) + "\n")
        if not report.planted:
            history.append_run(path, report, str(folder))
    return report, folder
