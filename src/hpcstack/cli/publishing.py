"""What publish and promote share: options, the checks before a release, and how it is shown."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import answer

OVERRIDE = click.option(
    "--override", default="", metavar="REASON", help="Pass a shut gate; REASON is written down."
)
DIFF = click.option("--diff", is_flag=True, help="Like --dry-run, and every file as a diff.")
REPORTS = click.option(
    "--report",
    "reports_",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="A report to show and to judge by; by default your newest of this image.",
)


def show_foretold(changes: list[str], files: str, *, diff: bool, as_json: bool) -> None:
    """What publishing would change: a few lines, and all files as a diff where that is asked for."""
    lines = ["nothing would change"]
    if changes:
        more = files if diff else "  (--diff shows the files)"
        lines = ["this would change:", *(f"  {one}" for one in changes), more]
    answer({"changes": changes, "diff": files, "dry_run": True}, as_json, lambda: "\n".join(lines))


def show_published(done: object) -> str:
    """What was published, and what a user types."""
    from hpcstack.publish.publishable import Published

    assert isinstance(done, Published)
    was = (
        f"published in {done.channel}: {done.checked}"
        if done.new
        else f"was already published in {done.channel}"
    )
    lines = [f"{done.release} {was}"]
    lines += [f"  {done.modulefile}"]
    if done.takes_alias:
        lines.append(
            f"  {done.alias} loads it"
            + (", and it is the default" if done.default == done.release else "")
        )
    elif done.channel == "testing":
        lines.append(
            f"  {done.alias} stays with its production release: hpcstack promote {done.alias}"
        )
    return "\n".join([*lines, "", f"  module use {done.modulepath}", f"  {done.load}"])
