"""The documentation site: Sphinx reads the Markdown pages of this folder with MyST.

`./ci/docs` builds it. The reference is made from the code before each build.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "_generate"))

import reference_pages  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "hpcstack"
copyright = "the authors of hpcstack; Apache-2.0"
extensions = ["myst_parser"]
exclude_patterns = ["_generate"]
nitpicky = True  # a cross reference that leads nowhere is a warning, and ci/docs fails on warnings
myst_heading_anchors = 4  # every heading can be linked as page.md#heading, as on a git forge
smartquotes = False  # of --option it would make a dash
html_theme = "furo"
html_title = "hpcstack"
html_copy_source = False
html_show_sphinx = False


def write_reference(_app: Sphinx) -> None:
    """Make the reference of the code."""
    reference_pages.write_pages(DOCS / "reference/generated")


def fill_in(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Link what only is here, and point links to files beside docs/ at their pages."""
    if docname == "reference/index":  # on a git forge these pages are not there, and no links
        source[0] = re.sub(r"^\| (generated/\S+\.md)", r"| [\1](\1)", source[0], flags=re.MULTILINE)
    up = "../" * docname.count("/")
    for name in ("CHANGELOG", "CONTRIBUTING"):
        source[0] = source[0].replace(f"]({up}../{name}.md", f"]({up}{name.lower()}.md")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_reference)
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
