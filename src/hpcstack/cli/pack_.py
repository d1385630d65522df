"""`hpcstack pack`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_squashfs_mounts.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hpcstack.cli.choices import OptionalChoice
from hpcstack.cli.session import Session, answer, events_option, json_option, show_progress

COMPRESSIONS = ("zstd", "gzip", "xz")


@click.command("pack")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="FOLDER.sqsh in the current folder",
    help="Write this file.",
)
@click.option(
    "--compression",
    default="zstd",
    show_default=True,
    type=OptionalChoice(COMPRESSIONS),
    help="How to compress it. Data that is compressed already is stored as it is.",
)
@click.option(
    "--shard",
    default=4096,
    show_default=True,
    type=click.IntRange(1),
    metavar="MB",
    help="Size of a shard. If packing is interrupted, at most one shard is lost.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@events_option
@json_option
@click.pass_obj
def command(
    session: Session,
    folder: Path,
    output: Path | None,
    compression: str,
    shard: int,
    force: bool,
    events: str,
    as_json: bool,
) -> None:
    """Pack a folder of data into one file that launches mount.

    `hpcstack launch --mount FILE:/data` then shows what was in FOLDER at /data, read-only. If
    packing is interrupted, type the same command again: it continues where it stopped.
    """
    from hpcstack.project.pack_folder import pack_folder

    if output is None:
        output = Path.cwd() / f"{folder.absolute().name}.sqsh"
    with show_progress(f"packing {folder}", events) as progress:
        done = pack_folder(
            folder,
            output.absolute(),
            session.runner,
            progress,
            compression=compression,
            shard_size=shard * 10**6,
            force=force,
        )
    document = {
        "path": str(done.path),
        "size": done.size,
        "files": done.files,
        "bytes": done.bytes,
        "shards": done.shards,
        "reused": done.reused,
        "seconds": round(done.seconds, 2),
    }

    def text() -> str:
        return (
            f"{done.path}\n  {done.size / 1e6:.0f} MB of {done.bytes / 1e6:.0f} MB, "
            f"{done.files} files, {done.seconds:.1f} s\n"
            f"  hpcstack launch --mount {shlex.quote(f'{done.path}:/data')}"
        )

    answer(document, as_json, text)
