"""`hpcstack render`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_chain.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, answer, json_option, say, stack_argument


@click.command("render")
@stack_argument
@click.option(
    "-o",
    "--output",
    default="",
    metavar="DIR",
    help="Write the files into this folder, instead of printing their names alone.",
)
@click.option(
    "--platform",
    default="",
    metavar="PLATFORM",
    show_default="the recipe's first",
    help="linux/amd64 or linux/arm64.",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Do not ask the registry, even without a lock.",
)
@json_option
@click.pass_obj
def command(
    session: Session, name: str, output: str, platform: str, offline: bool, as_json: bool
) -> None:
    """Render a stack's image definitions, modulefiles and launchers.

    Without --output, only the names of the files are printed. Without a lock, the registry is asked
    about the base. Where it does not answer, the output and the files say what could not be looked
    up.
    """
    from hpcstack.core.files import write_tree
    from hpcstack.preview import render_stack
    from hpcstack.resolve.make_lock import lock_to_look_at

    recipe = session.recipe(name)
    open_registry = None if offline else lambda: session.hasty_registry
    lock = lock_to_look_at(recipe, session.site, open_registry, say)
    platform = platform or recipe.stack.base.platforms[0]
    files, missing = render_stack(recipe.stack, lock, session.site, platform)

    if output:
        folder = Path(output)
        with session.store.acting("the files were not written"):
            write_tree(folder, files)

    where = f"{output}/" if output else ""
    document = {"folder": output, "files": sorted(files), "not_looked_up": missing}
    lines = [*(f"{where}{path}" for path in sorted(files)), *missing]
    answer(document, as_json, lambda: "\n".join(lines))
