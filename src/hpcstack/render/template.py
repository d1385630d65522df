"""Jinja2 over the package's template folders: strict about unknown names, with one filter for each
quoting.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hpcstack.core import data, quote

if TYPE_CHECKING:
    import jinja2


@cache
def _environment(folder: str, *, html: bool = False) -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data.find_data_folder(folder)),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=html,
        finalize=_unbroken
        if folder == "images"
        else None,  # elsewhere a quoted word may be a script of many lines
    )
    environment.filters.update(
        sh=quote.quote_sh,
        words=quote.quote_words,
        lua=quote.quote_lua,
        lua_lines=quote.lua_lines,
        tcl=quote.quote_tcl,
        dockerfile=quote.quote_dockerfile,
        argv=quote.quote_exec_form,
        line=quote.join_lines,
        unbroken=quote.check_unbroken,
    )
    return environment


def _unbroken(value: object) -> object:
    """No expression of a definition file may end the line that it stands in."""
    return quote.check_unbroken(value) if isinstance(value, str) else value


def fill_template(folder: str, name: str, /, **values: object) -> str:
    """The template FOLDER/NAME filled with VALUES."""
    return _environment(folder).get_template(name).render(values)


def fill_page(folder: str, name: str, /, **values: object) -> str:
    """The HTML template FOLDER/NAME filled with VALUES, each of them escaped."""
    return _environment(folder, html=True).get_template(name).render(values)


@cache
def read_data_file(folder: str, name: str) -> str:
    """A file of a data folder that is no template."""
    return (data.find_data_folder(folder) / name).read_text(encoding="utf-8")
