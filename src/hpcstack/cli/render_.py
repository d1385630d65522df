"""`hpcstack render`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, answer, json_option, say, stack_argument


@click.command("render")
@stack_argument
@click.option(
    "-o", "--output", default="", metavar="DIR", help="Write the files there, not only their names."
)
@click.option(
    "--platform", default="", help="linux/amd64 or linux/arm64; the recipe's first by default."
)
@click.option(
    "--offline",
    is_flag=True,
    help="Ask no registry: without a lock, from what is known without one.",
)
@json_option
@click.pass_obj
def command(
    session: Session, name: str, output: str, platform: str, offline: bool, as_json: bool
) -> None:
    """Write the definitions, the modulefile and the launchers of a stack.

    Without a lock the registry is asked; where it does not answer, what could not be looked up is
    said, here and in the files.
    """
    from hpcstack.core.files import write_tree
    from hpcstack.preview import render_stack
    from hpcstack.resolve.make_lock import lock_to_look_at

    recipe = session.recipe(name)
    lock = lock_to_look_at(
        recipe, session.site, None if offline else lambda: session.hasty_registry, say
    )
    files, missing = render_stack(
        recipe.stack, lock, session.site, platform or recipe.stack.base.platforms[0]
    )
    if output:
        folder = Path(output)
        with session.store.acting("the files were not written"):
            write_tree(folder, files)
    where = f"{output}/" if output else ""
    answer(
        {"folder": output, "files": sorted(files), "not_looked_up": missing},
        as_json,
        lambda: "\n".join([*(f"{where}{path}" for path in sorted(files)), *missing]),
    )
