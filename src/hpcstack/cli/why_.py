"""`hpcstack why`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_launching.py.
"""

from __future__ import annotations

from typing import Any

import click

from hpcstack.cli.session import answer, json_option


@click.command("why")
@click.argument("variable")
@click.option(
    "--job",
    "what",
    default="",
    metavar="JOB",
    show_default="the job this runs in, else the newest launch",
    help="Look at the launch of this job.",
)
@json_option
def command(variable: str, what: str, as_json: bool) -> None:
    """Show where a variable of a launch got its value.

    That is the site, the image, the user or hpcstack. Exit code 1: it was not set.
    """
    from hpcstack.core.errors import did_you_mean
    from hpcstack.launch.record import explain_added, explain_made, find_launch
    from hpcstack.runtimes import find_plain_name

    launch = find_launch(what)
    rows: dict[str, dict[str, Any]] = {}
    for row in launch.document["environment"]:
        rows[find_plain_name(row["name"])] = row
    row = rows.get(variable) or explain_made(variable, launch)
    row = explain_added(variable, launch, row)

    document = {"launch": str(launch.folder), "job": launch.job, "variable": variable, "set": row}

    def text() -> str:
        where = f"{launch.stack}, {launch.started}"
        if launch.job:
            where += f", job {launch.job}"
        if row is None:
            return f"{variable} was not set in {where}{did_you_mean(variable, rows)}"

        why = f": {row['why']}" if row["why"] else ""
        return f"{variable}={row['value']}\n  {row['origin']}{why}\n  {where}"

    answer(document, as_json, text)
    raise click.exceptions.Exit(0 if row else 1)
