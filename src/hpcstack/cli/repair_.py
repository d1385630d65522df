"""`hpcstack repair`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_rebuilding.py.
"""

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
    help="First make this earlier generation of NAME the current one, where the ledger is lost.",
)
@click.option(
    "--images",
    is_flag=True,
    help="Also rebuild images that are gone or damaged, which takes minutes for each.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be restored.")
@json_option
@click.pass_obj
def command(
    session: Session, name: str, generation: int, images: bool, dry_run: bool, as_json: bool
) -> None:
    """Restore published files that were damaged or lost, and name what is left.

    These are modulefiles, wrappers, aliases and the spider cache. With --images, each image that is
    gone, or whose file was written to, is rebuilt from the spec and the lock that its release
    keeps. It is put in its place only if it has the same bytes. Every byte of a release that is
    named is read first; `verify --all` reads those of all releases. Exit code 1: something could
    not be restored.
    """
    from hpcstack.core.errors import AnswerIsNo, InputError, format_count
    from hpcstack.publish.publisher import Publisher
    from hpcstack.publish.repair import (
        check_release,
        foretell_repair,
        list_names_to_repair,
        repair_names,
        restore_generation,
    )

    publisher = Publisher(session.site, session.store, session.runner, say)
    chosen, _, release = name.partition("/")
    names = list_names_to_repair(publisher, chosen)
    if generation and (not chosen or release):
        raise InputError("--generation is of one name", "hpcstack repair NAME --generation N")

    if release:
        check_release(publisher, chosen, release)
    if generation and not dry_run:
        restore_generation(publisher, chosen, generation)

    subject = name if release else ""
    repair = foretell_repair if dry_run else repair_names
    done = repair(publisher, names, subject)
    rebuilt = _rebuild(session, publisher, names, subject, dry_run=dry_run) if images else []

    # With --images, what became of an image is said once: by its rebuild.
    left = [str(one) for one in done.left if not images or one.repair != "image"]
    left += [
        f"{one.release}: its image is not back: {one.failed}: {one.remedy}"
        for one in rebuilt
        if one.failed
    ]
    rebuilt_releases = [one.release for one in rebuilt if not one.failed]

    document = {
        "dry_run": dry_run,
        "mended": [str(one) for one in done.mended],
        "images": rebuilt_releases,
        "left": left,
        "cache": done.cache,
    }
    answer(document, as_json, lambda: _format_text(done, rebuilt_releases, left, dry_run=dry_run))
    if left:
        raise AnswerIsNo(
            f"{format_count(len(left), 'thing')} cannot be put back here",
            "each line says what to type",
            page="repair-what-is-published",
        )


def _rebuild(
    session: Session, publisher: Publisher, names: list[str], subject: str, *, dry_run: bool
) -> list[Rebuilt]:
    """Rebuild each image that is gone or damaged. With DRY_RUN, only say which would be tried."""
    from hpcstack.publish.rebuild import Rebuilt, list_releases_without_images, rebuild_images

    releases = list_releases_without_images(publisher, names, subject)
    if dry_run:
        return [Rebuilt(f"{name}/{entry.release}", entry.key) for name, entry in releases]
    with show_progress("building images again") as progress:
        return rebuild_images(publisher, session.workbench(progress), releases)


def _format_text(done: Repaired, images: list[str], left: list[str], *, dry_run: bool) -> str:
    head = "would be put back" if dry_run else "put back"
    lines = [f"{head}: {one.subject}: {one.path or one.what}" for one in done.mended]
    lines += [f"{head}: {release}: its image" for release in images]
    lines += [f"LEFT {one}" for one in left]
    if done.cache:
        lines.append(done.cache)
    return "\n".join(lines or ["everything is as it was written"])
