"""The hook by which Lmod or Environment Modules tell syslog who loads which release.

Tested in tests/unit/publish/test_usage.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.usage_line import TAG
from hpcstack.render.template import fill_template

if TYPE_CHECKING:
    from hpcstack.site.load import Site

TEMPLATES = {"lmod": "usage-hook.lua.j2", "tcl": "usage-hook.tcl.j2"}


def render_usage_hook(site: Site, system: str) -> str:
    """Return the hook of SYSTEM, `lmod` or `tcl`, for the module tree of SITE."""
    return fill_template("modules", TEMPLATES[system], root=f"{site.module_root}/", tag=TAG)
