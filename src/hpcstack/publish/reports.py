"""Which reports there are of an image, and whether they open the gate to production."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from hpcstack.core import sharing
from hpcstack.core.dirs import state_folder
from hpcstack.core.errors import AnswerIsNo, HpcstackError, InputError
from hpcstack.core.files import read_bytes, write_text
from hpcstack.publish.gate import NO_REPORT, Obstacle, find_obstacles
from hpcstack.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

MAX_REPORT = 256 << 20  # bytes


def read_report(path: Path, *, published: bool = False) -> Report:
    """The report in the file PATH, or in the folder of a run. InputError where there is none, or it
    is PUBLISHED by somebody who is no publisher of the site's.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        document = json.loads(read_bytes(file, MAX_REPORT, published=published))
        document.pop("verdict", None)
        return Report.model_validate(document)
    except (OSError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise InputError(
            f"{file} is not a report: {error}", "hpcstack test STACK writes one"
        ) from None


def shared_folder(store: Store, stack: str) -> Path:
    """Where the reports of a group lie: one tests, a colleague promotes."""
    return store.top / "reports" / stack


def share_report(report: Report, store: Store) -> Path | None:
    """REPORT for the group that shares the store; nothing where there is none, or it may not be
    written.
    """
    if not sharing.is_shared():
        return None
    folder = shared_folder(store, report.stack)
    moment = re.sub(r"[^0-9TZ]", "", report.started)[:15]
    path = folder / f"{moment}-{report.image_sha256[:12]}-{os.geteuid()}.json"
    try:
        with store.acting("the report was not shared"):
            sharing.make_shared_folder(folder.parent)
            sharing.make_shared_folder(folder)
            write_text(path, json.dumps(report.model_dump(mode="json"), indent=1) + "\n")
    except HpcstackError:
        return None
    return path


def find_reports(stack: str, sha256: str, store: Store) -> list[Report]:
    """This user's reports of the image of SHA256, and the group's, the newest first.

    Where the site names its publishers, another's report counts if he is one of them.
    """
    own = (state_folder() / "tests" / stack).glob("*/report.json")
    shared = shared_folder(store, stack).glob("*.json")
    found: dict[str, Report] = {}
    for path, published in [*((path, False) for path in own), *((path, True) for path in shared)]:
        try:
            report = read_report(path, published=published)
        except InputError:
            continue
        found.setdefault(report.model_dump_json(), report)
    return _of_image(found.values(), sha256)


def _of_image(found: Iterable[Report], sha256: str) -> list[Report]:
    return sorted(
        (one for one in found if one.image_sha256 == sha256),
        key=lambda one: one.started,
        reverse=True,
    )


def require_proof(
    stack: Stack,
    artifact: Artifact,
    site: Site,
    given: list[Report],
    override: str,
    *,
    named: bool = False,
) -> tuple[Report | None, str]:
    """The report that a production release shows, of those GIVEN, the newest first; and OVERRIDE if
    it was needed.

    A report that lacks checks is passed over for an older one; one in which something is wrong is
    the answer, unless the reports were NAMED by the caller. AnswerIsNo says why the gate is shut.
    """
    shown: list[Report] = []
    reasons: list[str] = []
    for kind in _kinds_to_prove(artifact, site):
        good, why = _judged(
            stack,
            artifact,
            site,
            [one for one in given if not kind or one.node_type == kind],
            named,
        )
        shown += [good] if good else []
        reasons += [f"{kind}: {obstacle}" if kind else str(obstacle) for obstacle in why]
    if not reasons:
        return shown[0], ""
    if override:
        return next(iter([*shown, *given]), None), override
    if artifact.adopted:
        reasons.append(f"NOTE: the image is ADOPTED, hpcstack did not build it: {artifact.adopted}")
    listed = "".join(f"\n  {reason}" for reason in reasons[:20])
    more = f"\n  and {len(reasons) - 20} more" if len(reasons) > 20 else ""
    raise AnswerIsNo(
        f"the gate to production is shut for {stack.full_name}:{listed}{more}",
        (
            f"hpcstack test {stack.full_name} -N 2 --tier {site.modules.tier}; or --override "
            f"REASON, which is written down"
        ),
    )


def _kinds_to_prove(artifact: Artifact, site: Site) -> list[str]:
    """The node types that must have a report, of those that can run the image; any one ("") where
    none is asked for.
    """
    asked = [
        kind
        for kind in site.modules.prove_on
        if site.node_types[kind].platform == artifact.platform
    ]
    return asked or [""]


def _judged(
    stack: Stack, artifact: Artifact, site: Site, given: list[Report], named: bool
) -> tuple[Report | None, list[Obstacle]]:
    """(the report that opens the gate, []) or (None, why it is shut)."""
    first: list[Obstacle] = []
    for report in given:
        found = _obstacles_of(stack, artifact, site, report)
        if not found:
            return report, []
        first = first or found
        only_lacks_checks = all(obstacle.not_run for obstacle in found)
        if not named and not only_lacks_checks:
            return None, found
    return None, first or [NO_REPORT]


def _obstacles_of(stack: Stack, artifact: Artifact, site: Site, report: Report) -> list[Obstacle]:
    """Why REPORT does not open the gate to the image of ARTIFACT at this site."""
    if site.node_types and report.node_type not in site.node_types:
        what = (
            f"of node type {report.node_type!r}"
            if report.node_type
            else "of a run outside of Slurm"
        )
        return [Obstacle(f"the report is {what}, and site.yaml knows {', '.join(site.node_types)}")]
    node = site.node_types.get(report.node_type)
    return find_obstacles(
        stack.tests, site.modules.tier, node, report, artifact.sha256, artifact.suite
    )
