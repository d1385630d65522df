"""`hpcstack render`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_chain.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import (
    Session,
    answer,
    json_option,
    say,
    stack_argument,
)

if TYPE_CHECKING:
    from hpcstack.preview import FrontEnd


@click.command("render")
@stack_argument
@click.option(
    "-o",
    "--output",
    default="",
    metavar="PATH",
    help="Write the files into this folder, instead of printing their names alone. With --format it "
    "is a file.",
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
@click.option(
    "--format",
    "kind",
    type=click.Choice(["edf", "kubernetes", "jobset", "reframe"]),
    help="Print what another front end takes: an Environment Definition File, Kubeflow's TrainJob, "
    "a JobSet, a test for ReFrame.",
)
@click.option(
    "--image",
    default="",
    metavar="REF",
    show_default="the stack's squashfs",
    help="Image of a registry, as REGISTRY/NAME:TAG (--format).",
)
@click.option(
    "-N",
    "--nodes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Number of nodes (--format).",
)
@click.option(
    "--gpus-per-node",
    "gpus",
    type=click.IntRange(min=0),
    show_default="as in site.yaml",
    help="Number of GPUs on each node (--format).",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@json_option
@click.pass_obj
def command(
    session: Session,
    name: str,
    output: str,
    platform: str,
    offline: bool,
    kind: FrontEnd | None,
    image: str,
    nodes: int,
    gpus: int | None,
    words: tuple[str, ...],
    as_json: bool,
) -> None:
    """Render a stack's image definitions, modulefiles and launchers.

    Without --output, only the names of the files are printed. Without a lock, the registry is asked
    about the base. Where it does not answer, the output and the files say what could not be looked
    up.

    With --format, one file is printed, for another front end than hpcstack's own launchers.
    """
    if kind:
        asked = _RunAsked(image, words, nodes, gpus)
        _render_for_front_end(session, name, kind, asked, output, as_json=as_json)
        return
    if words or image or gpus is not None:
        from hpcstack.core.errors import InputError

        raise InputError(
            "a command, --image and --gpus-per-node go with --format",
            f"hpcstack render {name} --format kubernetes --image REF -- train.py",
            page="other-front-ends",
        )
    _render_files(session, name, output, platform, offline=offline, as_json=as_json)


@dataclass(frozen=True)
class _RunAsked:
    """What was asked of another front end."""

    image: str
    words: tuple[str, ...]
    nodes: int
    gpus: int | None


def _render_for_front_end(
    session: Session, name: str, kind: FrontEnd, asked: _RunAsked, output: str, *, as_json: bool
) -> None:
    """Print, or write to OUTPUT, the one file by which another front end runs the stack."""
    from hpcstack.core.errors import InputError
    from hpcstack.core.outputs import write_output
    from hpcstack.preview import render_for_front_end

    if asked.words and kind in ("edf", "reframe"):
        raise InputError(
            f"--format {kind} takes no command", "leave it out", page="other-front-ends"
        )
    stack = session.recipe(name).stack
    image = asked.image
    if kind == "edf" and not image:
        image = str(session.find_image(name).image)

    text = render_for_front_end(
        kind,
        stack,
        session.site,
        image=image,
        command=asked.words,
        nodes=asked.nodes,
        gpus=asked.gpus,
        own=("hpcstack", *session.words()),
    )
    if output:
        with session.store.acting(f"{output} was not written"):
            write_output(Path(output), text)
    document = {"format": kind, "file": output, "text": text}
    answer(document, as_json, lambda: output or text)


def _render_files(
    session: Session, name: str, output: str, platform: str, *, offline: bool, as_json: bool
) -> None:
    """Render all files of a stack, and print their names."""
    from hpcstack.core.carried import check_carried_output
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
        check_carried_output(folder)
        with session.store.acting("the files were not written"):
            write_tree(folder, files)

    where = f"{output}/" if output else ""
    document = {"folder": output, "files": sorted(files), "not_looked_up": missing}
    lines = [*(f"{where}{path}" for path in sorted(files)), *missing]
    answer(document, as_json, lambda: "\n".join(lines))
