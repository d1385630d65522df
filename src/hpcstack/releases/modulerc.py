"""`.modulerc`: what versions mean, the default, what is hidden; and gateways to names that lie
apart. Pure.
"""

from __future__ import annotations

from hpcstack.releases.ledger import Dates, Ledger
from hpcstack.render.template import fill_template


def render_modulerc(ledger: Ledger, new: tuple[str, ...], template: str) -> str:
    """The text for Lmod (`modulerc.lua.j2`) or Environment Modules (`modulerc.tcl.j2`).

    NEW releases are hidden too.
    """
    name = ledger.name
    forbidden = [
        (f"{name}/{one.release}", dates.remove, describe_refusal(f"{name}/{one.version}", dates))
        for one in ledger.entries
        if (dates := ledger.dates.get(one.version, Dates())).remove
    ]
    return fill_template(
        "modules",
        template,
        aliases=[
            (f"{name}/{release}", version) for version, release in sorted(_named(ledger).items())
        ],
        default=f"{name}/{ledger.default}" if ledger.default else "",
        hidden=[f"{name}/{release}" for release in (*ledger.hidden(), *new)],
        forbidden=forbidden,
    )


def _named(ledger: Ledger) -> dict[str, str]:
    """{version: release} of what versions mean, and of those that are retired, whose modulefile
    says why it refuses.
    """
    retired = {one.version: one.release for one in ledger.entries if one.state == "retired"}
    return {**retired, **ledger.aliases}


def describe_refusal(version: str, dates: Dates) -> str:
    """What the users of VERSION are told once its day has come, in the modulefiles' own words."""
    why = f" ({dates.reason})" if dates.reason else ""
    instead = f"; use {dates.successor}" if dates.successor else ""
    return f"{version} was retired on {dates.remove}{why}{instead}"


def render_gateway(name: str, folder: str, suffix: str) -> str:
    """The modulefile `hpcstack/NAME` that adds FOLDER to MODULEPATH. It never changes."""
    return fill_template(
        "modules", "gateway.lua.j2" if suffix else "gateway.tcl.j2", name=name, folder=folder
    )
