"""`hpcstack repair`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, json_option, say, show_progress

if TYPE_CHECKING:
    from hpcstack.publish.publisher import Publisher
    from hpcstack.publish.rebuild import Rebuilt
    from hpcstack.publish.repair import Repaired


@click.command("repair")
@click.argument("name", metavar="[NAME[/RELEASE]]", default="")
@click.option(
    "--generation",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Make an earlier state of NAME the current one, where the ledger is lost.",
)
@click.option(
    "--images",
    is_flag=True,
    help="Also build images again that are gone or damaged: minutes for each.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be put back.")
@json_option
@click.pass_obj
def command(
    session: Session, name: str, generation: int, images: bool, dry_run: bool, as_json: bool
) -> None:
    """Put back what is published as it was written, and name what cannot be: modulefiles, wrappers,
    aliases, the cache.

    --images: each image that is gone, or whose file was written to, is built again, of the spec and
    the lock that its release keeps, and is put in its place if it has the same bytes. Of a release
    that is named every byte is read first; `verify --all` reads those of all. Exit 1: something is
    left.
    """
    from hpcstack.core.errors import AnswerIsNo, InputError, format_count
    from hpcstack.publish.publisher import Publisher
    from hpcstack.publish.repair import (
        check_release,
        foretell_repair,
        names_to_repair,
        repair_names,
        restore_generation,
    )

    publisher = Publisher(session.site, session.store, session.runner, say)
    chosen, _, release = name.partition("/")
    names = names_to_repair(publisher, chosen)
    if generation and (not chosen or release):
        raise InputError("--generation is of one name", "hpcstack repair NAME --generation N")
    if release:
        check_release(publisher, chosen, release)
    if generation and not dry_run:
        restore_generation(publisher, chosen, generation)
    subject = name if release else ""
    done = (foretell_repair if dry_run else repair_names)(publisher, names, subject)
    rebuilt = _rebuild(session, publisher, names, subject, dry_run=dry_run) if images else []
    without_reason = [str(one) for one in done.left if not images or one.repair != "image"]
    failed = [
        f"{one.release}: its image is not back: {one.failed}: {one.remedy}"
        for one in rebuilt
        if one.failed
    ]
    left, again = [*without_reason, *failed], [one.release for one in rebuilt if not one.failed]
    document = {
        "dry_run": dry_run,
        "mended": [str(one) for one in done.mended],
        "images": again,
        "left": left,
        "cache": done.cache,
    }
    answer(document, as_json, lambda: _text(done, again, left, dry_run=dry_run))
    if left:
        raise AnswerIsNo(
            f"{format_count(len(left), 'thing')} cannot be put back here",
            "each line says what to type",
        )


def _rebuild(
    session: Session, publisher: Publisher, names: list[str], subject: str, *, dry_run: bool
) -> list[Rebuilt]:
    """What was done, or with DRY_RUN would be tried, for each image that is gone or damaged."""
    from hpcstack.publish.rebuild import Rebuilt, rebuild_images, releases_without_images

    releases = releases_without_images(publisher, names, subject)
    if dry_run:
        return [Rebuilt(f"{name}/{entry.release}", entry.key) for name, entry in releases]
    with show_progress("building images again") as progress:
        return rebuild_images(publisher, session.workbench(progress), releases)


def _text(done: Repaired, images: list[str], left: list[str], *, dry_run: bool) -> str:
    head = "would be put back" if dry_run else "put back"
    lines = [f"{head}: {one.subject}: {one.path or one.what}" for one in done.mended]
    lines += [f"{head}: {release}: its image" for release in images]
    lines += [f"LEFT {one}" for one in left]
    lines += [done.cache] if done.cache else []
    return "\n".join(lines or ["everything is as it was written"])
