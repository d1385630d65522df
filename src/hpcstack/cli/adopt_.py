"""`hpcstack adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

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
    "--as", "full_name", required=True, metavar="NAME/VERSION", help="What it is loaded as."
)
@click.option(
    "--lua",
    "tree",
    type=click.Path(path_type=Path),
    metavar="TREE",
    help="The modulefile that offers it today, or the Lua tree that has it: its variables and paths "
    "are kept.",
)
@click.option(
    "--recipes-to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where its recipe goes; by default the first folder of recipes that is yours.",
)
@click.option("--summary", default="", metavar="TEXT", help="One line: what it is for.")
@click.option(
    "--command",
    "commands",
    multiple=True,
    metavar="NAME",
    help="A program of it that the module offers.",
)
@click.option(
    "--no-publish", is_flag=True, help="Only into the store: hpcstack publish makes it a release."
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
    """Take over an image that hpcstack did not build: a recipe, a lock of what is in it, and a
    release of its own.

    IMAGE is a squashfs, as `enroot export` makes one, or what `hpcstack import` takes. Its own
    files stay as they are; what each runtime looks for is written anew from what it says, and the
    smoke suite is added.
    """
    from hpcstack.adopt.adopt_image import AdoptRequest, adopt_image
    from hpcstack.core.errors import InputError

    name, version = _split(full_name)
    modulefile = _read_lua(session, tree, name, version, image) if tree else None
    folder = recipes_to or session.own_folder
    if not folder:
        raise InputError(
            "there is no folder for its recipe",
            "--recipes-to DIR, and recipe_dirs: [DIR] in site.yaml",
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
    answer(document, as_json, lambda: _text(done, left_out, released))


def _split(text: str) -> tuple[str, str]:
    from hpcstack.core.errors import InputError

    name, _, version = text.partition("/")
    if not name or not version:
        raise InputError(
            f"--as {text}: a name and a version", "--as NAME/VERSION, as in: --as mytorch/2024.1"
        )
    return name, version


def _read_lua(session: Session, tree: Path, name: str, version: str, image: str) -> LuaModule:
    from hpcstack.adopt.lua_module import find_modulefile, read_modulefile

    path = find_modulefile(tree, name, version, Path(image))
    say(f"reading {path}")
    return read_modulefile(path, name, version, session.runner)


def _publish(session: Session, done: Adoption) -> Published:
    from hpcstack.publish.make_release import ReleaseRequest, candidate_of_recipe, release_candidate

    asked, acts = ReleaseRequest(key=done.artifact.key), make_publisher(session)
    return release_candidate(candidate_of_recipe(done.recipe, asked, acts), asked, acts)


def _text(done: Adoption, left_out: list[str], released: Published | None) -> str:
    artifact, adopted = done.artifact, done.lock.adopted
    assert adopted
    lines = [
        f"{artifact.stack}: ADOPTED from {artifact.adopted}",
        f"  recipe    {done.recipe.path}",
        (
            f"  lock      {done.lock_path} ({len(adopted.apt)} apt, {len(adopted.pip)} pip, "
            f"{len(adopted.conda)} conda)"
        ),
        f"  image     {artifact.image}",
        f"  base      {artifact.base}",
        *(f"  UNKNOWN   {what}" for what in done.unknown),
        *(f"  NOT TAKEN OVER from the modulefile: {what}" for what in left_out),
    ]
    if released:
        return "\n".join([*lines, "", show_published(released)])
    return "\n".join([*lines, "", f"hpcstack publish {artifact.stack} makes it a release"])
