"""`hpcstack lock`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option, stack_argument


@click.command("lock")
@stack_argument
@click.option("--check", is_flag=True, help="Only say whether the lock is that of the recipe; offline.")
@json_option
@click.pass_obj
def command(session: Session, name: str, check: bool, as_json: bool) -> None:
    """Ask the registry what the base is, and write it down by digest."""
    from hpcstack.build import lock_path, write_lock

    recipe = session.recipe(name)
    if check:
        _check(session, name, as_json)
        return
    lock, path = write_lock(recipe, session.site, session.registry)
    document = {"path": str(path), **lock.model_dump(mode="json")}
    assert path == lock_path(recipe, session.site)

    def text() -> str:
        platform = next(iter(lock.base.platforms))
        lines = [f"{path}", f"  base      {recipe.stack.base.image}", f"  answered  {lock.base.answered_by}"]
        lines += [f"  {name}  {entry.digest}" for name, entry in lock.base.platforms.items()]
        lines += [f"  holds     {', '.join(f'{k} {v}' for k, v in lock.facts(platform).items())}"]
        lines += [f"  open      {', '.join(lock.unresolved)} (settled in the build, recorded in the image)"]
        lines += [f"  STAND-IN  {lock.stand_in()}"] if lock.stand_in() else []
        return "\n".join(lines)

    answer(document, as_json, text)


def _check(session: Session, name: str, as_json: bool) -> None:
    from hpcstack.build import lock_path
    from hpcstack.errors import AnswerIsNo
    from hpcstack.lock import model
    from hpcstack.lock.resolve import stale

    recipe = session.recipe(name)
    path = lock_path(recipe, session.site)
    full = recipe.stack.full_name
    reasons = stale(recipe.stack, model.read(path)) if path.exists() else [f"there is no lock at {path}"]
    if reasons and not as_json:
        raise AnswerIsNo(f"{full} is not locked: {'; '.join(reasons)}", f"hpcstack lock {full}")
    answer({"path": str(path), "current": not reasons, "reasons": reasons}, as_json, lambda: f"{path} is current")
    if reasons:
        raise click.exceptions.Exit(1)
