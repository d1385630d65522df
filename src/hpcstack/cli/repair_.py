"""`hpcstack repair`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, json_option, say

if TYPE_CHECKING:
    from hpcstack.publish.repair import Repaired


@click.command("repair")
@click.argument("name", metavar="[NAME[/RELEASE]]", default="")
@click.option("--generation", default=0, type=click.IntRange(min=0), metavar="N",
              help="Make an earlier state of NAME the current one, where the ledger is lost.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would be put back.")
@json_option
@click.pass_obj
def command(session: Session, name: str, generation: int, dry_run: bool, as_json: bool) -> None:
    """Put back what is published as it was written, and name what cannot be: modulefiles, wrappers, aliases, the cache.

    Images are not made here: `hpcstack build` makes the same bytes again of the same lock. Exit 1: something is left.
    """
    from hpcstack.core.errors import AnswerIsNo, InputError, counted
    from hpcstack.publish.publisher import Publisher
    from hpcstack.publish.repair import check_release, foretell_repair, names_to_repair, repair, restore_generation

    publisher = Publisher(session.site, session.store, session.runner, say)
    chosen, _, release = name.partition("/")
    names = names_to_repair(publisher, chosen)
    if generation and (not chosen or release):
        raise InputError("--generation is of one name", "hpcstack repair NAME --generation N")
    if release:
        check_release(publisher, chosen, release)
    if generation and not dry_run:
        restore_generation(publisher, chosen, generation)
    done = (foretell_repair if dry_run else repair)(publisher, names, name if release else "")
    document = {
        "dry_run": dry_run, "mended": [str(one) for one in done.mended], "left": [str(one) for one in done.left],
        "cache": done.cache,
    }  # fmt: skip
    answer(document, as_json, lambda: _text(done, dry_run=dry_run))
    if done.left:
        raise AnswerIsNo(f"{counted(len(done.left), 'thing')} cannot be put back here", "each line says what to type")


def _text(done: Repaired, *, dry_run: bool) -> str:
    head = "would be put back" if dry_run else "put back"
    lines = [f"{head}: {one.subject}: {one.path or one.what}" for one in done.mended]
    lines += [f"LEFT {one}" for one in done.left]
    lines += [done.cache] if done.cache else []
    return "\n".join(lines or ["everything is as it was written"])
