"""Run the suite in an image of a stack, judge it, and keep all that it left.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.core.files import write_text
from hpcstack.launch.surroundings import look_around
from hpcstack.naming.names import OF_RECIPES
from hpcstack.releases.records import read_release
from hpcstack.store.store import open_store
from hpcstack.suite import history
from hpcstack.suite.capsule import FILE, gather_capsule, write_capsule
from hpcstack.suite.judge import judge_report
from hpcstack.suite.run import run_suite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Say
    from hpcstack.launch.resources import Resources
    from hpcstack.launch.surroundings import Surroundings
    from hpcstack.naming.names import ChosenImage
    from hpcstack.recipe.catalog import Catalog
    from hpcstack.recipe.model import Stack
    from hpcstack.report import Report
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.suite.run import SuiteRequest


def choose_image_to_test(
    name: str,
    runtime: str,
    resources: Resources,
    site: Site,
    catalog: Callable[[], Catalog],
    runner: Runner,
) -> tuple[Stack, ChosenImage, Surroundings]:
    """Return the stack whose checks are run, the image, and where it is tested by RUNTIME.

    The image is the one that `launch` takes for NAME. The stack is the recipe's; of a release whose
    recipe is gone, the release's own. InputError where NAME means no image.
    """
    around = look_around(runtime, site, runner)
    names = around.find_names(resources, catalog)
    chosen = names.find_image(name)
    try:
        recipe = catalog().find(name if name.endswith(OF_RECIPES) else chosen.artifact.stack)
    except ProblemsError:
        raise
    except InputError:
        if not chosen.release:
            raise
        stack, _ = read_release(names.store, *chosen.release.split("/", 1))
        return stack, chosen, around
    return recipe.stack, chosen, around


def run_and_judge(
    stack: Stack,
    image: Artifact,
    request: SuiteRequest,
    resources: Resources,
    around: Surroundings,
    say: Say,
) -> tuple[Report, Path]:
    """Run the suite of STACK in IMAGE, and judge the report.

    Return the report and the run's folder. The report is written there as report.json, with a
    capsule of what it was made of, and added to the stack's history unless a bug was planted.
    """
    store = open_store(around.site)
    report, folder = run_suite(stack, image, request, resources, around, say)
    # written as it is, before judging can go wrong
    write_text(folder / "report.json", report.model_dump_json(indent=1) + "\n")

    path = find_state_folder() / "history" / f"{stack.full_name}.jsonl"
    baselines = around.site.baselines.get(report.node_type, {})
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
