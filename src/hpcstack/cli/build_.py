"""`hpcstack build`.

Tested in tests/unit/cli/test_locks.py and tests/integration/test_engines.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import (
    Session,
    answer,
    choose_stacks,
    complete_stacks,
    events_option,
    json_option,
    show_progress,
)

if TYPE_CHECKING:
    from hpcstack.build.batch import BuildOutcome
    from hpcstack.build.options import BuildOptions
    from hpcstack.core.progress import Progress


@click.command("build")
@click.argument(
    "names",
    metavar="STACK...",
    nargs=-1,
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Build every stack of your own and the site's recipes. A failure does not stop the rest.",
)
@click.option(
    "--on",
    "where",
    type=click.Choice(["here", "slurm"]),
    default="here",
    show_default=True,
    help="Build on this machine, or as batch jobs of Slurm.",
)
@click.option(
    "--limit",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Run at most this many of the batch jobs at once (--on slurm).",
)
@click.option(
    "-p",
    "--partition",
    default="",
    metavar="PARTITION",
    show_default="one that can build for the platform",
    help="Build on this partition (--on slurm).",
)
@click.option(
    "--platform",
    default="",
    metavar="PLATFORM",
    show_default="the recipe's first",
    help="linux/amd64, linux/arm64, or all: each of the recipe's that the site has nodes for.",
)
@click.option(
    "--engine",
    default="",
    metavar="ENGINE",
    show_default="the site's",
    help="apptainer, enroot, builtin, docker, or auto for the first that can be used.",
)
@click.option("--no-cache", "fresh", is_flag=True, help="Build from scratch, and reuse nothing.")
@click.option(
    "--squash",
    is_flag=True,
    help="Pack the whole image anew, so that its file keeps nothing that was deleted.",
)
@click.option(
    "--offline", is_flag=True, help="Build without a network, from a bundle and the caches."
)
@click.option(
    "--sif",
    default="",
    metavar="FILE",
    help="Also write a SIF around the same squashfs, without compressing it again.",
)
@click.option("--locked", is_flag=True, help="Refuse a lock that is stale or leaves anything open.")
@click.option("--dry-run", is_flag=True, help="Only say what would be built.")
@events_option
@json_option
@click.pass_obj
def command(
    session: Session,
    /,
    names: tuple[str, ...],
    every: bool,
    where: str,
    limit: int,
    partition: str,
    dry_run: bool,
    events: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Build the images of stacks into the store.

    An image that already exists is not built again. Several stacks, or a pattern such as
    'pytorch-*', are built one after another.
    """
    from hpcstack.build.options import BuildOptions
    from hpcstack.core.errors import InputError

    options = BuildOptions(**given)
    if options.engine:
        from hpcstack.build.engines import check_name

        check_name(options.engine)

    stacks = _find_own_stacks(session) if every else choose_stacks(session, names)
    if not stacks or (every and names):
        raise InputError("name a stack, or say --all", "hpcstack list shows all stacks")

    builds = _expand_platforms(session, stacks, options)
    if options.sif and (len(builds) > 1 or where == "slurm"):
        raise InputError("--sif goes with one image that is built here", page="import-a-base-image")

    if dry_run:
        _foretell_builds(session, builds, as_json)
    elif where == "slurm":
        _build_on_slurm(session, builds, limit, partition, events, as_json)
    elif len(builds) == 1:
        with show_progress(f"building {stacks[0]}", events) as progress:
            document, lines = _build_one(session, *builds[0], progress)
        answer(document, as_json, lambda: "\n".join(lines))
    else:
        _build_each(session, builds, events, as_json)


def _expand_platforms(
    session: Session, stacks: list[str], options: BuildOptions
) -> list[tuple[str, BuildOptions]]:
    """Return (stack, options) of each image to build.

    `--platform all` becomes one build for each of the recipe's platforms that the site has nodes
    for, or the recipe's first where the site has none of them.
    """
    from dataclasses import replace

    if options.platform != "all":
        return [(name, options) for name in stacks]

    of_the_site = {node.platform for node in session.site.node_types.values()}
    builds = []
    for name in stacks:
        known = session.recipe(name).stack.base.platforms
        of_both = [one for one in known if one in of_the_site] if of_the_site else known
        builds += [(name, replace(options, platform=one)) for one in of_both or known[:1]]
    return builds


def _find_own_stacks(session: Session) -> list[str]:
    """Return the stacks of the site's and the user's own recipes, without adopted ones.

    Those that come with hpcstack are left out: they are built by name, or by a pattern.
    """
    from hpcstack.core import data
    from hpcstack.core.errors import InputError

    shipped = data.find_data_folder("recipes").resolve()
    own = [name for name, path in session.names.items() if path.resolve().parent != shipped]
    found = [name for name in own if not session.recipe(name).stack.adopted]
    if not found:
        raise InputError(
            "there are no recipes of your own here",
            "hpcstack build 'pytorch-*' builds some of hpcstack's",
            page="build-my-own-stack",
        )
    return found


def _build_one(
    session: Session, name: str, options: BuildOptions, progress: Progress
) -> tuple[dict[str, Any], list[str]]:
    """Build one stack on this machine. Return the answer as a document and as lines."""
    from hpcstack.resolve.build_stack import build_stack

    done = build_stack(session.recipe(name), options, session.workbench(progress))
    artifact = done.artifact
    request = done.request

    how = "built" if done.built else "was there"
    lines = [
        str(artifact.image),
        f"  {how}, {artifact.size / 1e6:.0f} MB, sha256 {artifact.sha256}",
    ]
    if done.sif:
        lines.append(f"  SIF: {done.sif}")
    if done.built:
        lines.append(f"  {request.engine.name}: {request.why}")
    if artifact.stand_in:
        lines.append(f"  STAND-IN: {artifact.stand_in}")

    sif = {"sif": options.sif} if options.sif else {}
    return {**artifact.as_dict(), "built": done.built, **sif}, lines


def _foretell_builds(
    session: Session, builds: list[tuple[str, BuildOptions]], as_json: bool
) -> None:
    """Say what each of BUILDS would make, and whether it is in the store already.

    Of several, one that fails does not stop the rest. The exit code is the first failure's.
    """
    from hpcstack.core.errors import HpcstackError
    from hpcstack.resolve.build_stack import request_stack

    documents: list[dict[str, Any]] = []
    lines = []
    failed = None
    for name, options in builds:
        try:
            with show_progress(f"looking at {name}") as progress:
                request = request_stack(
                    session.recipe(name), options, session.workbench(progress), dry=True
                )
        except HpcstackError as error:
            if len(builds) == 1:
                raise
            documents.append({"stack": name, "said": error.message})
            lines.append(f"{name}: {error.message}")
            failed = failed or error
            continue

        is_built = bool(session.store.artifact(request.key))
        documents.append(
            {
                "stack": name,
                "platform": request.platform,
                "key": request.key,
                "engine": request.engine.name,
                "why": request.why,
                "built": is_built,
            }
        )
        state = "is built already" if is_built else "would be built"
        lines.append(f"{name}: {request.key} by {request.engine.name} ({request.why}): {state}")

    answer(documents[0] if len(documents) == 1 else documents, as_json, lambda: "\n".join(lines))
    if failed:
        raise click.exceptions.Exit(failed.exit_code)


def _build_each(
    session: Session, builds: list[tuple[str, BuildOptions]], events: str, as_json: bool
) -> None:
    """Build one image after another on this machine.

    A failure does not stop the rest. The exit code is the first failure's.
    """
    from hpcstack.build.batch import BuildOutcome
    from hpcstack.core.errors import HpcstackError

    for name, _ in builds:
        session.recipe(name)  # a recipe that is wrong is refused before anything is built

    outcomes = []
    log = session.store.top / "logs"
    with show_progress(f"building {len(builds)} images", events) as progress:
        for name, options in builds:
            try:
                document, _ = _build_one(session, name, options, progress)
                outcomes.append(BuildOutcome(name, 0, log, document, platform=document["platform"]))
            except HpcstackError as error:
                progress(f"{name} FAILED: {error.message.splitlines()[0]}")
                platform = options.platform or session.recipe(name).stack.base.platforms[0]
                outcomes.append(
                    BuildOutcome(name, error.exit_code, log, {}, error.message, platform)
                )
    _show_outcomes(outcomes, as_json)


def _build_on_slurm(
    session: Session,
    builds: list[tuple[str, BuildOptions]],
    limit: int,
    partition: str,
    events: str,
    as_json: bool,
) -> None:
    """Build the images as batch jobs on PARTITION, at most LIMIT at once, and wait for them."""
    from hpcstack.build.batch import BatchBuild, build_on_slurm

    jobs = []
    for name, options in builds:
        # reading the recipe here refuses a wrong one before a job waits in the queue
        recipe = session.recipe(name)
        platform = options.platform or recipe.stack.base.platforms[0]
        jobs.append(BatchBuild(name, platform, tuple(options.words())))

    names = ", ".join(dict.fromkeys(name for name, _ in builds))
    with show_progress(f"building on Slurm: {names[:60]}", events) as progress:
        outcomes = build_on_slurm(
            jobs, session.site, session.words(), limit, partition, session.runner, progress
        )
    _show_outcomes(outcomes, as_json)


def _show_outcomes(outcomes: list[BuildOutcome], as_json: bool) -> None:
    """Show how several builds ended. Raise the first failure's error, if any failed."""
    from hpcstack.build.batch import find_failures

    documents = [
        {
            "stack": one.stack,
            "platform": one.platform,
            "status": one.status,
            "log": str(one.log),
            "artifact": one.artifact,
            "said": one.said,
        }
        for one in outcomes
    ]

    has_several_platforms = len({one.platform for one in outcomes}) > 1
    lines = []
    for one in outcomes:
        name = f"{one.stack} ({one.platform})" if has_several_platforms else one.stack
        how = f"FAILED (exit {one.status})" if one.status else str(one.artifact.get("image", ""))
        lines.append(f"{name}: {how}")
        lines += [f"  < {line}" for line in one.said.splitlines()]

    answer(documents, as_json, lambda: "\n".join(lines))
    if error := find_failures(outcomes):
        raise error
