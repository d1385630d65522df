"""`hpcstack list`.

Tested in tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, format_table, json_option, say


@click.command("list")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@json_option
@click.pass_obj
def command(session: Session, words: tuple[str, ...], as_json: bool) -> None:
    """List the stacks that can be built, what is proven of each, and which are built.

    With WORDs, only stacks whose name, summary or base image contains all of them are listed.
    """
    from hpcstack.core.errors import ProblemsError
    from hpcstack.recipe.evidence import describe_evidence, explain_lack, read_evidence

    rows = []
    seen = set()
    built_stacks = session.store.stacks()
    records = read_evidence()

    for path in session.catalog.files():
        try:
            recipes = session.catalog.read(path)
        except ProblemsError as error:
            say(f"{path.name} is left out: {error.problems[0]}")
            continue

        for recipe in recipes:
            stack = recipe.stack
            if stack.full_name in seen:  # a recipe of the same name in an earlier folder counts
                continue

            searched = f"{stack.full_name} {stack.summary} {stack.base.image}".lower()
            if not all(word.lower() in searched for word in words):
                continue

            seen.add(stack.full_name)
            built = built_stacks.get(stack.full_name)
            rows.append(
                {
                    "name": stack.full_name,
                    "summary": stack.summary,
                    "base": stack.base.image,
                    "recipe": str(path),
                    "evidence": describe_evidence(stack, records),
                    "why_not": explain_lack(stack, records),
                    "built": bool(built),
                    "stand_in": built.stand_in if built else "",
                }
            )

    rows.sort(key=lambda row: str(row["name"]))

    def text() -> str:
        # (is built, from a stand-in of its base) -> what is shown
        state = {(False, False): "-", (True, False): "built", (True, True): "stand-in"}
        shown = [
            (
                str(row["name"]),
                str(row["evidence"]),
                state[bool(row["built"]), bool(row["stand_in"])],
                str(row["summary"]),
            )
            for row in rows
        ]
        table = format_table(shown, ("STACK", "EVIDENCE", "HERE", "PURPOSE"))
        if not words:
            return table

        # somebody who asks for a stack by name wants to know why nothing is proven of it
        reasons = [
            f"{row['name']} is rendered only: {row['why_not']}\n" for row in rows if row["why_not"]
        ]
        return table + "".join(reasons)

    answer(rows, as_json, text)
