"""`hpcstack show`."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import Session, answer, complete_stacks, format_table, json_option
from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.yaml import Mark
    from hpcstack.recipe.catalog import Recipe


@click.command("show")
@click.argument(
    "name",
    metavar="[STACK]",
    default="",
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.option(
    "--site",
    "of_site",
    is_flag=True,
    help="The effective site, with the file each value came from.",
)
@json_option
@click.pass_obj
def command(session: Session, name: str, of_site: bool, as_json: bool) -> None:
    """One stack's effective spec, or (--site) the site; with the file and line that each value came
    from.
    """
    if of_site:
        _site(session, as_json)
        return
    if not name:
        raise InputError("say which stack, or --site", "hpcstack list")
    recipe = session.recipe(name)
    spec = recipe.stack.model_dump(mode="json", by_alias=True)
    document = {"stack": spec, "recipe": str(recipe.path), "origins": recipe.origins()}
    answer(document, as_json, lambda: _text(recipe))


def _text(recipe: Recipe) -> str:
    """The spec as YAML that could be a recipe, with the origin of each value behind it; defaults
    are left out.
    """
    spec = recipe.stack.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    rows = list(_rows(spec, (), recipe))
    short = _short([mark.file for _, mark in rows if mark])
    width = min(max(len(line) for line, _ in rows), 80)
    lines = [
        f"# {recipe.stack.full_name}: the effective spec; what is left at its default is not shown"
    ]
    lines += [f"# {name} = {file}" for file, name in short.items()]
    lines += [
        f"{line.ljust(width)}  # {short[mark.file]}:{mark.line}" if mark else line
        for line, mark in rows
    ]
    return "\n".join(lines)


def _short(files: list[str]) -> dict[str, str]:
    """{file: its name alone}, or its whole path where two have the same name."""
    names = Counter(Path(file).name for file in set(files))
    return {
        file: Path(file).name if names[Path(file).name] == 1 else file
        for file in dict.fromkeys(files)
    }


def _rows(
    value: Any, path: tuple[str | int, ...], recipe: Recipe
) -> Iterator[tuple[str, Mark | None]]:
    """(line, origin) of VALUE at PATH, as YAML in block style with JSON scalars."""
    indent = "  " * (len(path))
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, item in items:
        here = (*path, key)
        head = f"{indent}- " if isinstance(key, int) else f"{indent}{_scalar(key)}: "
        if isinstance(item, dict | list) and item:
            yield head.rstrip(), None
            yield from _rows(item, here, recipe)
        else:
            yield (
                head + (_scalar(item) if isinstance(item, str) else json.dumps(item)),
                _origin(here, recipe),
            )


def _scalar(text: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./=:@+<>~,-]*[A-Za-z0-9_/]|[A-Za-z]", text)
    word = text.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    return text if plain and word else json.dumps(text, ensure_ascii=False)


def _origin(path: tuple[str | int, ...], recipe: Recipe) -> Mark | None:
    document = recipe.document
    return document.mark(path) if path in document.marks or path[:-1] in document.marks else None


def _site(session: Session, as_json: bool) -> None:
    document = {
        "site": _without_passwords(session.site.model_dump(mode="json", by_alias=True)),
        "origins": {_hidden(key): str(origin) for key, origin in session.loaded.origins.items()},
    }

    def text() -> str:
        rows = [
            (key, _value(document["site"], key), origin)
            for key, origin in sorted(document["origins"].items())
        ]
        return format_table(rows, ("KEY", "VALUE", "FROM"))

    answer(document, as_json, text)


def _without_passwords(value: Any) -> Any:
    """VALUE with `user:password@` in its URLs hidden: what is shown ends up in tickets."""
    if isinstance(value, dict):
        return {_hidden(str(key)): _without_passwords(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_passwords(item) for item in value]
    return _hidden(value) if isinstance(value, str) else value


def _hidden(text: str) -> str:
    return re.sub(r"//[^@\s]+@", "//***@", text)


def _value(site: object, key: str) -> str:
    """The value at KEY; keys that hold dots are matched longest first."""
    current, parts = site, key.split(".")
    while parts and isinstance(current, dict):
        size = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in current), 0)
        if not size:
            break
        current, parts = current[".".join(parts[:size])], parts[size:]
    return current if isinstance(current, str) else json.dumps(current)
