"""Run the suite in the newest image of a stack, judge it, and keep all that it left.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import InputError
from hpcstack.core.files import write_text
from hpcstack.launch.resources import machine_of
from hpcstack.site.model import PLATFORMS
from hpcstack.slurm.query import find_allocation
from hpcstack.store.find import find_newest_image
from hpcstack.store.store import open_store
from hpcstack.suite import history
from hpcstack.suite.capsule import FILE, gather_capsule, write_capsule
from hpcstack.suite.judge import judge_report
from hpcstack.suite.run import run_suite

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Say
    from hpcstack.launch.resources import Resources
    from hpcstack.recipe.model import Stack
    from hpcstack.report import Report
    from hpcstack.site.load import Site
    from hpcstack.suite.run import SuiteRequest


def run_and_judge(
    stack: Stack, request: SuiteRequest, resources: Resources, site: Site, runner: Runner, say: Say
) -> tuple[Report, Path]:
    """Run the suite in the image of STACK that was built last, and judge the report.

    Return the report and the run's folder. The report is written there as report.json, with a
    capsule of what it was made of, and added to the stack's history unless a bug was planted.
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
        try:
            write_capsule(folder / FILE, gather_capsule(folder, report))
        except InputError as error:  # too large: the run is none the worse for it
            say(f"NOTE: {error}")
    return report, folder
