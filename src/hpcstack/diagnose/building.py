"""The doctor on building: can this machine enclose the programs that locks and builds start?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.build.engines.machine import explain_refused_enclosure, explain_refused_overlay
from hpcstack.diagnose.advice import Finding, report_fine, report_wrong

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Runner
    from hpcstack.site.load import Site


def look_at_building(site: Site, where: str, runner: Runner) -> Iterator[Finding]:
    """Check whether steps of a build run in an enclosure here, and in layers that are kept."""
    refused = explain_refused_enclosure(runner)
    if refused and site.build.unconfined:
        yield report_wrong(
            "build.unconfined",
            where,
            f"no enclosure can be made ({refused}): the site lets builds do without",
        )
    elif refused:
        yield report_wrong("build.enclosure", where, f"no enclosure can be made: {refused}")
    elif site.build.unconfined:
        yield report_wrong(
            "build.allowed", where, "build.unconfined is set, and this machine does not need it"
        )
    elif why := explain_refused_overlay(runner):
        yield report_wrong(
            "build.layers",
            where,
            f"steps run in an enclosure, but their layers are not kept: {why}",
        )
    else:
        yield report_fine(
            "build", where, "steps of a build run in an enclosure, in layers that are kept"
        )
