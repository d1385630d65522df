"""`hpcstack draft`.

Tested in tests/unit/cli/test_verbs.py and tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.choices import split_module_name
from hpcstack.cli.session import Session, answer, complete_stacks, json_option, say

if TYPE_CHECKING:
    from hpcstack.draft.recipe_draft import LeftOut, Note, RecipeDraft

STDOUT = Path("-")


@click.command("draft")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--as",
    "full_name",
    required=True,
    metavar="NAME/VERSION",
    help="Name the stack so: what `module load` takes once it is published.",
)
@click.option(
    "--on",
    "stack",
    default="",
    metavar="STACK",
    help="Start from this stack, not from the base that the file names. A list of packages names "
    "none.",
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option(
    "--recipes-to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    show_default="your first folder of recipes, else this folder",
    help="Write the recipe into this folder. With - print it.",
)
@click.option(
    "--context",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    show_default="the file's own",
    help="Take the files that it copies from this folder.",
)
@click.option(
    "--build-arg",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Give an argument of the file this value. May be given several times.",
)
@click.option(
    "--target", default="", metavar="STAGE", show_default="the last", help="Take this stage."
)
@json_option
@click.pass_obj
def command(
    session: Session,
    file: Path,
    full_name: str,
    stack: str,
    recipes_to: Path | None,
    context: Path | None,
    arguments: tuple[str, ...],
    target: str,
    as_json: bool,
) -> None:
    """Write a recipe of a Dockerfile, a definition, an environment or a list of packages.

    FILE is a Dockerfile or Containerfile, an Apptainer definition (.def), a conda environment.yml,
    a requirements.txt, an EDF (.toml) or a devcontainer.json. Nothing of it is run. Each line that
    a recipe cannot say is named, with what to write instead, in the recipe, too.

    Exit code 1: the recipe is written, and something of the file is left out.
    """
    from hpcstack.draft.draft import DraftRequest, draft_recipe
    from hpcstack.draft.recipe_draft import render_draft
    from hpcstack.recipe.new_recipe import place_new_recipe, write_new_recipe

    name, version = split_module_name(full_name)
    folder = recipes_to or session.own_folder or Path()
    stack_name, path = place_new_recipe(folder, name, version, session.catalog)
    request = DraftRequest(
        file, session.host_platform, stack, context, _read_arguments(arguments), target
    )
    draft = draft_recipe(request)
    text = render_draft(draft, file.name, name, version)

    path = path.absolute()
    session.catalog.plan(path, text).find(str(path))  # a recipe that is none is not written
    if folder == STDOUT:
        click.echo(text, nl=False)
        say(_format_text(draft, stack_name, path))
    else:
        write_new_recipe(path, text, session.site.sharing)
        answer(
            _make_document(draft, stack_name, path),
            as_json,
            lambda: _format_text(draft, stack_name, path),
        )
    if draft.left_out:
        raise click.exceptions.Exit(1)


def _read_arguments(words: tuple[str, ...]) -> dict[str, str]:
    """Return {NAME: VALUE} of --build-arg. Raise InputError for a word without `=`."""
    from hpcstack.core.errors import InputError

    out = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise InputError(
                f"--build-arg {word}", "--build-arg NAME=VALUE", page="bring-what-you-have"
            )
        out[name] = value
    return out


def _make_document(draft: RecipeDraft, stack: str, path: Path) -> dict[str, Any]:
    return {
        "stack": stack,
        "recipe": str(path),
        "base": draft.image,
        "extends": draft.extends,
        "understood": draft.understood,
        "left_out": [_make_row(one) for one in draft.left_out],
        "notes": [_make_row(one) for one in draft.notes],
    }


def _make_row(line: LeftOut | Note) -> dict[str, Any]:
    row = asdict(line)
    del row["place"]
    return {"file": line.place.file, "line": line.place.line, **row}


def _format_text(draft: RecipeDraft, stack: str, path: Path) -> str:
    lines = [
        f"{stack}: {path}",
        f"  starts from  {draft.extends or draft.image}",
        f"  understood   {draft.understood} lines",
    ]
    for note in draft.notes:
        lines.append(f"  NOTE         {note.place}: {note.text}: {note.why}")
    for one in draft.left_out:
        lines.append(f"  LEFT OUT     {one.place}: {one.text}: {one.why}")
        lines += [f"               {one.instead}"] if one.instead else []
    return "\n".join([*lines, "", f"hpcstack lock {path} && hpcstack build {path}"])
