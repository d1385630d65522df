"""Fill the package's Jinja2 templates, and read its plain data files.

An unknown name in a template is an error. There is one filter for each kind of quoting.

Tested in tests/unit/core/test_quote.py.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hpcstack.core import data, quote

if TYPE_CHECKING:
    import jinja2


@cache
def _environment(folder: str, *, html: bool = False) -> jinja2.Environment:
    """Return the Jinja2 environment of the templates in FOLDER; HTML escapes each value."""
    import jinja2

    # A value in a definition file of images/ must not end its line. In other folders a quoted word
    # may be a script of many lines.
    finalize = _check_unbroken if folder == "images" else None

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data.find_data_folder(folder)),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=html,
        finalize=finalize,
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
        python=ascii,
        unbroken=quote.check_unbroken,
    )
    return environment


def _check_unbroken(value: object) -> object:
    """Return VALUE, unless it is text that would end the line in which it stands."""
    if isinstance(value, str):
        return quote.check_unbroken(value)
    return value


def fill_template(folder: str, name: str, /, **values: object) -> str:
    """Return the template FOLDER/NAME, filled with VALUES."""
    return _environment(folder).get_template(name).render(values)


def fill_page(folder: str, name: str, /, **values: object) -> str:
    """Return the HTML template FOLDER/NAME, filled with VALUES, each of which is escaped."""
    return _environment(folder, html=True).get_template(name).render(values)


@cache
def read_data_file(folder: str, name: str) -> str:
    """Return the text of NAME, a file in the data folder FOLDER that is not a template."""
    return (data.find_data_folder(folder) / name).read_text(encoding="utf-8")
