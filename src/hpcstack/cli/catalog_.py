"""`hpcstack catalog`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, answer, json_option


@click.command("catalog")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The folder; an older one is replaced.",
)
@json_option
@click.pass_obj
def command(session: Session, output: Path, as_json: bool) -> None:
    """A site of plain pages about everything that is published: for a web server, or a browser on
    the files.
    """
    from hpcstack.publish import website

    files = website.render_pages(session.site, session.store)
    with session.store.acting("the catalogue was not written"):
        website.write_pages(files, output)
    index = output.absolute() / website.MARK
    answer(
        {"index": str(index), "files": len(files)}, as_json, lambda: f"{index}: {len(files)} files"
    )
