"""Renders `.modulerc` files, with aliases, the default and hidden releases; and gateways. Pure.

Tested in tests/unit/releases/test_ledger.py.
"""

from __future__ import annotations

from hpcstack.releases.ledger import Dates, Ledger
from hpcstack.render.template import fill_template


def render_modulerc(ledger: Ledger, new: tuple[str, ...], template: str) -> str:
    """Return the text of `.modulerc`.

    TEMPLATE is `modulerc.lua.j2` for Lmod, `modulerc.tcl.j2` for Environment Modules. Beside what
    LEDGER hides, the releases NEW are hidden.
    """
    name = ledger.name
    forbidden = []
    for one in ledger.entries:
        dates = ledger.dates.get(one.version, Dates())
        if dates.remove:
            refusal = describe_refusal(f"{name}/{one.version}", dates)
            forbidden.append((f"{name}/{one.release}", dates.remove, refusal))

    aliases = _list_aliases(ledger)
    return fill_template(
        "modules",
        template,
        aliases=[(f"{name}/{release}", version) for version, release in sorted(aliases.items())],
        default=f"{name}/{ledger.default}" if ledger.default else "",
        hidden=[f"{name}/{release}" for release in (*ledger.hidden(), *new)],
        forbidden=forbidden,
    )


def _list_aliases(ledger: Ledger) -> dict[str, str]:
    """Return {version: release} of what versions mean.

    A retired version keeps an alias here: its modulefile says why it refuses to load.
    """
    retired = {one.version: one.release for one in ledger.entries if one.state == "retired"}
    return {**retired, **ledger.aliases}


def describe_refusal(version: str, dates: Dates) -> str:
    """Return what users of VERSION are told once it is retired; modulefiles use the same words."""
    why = f" ({dates.reason})" if dates.reason else ""
    instead = f"; use {dates.successor}" if dates.successor else ""
    return f"{version} was retired on {dates.remove}{why}{instead}"


def render_gateway(name: str, folder: str, suffix: str) -> str:
    """Return the modulefile `hpcstack/NAME`, which adds FOLDER to MODULEPATH. It never changes."""
    template = "gateway.lua.j2" if suffix else "gateway.tcl.j2"
    return fill_template("modules", template, name=name, folder=folder)
