"""`hpcstack catalog`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

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
    metavar="DIR",
    help="Write the pages into this folder. An older catalogue there is replaced.",
)
@json_option
@click.pass_obj
def command(session: Session, output: Path, as_json: bool) -> None:
    """Write a static website about everything that is published.

    The pages can be served by any web server, or opened from the folder in a browser.
    """
    from hpcstack.publish import website

    files = website.render_pages(session.site, session.store)
    with session.store.acting("the catalogue was not written"):
        website.write_pages(files, output)

    index = output.absolute() / website.MARK
    document = {"index": str(index), "files": len(files)}
    answer(document, as_json, lambda: f"{index}: {len(files)} files")
