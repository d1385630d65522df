"""What publish and promote share: their options, and how a release is shown.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import answer

OVERRIDE = click.option(
    "--override",
    default="",
    metavar="REASON",
    help="Pass a gate that is shut. REASON is recorded in the history.",
)
DIFF = click.option("--diff", is_flag=True, help="Like --dry-run, and show every file as a diff.")
REPORTS = click.option(
    "--report",
    "reports_",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    show_default="yours and your group's of this image",
    help="Judge by this report, and show it in the module's help. May be given several times.",
)


def show_foretold(changes: list[str], files: str, *, diff: bool, as_json: bool) -> None:
    """Show what publishing would change, and with DIFF all FILES as a diff."""
    lines = ["nothing would change"]
    if changes:
        more = files if diff else "  (--diff shows the files)"
        lines = ["this would change:", *(f"  {one}" for one in changes), more]
    answer({"changes": changes, "diff": files, "dry_run": True}, as_json, lambda: "\n".join(lines))


def show_published(done: object) -> str:
    """Return what was published, and what a user types to load it, as text."""
    from hpcstack.publish.publishable import Published

    assert isinstance(done, Published)

    if done.new:
        lines = [f"{done.release} published in {done.channel}: {done.checked}"]
    else:
        lines = [f"{done.release} was already published in {done.channel}"]
    lines.append(f"  {done.modulefile}")

    if done.takes_alias:
        and_default = ", and it is the default" if done.default == done.release else ""
        lines.append(f"  {done.alias} loads it{and_default}")
    elif done.channel == "testing":
        lines.append(
            f"  {done.alias} stays with its production release: hpcstack promote {done.alias}"
        )

    return "\n".join([*lines, "", f"  module use {done.modulepath}", f"  {done.load}"])
