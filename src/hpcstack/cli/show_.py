"""`hpcstack show`.

Tested in tests/unit/cli/test_verbs.py and tests/unit/test_reference.py.
"""

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
    help="Show the site's configuration instead of a stack.",
)
@json_option
@click.pass_obj
def command(session: Session, name: str, of_site: bool, as_json: bool) -> None:
    """Show a stack's spec or the site's configuration, with the origin of each value.

    What is shown is effective: a recipe with all that it extends, or all layers of site.yaml. The
    origin is the file and the line.
    """
    if of_site:
        _show_site(session, as_json)
        return

    if not name:
        raise InputError("say which stack, or --site", "hpcstack list")

    recipe = session.recipe(name)
    spec = recipe.stack.model_dump(mode="json", by_alias=True)
    document = {"stack": spec, "recipe": str(recipe.path), "origins": recipe.origins()}
    answer(document, as_json, lambda: _format_text(recipe))


def _format_text(recipe: Recipe) -> str:
    """Return the spec as YAML that is a valid recipe, each value followed by its origin.

    Values that are left at their default are not shown.
    """
    spec = recipe.stack.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    rows = list(_list_values(spec, (), recipe))
    short = _shorten_files([mark.file for _, mark in rows if mark])
    width = min(max(len(line) for line, _ in rows), 80)

    lines = [
        f"# {recipe.stack.full_name}: the effective spec; what is left at its default is not shown"
    ]
    lines += [f"# {name} = {file}" for file, name in short.items()]
    for line, mark in rows:
        if mark:
            lines.append(f"{line.ljust(width)}  # {short[mark.file]}:{mark.line}")
        else:
            lines.append(line)
    return "\n".join(lines)


def _shorten_files(files: list[str]) -> dict[str, str]:
    """Return {path: file name}, with the whole path kept where two files have the same name."""
    counts = Counter(Path(file).name for file in set(files))
    out = {}
    for file in dict.fromkeys(files):
        name = Path(file).name
        out[file] = name if counts[name] == 1 else file
    return out


def _list_values(
    value: Any, path: tuple[str | int, ...], recipe: Recipe
) -> Iterator[tuple[str, Mark | None]]:
    """Yield (line, origin) for all of VALUE, which stands at PATH of the spec.

    The lines are YAML in block style with JSON scalars.
    """
    indent = "  " * len(path)
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))

    for key, item in items:
        here = (*path, key)
        head = f"{indent}- " if isinstance(key, int) else f"{indent}{_format_scalar(key)}: "
        if isinstance(item, dict | list) and item:
            yield head.rstrip(), None
            yield from _list_values(item, here, recipe)
        else:
            scalar = _format_scalar(item) if isinstance(item, str) else json.dumps(item)
            yield head + scalar, _find_origin(here, recipe)


def _format_scalar(text: str) -> str:
    """Return TEXT as a plain YAML scalar, or quoted where YAML would read it as something else."""
    plain = re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./=:@+<>~,-]*[A-Za-z0-9_/]|[A-Za-z]", text)
    is_keyword = text.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    if plain and not is_keyword:
        return text
    return json.dumps(text, ensure_ascii=False)


def _find_origin(path: tuple[str | int, ...], recipe: Recipe) -> Mark | None:
    """Return where the value at PATH was written; None for one that nobody wrote."""
    document = recipe.document
    if path in document.marks or path[:-1] in document.marks:
        return document.mark(path)
    return None


def _show_site(session: Session, as_json: bool) -> None:
    """Show each value of the site with its origin."""
    document = {
        "site": _without_passwords(session.site.model_dump(mode="json", by_alias=True)),
        "origins": {
            _hide_password(key): str(origin) for key, origin in session.loaded.origins.items()
        },
    }

    def text() -> str:
        rows = [
            (key, _find_value(document["site"], key), origin)
            for key, origin in sorted(document["origins"].items())
        ]
        return format_table(rows, ("KEY", "VALUE", "FROM"))

    answer(document, as_json, text)


def _without_passwords(value: Any) -> Any:
    """Return VALUE with `user:password@` hidden in its URLs: what is shown ends up in tickets."""
    if isinstance(value, dict):
        return {_hide_password(str(key)): _without_passwords(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_passwords(item) for item in value]
    if isinstance(value, str):
        return _hide_password(value)
    return value


def _hide_password(text: str) -> str:
    return re.sub(r"//[^@\s]+@", "//***@", text)


def _find_value(site: object, key: str) -> str:
    """Return the value of SITE at the dotted KEY, as text.

    A single key may contain dots, such as a registry's host name: the longest match counts.
    """
    current = site
    parts = key.split(".")
    while parts and isinstance(current, dict):
        size = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in current), 0)
        if not size:
            break
        current = current[".".join(parts[:size])]
        parts = parts[size:]
    return current if isinstance(current, str) else json.dumps(current)
