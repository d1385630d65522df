"""`hpcstack bundle`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hpcstack.cli.session import Session, answer, json_option, show_progress, stack_argument


@click.group("bundle")
def command() -> None:
    """A locked stack for machines without a network: base, packages, lock and SBOM in one file."""


@command.command("create")
@stack_argument
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="By default STACK.bundle.tar."
)
@click.option(
    "--platform", default="", help="linux/amd64 or linux/arm64; the recipe's first by default."
)
@click.option(
    "--without-base", is_flag=True, help="Name the base only: another bundle has brought it there."
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

    With --without-base it is as large as the stack's own packages, and goes where the base of it is
    already.
    """
    from hpcstack.build import bundle
    from hpcstack.build.request import find_built, request_build
    from hpcstack.resolve import make_lock

    recipe, site = session.recipe(name), session.site
    with show_progress(f"bundling {name}") as progress:
        bench = session.workbench(progress)
        lock = make_lock.lock_to_build(recipe, bench)
        request = request_build(recipe, lock, site, session.runner, platform)
        final = output or Path(f"{recipe.stack.full_name}.bundle.tar")
        artifact = find_built(request, session.store)
        size = bundle.create_bundle(
            request, recipe, final, artifact, bench, with_base=not without_base
        )
    answer(
        {"bundle": str(final.absolute()), "size": size},
        as_json,
        lambda: f"{final}\n  {size / 1e6:.0f} MB",
    )


@command.command("apply")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--recipes-to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the bundle's recipe goes; by default your first folder of recipes.",
)
@json_option
@click.pass_obj
def apply(session: Session, file: Path, recipes_to: Path | None, as_json: bool) -> None:
    """Put what a bundle holds where `build --offline` finds it."""
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
    elsewhere = [path.parent for path in done.recipes if path.parent not in session.folders]
    options = ["--recipes", str(elsewhere[0])] if elsewhere else []
    lines = [f"{done.stack}: {done.files} files, {done.bytes / 1e6:.0f} MB"]
    lines += [f"  recipe: {path}" for path in done.recipes]
    lines.append(f"  next: {shlex.join(['hpcstack', *options, 'build', '--offline', done.stack])}")
    answer(document, as_json, lambda: "\n".join(lines))
