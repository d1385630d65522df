"""`hpcstack bundle`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_images.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hpcstack.cli.session import Session, answer, json_option, show_progress, stack_argument


@click.group("bundle")
def command() -> None:
    """Take a locked stack to machines without a network (bundle create, apply).

    A bundle is one file with the base, the packages, the lock and the SBOM.
    """


@command.command("create")
@stack_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="STACK.bundle.tar",
    help="Write the bundle to this file.",
)
@click.option(
    "--platform",
    default="",
    metavar="PLATFORM",
    show_default="the recipe's first",
    help="linux/amd64 or linux/arm64.",
)
@click.option(
    "--without-base",
    is_flag=True,
    help="Leave the base out, because another bundle has already brought it there.",
)
@json_option
@click.pass_obj
def create(
    session: Session,
    name: str,
    output: Path | None,
    platform: str,
    without_base: bool,
    as_json: bool,
) -> None:
    """Write the bundle of a stack, as it is locked.

    With --without-base it is only as large as the stack's own packages. It can be applied where the
    base is already.
    """
    from hpcstack.build import bundle
    from hpcstack.build.options import BuildOptions
    from hpcstack.build.request import find_built, request_build
    from hpcstack.resolve import make_lock

    recipe, site = session.recipe(name), session.site
    with show_progress(f"bundling {name}") as progress:
        bench = session.workbench(progress)
        lock = make_lock.lock_to_build(recipe, bench)
        request = request_build(recipe, lock, site, session.runner, BuildOptions(platform))
        final = output or Path(f"{recipe.stack.full_name}.bundle.tar")
        artifact = find_built(request, session.store)
        size = bundle.create_bundle(
            request, recipe, final, artifact, bench, with_base=not without_base
        )

    document = {"bundle": str(final.absolute()), "size": size}
    answer(document, as_json, lambda: f"{final}\n  {size / 1e6:.0f} MB")


@command.command("apply")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--recipes-to",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    show_default="your first folder of recipes",
    help="Write the bundle's recipe into this folder.",
)
@json_option
@click.pass_obj
def apply(session: Session, file: Path, recipes_to: Path | None, as_json: bool) -> None:
    """Put the contents of a bundle where `build --offline` finds them."""
    from dataclasses import asdict

    from hpcstack.build import bundle_apply

    with show_progress(f"applying {file.name}") as progress:
        done = bundle_apply.apply_bundle(
            file, session.site, recipes_to or session.own_folder, progress
        )
    document = {
        **asdict(done),
        "lock": str(done.lock),
        "recipes": [str(path) for path in done.recipes],
    }

    # a recipe in a folder that is not searched has to be named by --recipes in what is typed next
    elsewhere = [path.parent for path in done.recipes if path.parent not in session.folders]
    options = ["--recipes", str(elsewhere[0])] if elsewhere else []
    lines = [f"{done.stack}: {done.files} files, {done.bytes / 1e6:.0f} MB"]
    lines += [f"  recipe: {path}" for path in done.recipes]
    next_command = shlex.join(["hpcstack", *options, "build", "--offline", done.stack])
    lines.append(f"  next: {next_command}")
    answer(document, as_json, lambda: "\n".join(lines))
