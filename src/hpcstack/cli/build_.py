"""`hpcstack build`."""

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
    from hpcstack.core.progress import Progress
    from hpcstack.resolve.build_stack import BuildOptions


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
    help="Every stack of your own and the site's recipes; a failure does not stop the rest.",
)
@click.option(
    "--on",
    "where",
    type=click.Choice(["here", "slurm"]),
    default="here",
    help="slurm: as a batch job.",
)
@click.option(
    "--limit",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    help="With --on slurm: how many at once.",
)
@click.option(
    "-p", "--partition", default="", help="With --on slurm; the site's default if not given."
)
@click.option(
    "--platform",
    default="",
    help="linux/amd64, linux/arm64, or all of the recipe's that the site has; its first by "
    "default.",
)
@click.option(
    "--engine",
    default="",
    help="apptainer, enroot, builtin, docker, or auto: the first that can be used.",
)
@click.option("--no-cache", is_flag=True, help="Build from scratch, reusing nothing.")
@click.option(
    "--squash",
    is_flag=True,
    help="Pack all of the image anew, so that nothing deleted stays in its file.",
)
@click.option(
    "--offline", is_flag=True, help="Build without a network: from a bundle and the caches."
)
@click.option(
    "--sif", default="", metavar="FILE", help="Also assemble a SIF around the image, as it is."
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
    """Build the images of stacks into the store. What already exists is not built again."""
    from hpcstack.core.errors import InputError
    from hpcstack.resolve.build_stack import BuildOptions

    options = BuildOptions(**given)
    if options.engine:
        from hpcstack.build.engines import check_name

        check_name(options.engine)
    stacks = _own(session) if every else choose_stacks(session, names)
    if not stacks or (every and names):
        raise InputError("name a stack, or say --all", "hpcstack list shows all stacks")
    builds = _expand_platforms(session, stacks, options)
    if options.sif and (len(builds) > 1 or where == "slurm"):
        raise InputError("--sif goes with one image that is built here")
    if dry_run:
        _dry_run(session, builds, as_json)
    elif where == "slurm":
        _on_slurm(session, builds, limit, partition, events, as_json)
    elif len(builds) == 1:
        with show_progress(f"building {stacks[0]}", events) as progress:
            document, lines = _one(session, *builds[0], progress)
        answer(document, as_json, lambda: "\n".join(lines))
    else:
        _many(session, builds, events, as_json)


def _expand_platforms(
    session: Session, stacks: list[str], options: BuildOptions
) -> list[tuple[str, BuildOptions]]:
    """Each image to build: `--platform all` is one for each of the recipe's platforms that a node
    of the site has.
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


def _own(session: Session) -> list[str]:
    """The site's and the user's own stacks; those that come with hpcstack are named, or built by a
    pattern.
    """
    from hpcstack.core import data
    from hpcstack.core.errors import InputError

    shipped = data.find_data_folder("recipes").resolve()
    own = [name for name, path in session.names.items() if path.resolve().parent != shipped]
    found = [name for name in own if not session.recipe(name).stack.adopted]
    if not found:
        raise InputError(
            "there are no recipes of your own here",
            "hpcstack build 'pytorch-*' builds of hpcstack's own",
        )
    return found


def _one(
    session: Session, name: str, options: BuildOptions, progress: Progress
) -> tuple[dict[str, Any], list[str]]:
    """One stack, built here: the answer as a document and as lines."""
    from hpcstack.resolve.build_stack import build_stack

    done = build_stack(session.recipe(name), options, session.workbench(progress))
    artifact, request = done.artifact, done.request
    was = "built" if done.built else "was there"
    lines = [
        str(artifact.image),
        f"  {was}, {artifact.size / 1e6:.0f} MB, sha256 {artifact.sha256}",
    ]
    lines += [f"  SIF: {done.sif}"] if done.sif else []
    lines += [f"  {request.engine.name}: {request.why}"] if done.built else []
    lines += [f"  STAND-IN: {artifact.stand_in}"] if artifact.stand_in else []
    sif = {"sif": options.sif} if options.sif else {}
    return {**artifact.as_dict(), "built": done.built, **sif}, lines


def _dry_run(session: Session, builds: list[tuple[str, BuildOptions]], as_json: bool) -> None:
    from hpcstack.core.errors import HpcstackError
    from hpcstack.resolve.build_stack import request_stack

    documents: list[dict[str, Any]] = []
    lines, failed = [], None
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
        there = bool(session.store.artifact(request.key))
        documents.append(
            {
                "stack": name,
                "platform": request.platform,
                "key": request.key,
                "engine": request.engine.name,
                "why": request.why,
                "built": there,
            }
        )
        lines.append(
            f"{name}: {request.key} by {request.engine.name} ({request.why}): "
            f"{'is built already' if there else 'would be built'}"
        )
    answer(documents[0] if len(documents) == 1 else documents, as_json, lambda: "\n".join(lines))
    if failed:
        raise click.exceptions.Exit(failed.exit_code)


def _many(
    session: Session, builds: list[tuple[str, BuildOptions]], events: str, as_json: bool
) -> None:
    """One after another; the first failure's exit code, once all were tried."""
    from hpcstack.build.batch import BuildOutcome
    from hpcstack.core.errors import HpcstackError

    for name, _ in builds:
        session.recipe(name)  # what is wrong is told before anything is built
    outcomes = []
    with show_progress(f"building {len(builds)} images", events) as progress:
        for name, options in builds:
            log = session.store.top / "logs"
            try:
                document, _ = _one(session, name, options, progress)
                outcomes.append(BuildOutcome(name, 0, log, document, platform=document["platform"]))
            except HpcstackError as error:
                progress(f"{name} FAILED: {error.message.splitlines()[0]}")
                platform = options.platform or session.recipe(name).stack.base.platforms[0]
                outcomes.append(
                    BuildOutcome(name, error.exit_code, log, {}, error.message, platform)
                )
    _tell(outcomes, as_json)


def _on_slurm(
    session: Session,
    builds: list[tuple[str, BuildOptions]],
    limit: int,
    partition: str,
    events: str,
    as_json: bool,
) -> None:
    from hpcstack.build.batch import BatchBuild, build_on_slurm

    jobs = []
    for name, options in builds:
        first = session.recipe(name).stack.base.platforms[
            0
        ]  # what is wrong is told before a job waits in the queue
        jobs.append(BatchBuild(name, options.platform or first, tuple(options.words())))
    names = ", ".join(dict.fromkeys(name for name, _ in builds))
    with show_progress(f"building on Slurm: {names[:60]}", events) as progress:
        outcomes = build_on_slurm(
            jobs, session.site, session.words(), limit, partition, session.runner, progress
        )
    _tell(outcomes, as_json)


def _tell(outcomes: list[BuildOutcome], as_json: bool) -> None:
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
    several = len({one.platform for one in outcomes}) > 1
    lines = []
    for one in outcomes:
        name = f"{one.stack} ({one.platform})" if several else one.stack
        how = f"FAILED (exit {one.status})" if one.status else str(one.artifact.get("image", ""))
        lines += [f"{name}: {how}", *(f"  < {line}" for line in one.said.splitlines())]
    answer(documents, as_json, lambda: "\n".join(lines))
    if error := find_failures(outcomes):
        raise error
