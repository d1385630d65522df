"""`hpcstack build`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, answer, events_option, json_option, progress, say, stack_argument


@click.command("build")
@stack_argument
@click.option("--platform", default="", help="linux/amd64 or linux/arm64; the recipe's first by default.")
@click.option("--engine", default="", help="apptainer, enroot, builtin, docker, or auto: the first that can be used.")
@click.option("--no-cache", is_flag=True, help="Build anew, with nothing of earlier builds.")
@click.option("--offline", is_flag=True, help="Build without a network: all must be in the caches.")
@events_option
@click.option(
    "--sif", default="", metavar="FILE", help="Also assemble a SIF around the image; nothing is compressed again."
)
@click.option("--locked", is_flag=True, help="Refuse a lock that is stale or leaves anything open.")
@click.option("--dry-run", is_flag=True, help="Only say what would be built.")
@json_option
@click.pass_obj
def command(
    session: Session, name: str, platform: str, engine: str, no_cache: bool, offline: bool, events: str, sif: str,
    locked: bool, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Build the image of a stack into the store. What is there already is not built again."""
    from hpcstack import build, locking
    from hpcstack.store import as_dict

    recipe, site = session.recipe(name), session.site
    if locked:
        lock = locking.locked_only(recipe, site, platform or recipe.stack.base.platforms[0])
    elif dry_run:
        lock = locking.lock_to_show(recipe, site, session.registry, say)
    else:
        with progress(f"locking {recipe.stack.full_name}") as step:
            lock = locking.lock_to_build(recipe, site, session.registry, session.runner, step)
    order = build.order(recipe, lock, site, session.runner, platform, _engine(engine))
    if dry_run:
        there = session.store.artifact(order.key)
        document = {
            "stack": recipe.stack.full_name,
            "key": order.key,
            "engine": order.engine.name,
            "why": order.why,
            "built": bool(there),
        }
        answer(
            document,
            as_json,
            lambda: f"{order.key} by {order.engine.name}: {'is there' if there else 'would be built'}",
        )
        return
    how = build.How(fresh=no_cache, offline=offline)
    with progress(f"building {recipe.stack.full_name}", events) as talk:
        artifact, built = build.build(order, session.store, session.registry, session.runner, talk, how)

    if sif:
        from hpcstack.sif import assemble

        assemble(artifact.image, artifact.platform, Path(sif), session.runner)

    def text() -> str:
        lines = [
            str(artifact.image),
            f"  {'built' if built else 'was there'}, {artifact.size / 1e6:.0f} MB, sha256 {artifact.sha256}",
        ]
        lines += [f"  SIF: {sif}"] if sif else []
        lines += [f"  {order.engine.name}: {order.why}"] if built else []
        lines += [f"  STAND-IN: {artifact.stand_in}"] if artifact.stand_in else []
        return "\n".join(lines)

    answer({**as_dict(artifact), "built": built}, as_json, text)


def _engine(name: str) -> str:
    from hpcstack.engines import ENGINES
    from hpcstack.errors import InputError, did_you_mean

    if name and name != "auto" and name not in ENGINES:
        raise InputError(
            f"--engine {name}: no such engine{did_you_mean(name, ENGINES)}", f"one of {', '.join(ENGINES)}"
        )
    return name
