"""`hpcstack list`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option, say, table


@click.command("list")
@json_option
@click.pass_obj
def command(session: Session, as_json: bool) -> None:
    """The stacks that can be built, and which are."""
    from hpcstack.errors import ProblemsError
    from hpcstack.spec import catalog

    rows = []
    whole = session.store.stacks()
    for name, path in catalog.files(session.folders).items():
        try:
            stack = catalog.read(path).stack
        except ProblemsError as error:
            say(f"{name} is left out: {error.problems[0]}")
            continue
        built = whole.get(name)
        rows.append(
            {
                "name": name,
                "summary": stack.summary,
                "base": stack.base.image,
                "recipe": str(path),
                "built": bool(built),
                "stand_in": built.stand_in if built else "",
            }
        )

    def text() -> str:
        state = {(False, False): "-", (True, False): "built", (True, True): "built on a stand-in"}
        shown = [
            (str(row["name"]), state[bool(row["built"]), bool(row["stand_in"])], str(row["summary"])) for row in rows
        ]
        return table(shown, ("STACK", "IMAGE", "PURPOSE"))

    answer(rows, as_json, text)
