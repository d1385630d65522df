"""`hpcstack adopt`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_adopting.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.choices import split_module_name
from hpcstack.cli.published import make_publisher
from hpcstack.cli.publishing import show_published
from hpcstack.cli.session import Session, answer, events_option, json_option, say, show_progress

if TYPE_CHECKING:
    from hpcstack.adopt.adopt_image import Adoption
    from hpcstack.adopt.lua_module import LuaModule
    from hpcstack.publish.publishable import Published


@click.command("adopt")
@click.argument("image", metavar="IMAGE")
@click.option(
    "--as",
    "full_name",
    required=True,
    metavar="NAME/VERSION",
    help="Publish it under this name: what `module load` takes.",
)
@click.option(
    "--lua",
    "tree",
    type=click.Path(path_type=Path),
    metavar="TREE",
    help="Keep the variables and paths of the modulefile that offers the image today: a file, or a "
    "Lua module tree to search for it.",
)
@click.option(
    "--recipes-to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    show_default="your first folder of recipes",
    help="Write its recipe into this folder.",
)
@click.option(
    "--summary", default="", metavar="TEXT", help="Say in one line what the image is for."
)
@click.option(
    "--command",
    "commands",
    multiple=True,
    metavar="NAME",
    help="Let the module offer this program of the image. May be given several times.",
)
@click.option(
    "--no-publish",
    is_flag=True,
    help="Only add the image to the store; `hpcstack publish` makes it a release later.",
)
@events_option
@json_option
@click.pass_obj
def command(
    session: Session,
    image: str,
    full_name: str,
    tree: Path | None,
    recipes_to: Path | None,
    summary: str,
    commands: tuple[str, ...],
    no_publish: bool,
    events: str,
    as_json: bool,
) -> None:
    """Take over an image that hpcstack did not build, as a release of its own.

    The image gets a recipe, a lock of the packages that are in it, and a module. IMAGE is a
    squashfs file, such as `enroot export` makes, or anything that `hpcstack import` takes. Its own
    files stay as they are. The metadata that each runtime looks for is written anew, from what the
    image says, and the smoke suite is added.
    """
    from hpcstack.adopt.adopt_image import AdoptRequest, adopt_image
    from hpcstack.core.errors import InputError

    name, version = split_module_name(full_name)
    modulefile = _read_lua(session, tree, name, version, image) if tree else None
    folder = recipes_to or session.own_folder
    if not folder:
        raise InputError(
            "there is no folder for its recipe",
            "--recipes-to DIR, and recipe_dirs: [DIR] in site.yaml",
            page="adopt-an-image",
        )

    request = AdoptRequest(image, name, version, folder, summary, commands, modulefile)
    with show_progress(f"adopting {image}", events) as progress:
        done = adopt_image(request, session.catalog, session.workbench(progress))
    released = None if no_publish else _publish(session, done)

    left_out = list(modulefile.left_out) if modulefile else []
    document = {
        "stack": done.recipe.stack.full_name,
        "recipe": str(done.recipe.path),
        "lock": str(done.lock_path),
        "image": str(done.artifact.image),
        "sha256": done.artifact.sha256,
        "base": done.artifact.base,
        "unknown": list(done.unknown),
        "not_taken_over": left_out,
        "release": released.release if released else "",
    }
    answer(document, as_json, lambda: _format_text(done, left_out, released))


def _read_lua(session: Session, tree: Path, name: str, version: str, image: str) -> LuaModule:
    """Find and read the Lua modulefile that offers IMAGE: TREE itself, or one in it."""
    from hpcstack.adopt.lua_module import find_modulefile, read_modulefile

    path = find_modulefile(tree, name, version, Path(image))
    say(f"reading {path}")
    return read_modulefile(path, session.runner)


def _publish(session: Session, done: Adoption) -> Published:
    """Publish the image that was adopted as a testing release."""
    from hpcstack.publish.make_release import (
        ReleaseRequest,
        find_candidate_of_recipe,
        release_candidate,
    )

    request = ReleaseRequest(key=done.artifact.key)
    publisher = make_publisher(session)
    candidate = find_candidate_of_recipe(done.recipe, request, publisher)
    return release_candidate(candidate, request, publisher)


def _format_text(done: Adoption, left_out: list[str], released: Published | None) -> str:
    artifact = done.artifact
    adopted = done.lock.adopted
    assert adopted  # `adopt_image` has just made this lock

    counts = f"{len(adopted.apt)} apt, {len(adopted.pip)} pip, {len(adopted.conda)} conda"
    lines = [
        f"{artifact.stack}: ADOPTED from {artifact.adopted}",
        f"  recipe    {done.recipe.path}",
        f"  lock      {done.lock_path} ({counts})",
        f"  image     {artifact.image}",
        f"  base      {artifact.base}",
        *(f"  UNKNOWN   {what}" for what in done.unknown),
        *(f"  NOT TAKEN OVER from the modulefile: {what}" for what in left_out),
    ]
    if released:
        return "\n".join([*lines, "", show_published(released)])
    return "\n".join([*lines, "", f"hpcstack publish {artifact.stack} makes it a release"])
