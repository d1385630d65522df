"""`hpcstack list`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, format_table, json_option, say


@click.command("list")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@json_option
@click.pass_obj
def command(session: Session, words: tuple[str, ...], as_json: bool) -> None:
    """The stacks that can be built: what has been proven of each, and which are built here.

    WORDs narrow the list to stacks that name all of them.
    """
    from hpcstack.core.errors import ProblemsError
    from hpcstack.recipe.evidence import describe_evidence, explain_lack, read_evidence

    rows = []
    whole, records, seen = session.store.stacks(), read_evidence(), set()
    for path in session.catalog.files():
        try:
            recipes = session.catalog.read(path)
        except ProblemsError as error:
            say(f"{path.name} is left out: {error.problems[0]}")
            continue
        for recipe in recipes:
            stack = recipe.stack
            searched = f"{stack.full_name} {stack.summary} {stack.base.image}".lower()
            if stack.full_name in seen or not all(word.lower() in searched for word in words):
                continue
            seen.add(stack.full_name)
            built = whole.get(stack.full_name)
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
        reasons = [
            f"{row['name']} is rendered only: {row['why_not']}\n"
            for row in rows
            if row["why_not"] and words
        ]
        return format_table(shown, ("STACK", "EVIDENCE", "HERE", "PURPOSE")) + "".join(reasons)

    answer(rows, as_json, text)
