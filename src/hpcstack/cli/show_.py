"""`hpcstack show`."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from hpcstack.cli.session import Session, answer, complete, json_option, table
from hpcstack.errors import InputError


@click.command("show")
@click.argument("name", metavar="[STACK]", default="", shell_complete=lambda ctx, _param, start: complete(ctx, start))
@click.option("--site", "of_site", is_flag=True, help="The effective site, with the file each value came from.")
@json_option
@click.pass_obj
def command(session: Session, name: str, of_site: bool, as_json: bool) -> None:
    """One stack's spec, or (--site) the site with the origin of each value."""
    if of_site:
        _site(session, as_json)
        return
    if not name:
        raise InputError("say which stack, or --site", "hpcstack list")
    recipe = session.recipe(name)
    document = recipe.stack.model_dump(mode="json", by_alias=True)

    def text() -> str:
        import yaml

        return f"# {recipe.path}\n{yaml.safe_dump(document, sort_keys=False, width=100)}"

    answer(document, as_json, text)


def _site(session: Session, as_json: bool) -> None:
    document = {
        "site": _without_passwords(session.site.model_dump(mode="json", by_alias=True)),
        "origins": dict(session.loaded.origins),
    }

    def text() -> str:
        rows = [(key, _value(document["site"], key), origin) for key, origin in sorted(session.loaded.origins.items())]
        return table(rows, ("KEY", "VALUE", "FROM"))

    answer(document, as_json, text)


def _without_passwords(value: Any) -> Any:
    """VALUE with `user:password@` in its URLs hidden: what is shown ends up in tickets."""
    if isinstance(value, dict):
        return {key: _without_passwords(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_passwords(item) for item in value]
    return re.sub(r"//[^/@\s]+@", "//***@", value) if isinstance(value, str) else value


def _value(site: object, key: str) -> str:
    """The value at KEY; keys that hold dots are matched longest first."""
    current, parts = site, key.split(".")
    while parts and isinstance(current, dict):
        size = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in current), 0)
        if not size:
            break
        current, parts = current[".".join(parts[:size])], parts[size:]
    return current if isinstance(current, str) else json.dumps(current)
