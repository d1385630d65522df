"""`hpcstack test`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcstack.cli.resources import resource_options, resources
from hpcstack.cli.session import Session, answer, json_option, progress, say, stack_argument


@click.command("test")
@stack_argument
@resource_options
@click.option("--only", default="", help="Checks or families, by comma; the recipe's by default.")
@click.option("--strict", is_flag=True, help="A SKIP is a failure.")
@click.option("--suite-from-host", is_flag=True, help="Mount this installation's suite over the image's own.")
@click.option("-o", "--output", default="", metavar="DIR", help="Where runs are kept; all nodes must see it.")
@click.option("--junit", default="", metavar="FILE", help="Also write JUnit XML.")
@json_option
@click.pass_obj
def command(
    session: Session, /, name: str, only: str, strict: bool, suite_from_host: bool, output: str, junit: str,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run the smoke suite in a stack's image, on every node, and report each check."""
    from hpcstack import report as reports
    from hpcstack import validate
    from hpcstack.errors import InputError, did_you_mean
    from hpcstack.launch import image_of
    from hpcstack.spec.model import known_tests
    from hpcstack.store import write_text

    recipe = session.recipe(name)
    artifact = image_of(recipe.stack.full_name, session.store)
    tests = tuple(filter(None, only.split(",")))
    for test in tests:
        if test not in known_tests():
            near = did_you_mean(test, known_tests())
            raise InputError(f"no check or family {test!r}{near}", f"known: {', '.join(known_tests())}")
    parent = Path(output).absolute() if output else None
    with progress(f"testing {recipe.stack.full_name}") as step:
        report, folder = validate.test(
            recipe.stack, artifact, tests, resources(options), session.site, session.runner, step,
            runtime=options["runtime"], suite_from_host=suite_from_host, parent=parent,
        )  # fmt: skip
    say(f"all of it is in {folder}")
    verdict = report.verdict(strict=strict)
    document = {**report.model_dump(mode="json"), "verdict": verdict, "folder": str(folder)}
    answer(document, as_json, lambda: reports.text(report, strict=strict))
    if junit:
        with session.store.acting("the JUnit file was not written"):
            write_text(Path(junit), reports.junit(report))
    raise click.exceptions.Exit(0 if verdict == "PASS" else 1)
