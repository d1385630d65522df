"""`hpcstack lint`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, complete, json_option


@click.command("lint")
@click.argument(
    "names", metavar="[STACK|FILE]...", nargs=-1, shell_complete=lambda ctx, _param, start: complete(ctx, start)
)
@click.option("--all", "everything", is_flag=True, help="Every recipe that can be found.")
@json_option
@click.pass_obj
def command(session: Session, names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Check recipes; all problems at once, each as file:line:column."""
    from hpcstack.errors import InputError, Problem, ProblemsError
    from hpcstack.spec import catalog

    chosen = [*names, *(map(str, catalog.files(session.folders).values()) if everything else ())]
    if not chosen:
        raise InputError("say which recipes", "hpcstack lint --all")
    problems: list[Problem] = []
    for name in chosen:
        try:
            catalog.find(name, session.folders)
        except ProblemsError as error:
            problems += error.problems
        except InputError as error:
            problems.append(Problem(name, 1, 1, "", error.message))
    document = {"checked": len(chosen), "problems": [problem.__dict__ for problem in problems]}
    if problems and not as_json:
        raise ProblemsError(problems)
    answer(document, as_json, lambda: f"{len(chosen)} recipe(s), no problem")
    if problems:
        raise click.exceptions.Exit(2)
