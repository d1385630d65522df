"""`hpcstack status`."""

from __future__ import annotations

from typing import Any

import click

from hpcstack.cli.published import optional, split
from hpcstack.cli.session import Session, answer, json_option, table
from hpcstack.core.errors import counted

UNASKED = "srun --container-image=PATH asks for no signature; launch, modules and --container-image=hpcstack/STACK do"


@click.command("status")
@optional
@click.option("--check", is_flag=True, help="Exit 1 if anything is wrong.")
@json_option
@click.pass_obj
def command(session: Session, name: str, check: bool, as_json: bool) -> None:
    """What users see of what is published, and what is wrong with it; of one NAME, also what is hidden."""
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.publish.status import find_unsigned, rows
    from hpcstack.releases.tree import Tree

    tree = Tree(session.site.module_root)
    chosen = split(session, name)[0].name if name else ""
    found = rows(tree, session.store, chosen)
    wrong = [f"{one['release']}: {what}" for one in found for what in one["wrong"]]
    wrong += [f"{one}: a change was interrupted; the next verb that writes finishes it" for one in tree.pending()]
    if session.site.signatures.required:
        wrong += find_unsigned(tree, session.store, session.site.signatures.keys, session.runner)
    if tree.stale:
        wrong.append("the spider cache is older than the tree; the next verb that writes rebuilds it")
    if crowd := tree.crowded():
        wrong.append(
            f"{tree.core} contains {crowd} modulefiles, which every load looks at: `modules.direct` in site.yaml"
        )
    notes = [UNASKED] if session.site.signatures.required else []
    document = {"modulepath": str(tree.core), "releases": found, "wrong": wrong, "notes": notes}
    answer(document, as_json, lambda: shown(document))
    if check and wrong:
        raise AnswerIsNo(
            f"{counted(len(wrong), 'thing')} wrong with what is published: {wrong[0]}",
            "each line above says what to type; docs/three-in-the-morning.md",
        )


def shown(document: dict[str, Any]) -> str:
    rows = document["releases"]
    wrong = [f"WRONG {one}" for one in document["wrong"]]
    if not rows:
        return "\n".join(["nothing is published here; hpcstack publish STACK", *wrong])
    head = ("release", "alias", "channel", "tested", "dates")
    lines = [table([_row(one) for one in rows], head), "", f"  module use {document['modulepath']}"]
    return "\n".join([*lines, *wrong, *(f"NOTE: {one}" for one in document["notes"])])


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    days = ((one["deprecate"], "warned"), (one["remove"], "refused"))
    return (
        one["release"] + (" (D)" if one["default"] else ""),
        one["alias"],
        one["channel"] if one["state"] == "live" else one["state"],
        one["tested"].get("verdict", "not tested"),
        " ".join(f"{what} from {when}" for when, what in days if when),
    )
