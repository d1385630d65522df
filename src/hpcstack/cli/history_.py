"""`hpcstack history`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_release_verbs.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.published import published_argument, split_published
from hpcstack.cli.session import Session, answer, format_table, json_option


@click.command("history")
@published_argument
@json_option
@click.pass_obj
def command(session: Session, name: str, as_json: bool) -> None:
    """Show every change to what is published under a name: when, by whom and why.

    With a version, only the changes to that version are shown.
    """
    from hpcstack.publish.status import list_history
    from hpcstack.releases.tree import open_tree

    ledger, version, _ = split_published(session, name)
    if name == ledger.name:
        version = ""  # all versions, not the default's alone
    events = list_history(open_tree(session.site), ledger.name, version)

    head = ("#", "when", "who", "what", "release", "alias", "default", "why")
    keys = ("number", "at", "by", "verb", "subject", "alias", "default", "reason")
    rows = [tuple(str(one[key]) for key in keys) for one in events]
    answer({"name": ledger.name, "events": events}, as_json, lambda: format_table(rows, head))
