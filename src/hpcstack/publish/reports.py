"""Finds the test reports of an image, and decides whether they open the gate to production.

Tested in tests/unit/publish/test_gate.py.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import AnswerIsNo, HpcstackError, InputError
from hpcstack.core.files import read_bytes, write_text
from hpcstack.publish.audit import explain_shut_gate
from hpcstack.publish.gate import NO_REPORT, Obstacle, find_obstacles
from hpcstack.report import Report
from hpcstack.site.own_checks import list_own_checks

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.sharing import Sharing
    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

MAX_REPORT = 256 << 20  # bytes


def read_report(path: Path, publishers: Sharing | None = None) -> Report:
    """Return the report in PATH, a file or the folder of a run.

    InputError where there is none. With PUBLISHERS also where its file belongs to somebody who is
    none of them.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        document = json.loads(read_bytes(file, MAX_REPORT, publishers=publishers))
        document.pop("verdict", None)  # it follows from the outcomes
        return Report.model_validate(document)
    except (OSError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise InputError(
            f"{file} is not a report: {error}",
            "hpcstack test STACK writes one",
            page="test-a-stack",
        ) from None


def name_shared_folder(store: Store, stack: str) -> Path:
    """Return where a group shares its reports of STACK: one tests, a colleague promotes."""
    return store.top / "reports" / stack


def share_report(report: Report, store: Store) -> Path | None:
    """Write REPORT for the group that shares the store, and return its path.

    None where no group shares the store, or the report may not be written there.
    """
    sharing = store.sharing
    if not sharing.has_group:
        return None
    folder = name_shared_folder(store, report.stack)
    moment = re.sub(r"[^0-9TZ]", "", report.started)[:15]
    path = folder / f"{moment}-{report.image_sha256[:12]}-{os.geteuid()}.json"
    try:
        with store.acting("the report was not shared"):
            sharing.make_folder(folder.parent)
            sharing.make_folder(folder)
            text = json.dumps(report.model_dump(mode="json"), indent=1) + "\n"
            write_text(path, text, sharing=sharing)
    except HpcstackError:
        return None
    return path


def find_reports(stack: str, sha256: str, store: Store) -> list[Report]:
    """Return this user's and the group's reports of the image of SHA256, the newest first.

    Where the site names its publishers, the report of another user counts if he is one of them.
    """
    own = (find_state_folder() / "tests" / stack).glob("*/report.json")
    shared = name_shared_folder(store, stack).glob("*.json")
    paths = [(path, None) for path in own] + [(path, store.sharing) for path in shared]

    found: dict[str, Report] = {}  # by its text: one's own report may be shared, too
    for path, publishers in paths:
        try:
            report = read_report(path, publishers)
        except InputError:
            continue
        if report.image_sha256 == sha256:
            found.setdefault(report.model_dump_json(), report)
    return sorted(found.values(), key=lambda one: one.started, reverse=True)


def require_proof(
    stack: Stack,
    artifact: Artifact,
    site: Site,
    given: list[Report],
    override: str,
    *,
    named: bool = False,
) -> tuple[Report | None, str]:
    """Return the report that opens the gate to production, and OVERRIDE if it was needed.

    GIVEN are the reports to choose from, the newest first. One that merely lacks checks is passed
    over for an older one. One in which something is wrong decides, unless the caller NAMED the
    reports: then any of them may open the gate. AnswerIsNo says why the gate is shut.
    """
    shown, reasons = judge_reports(stack, artifact, site, given, named=named)
    if not reasons:
        return shown[0], ""
    if override:
        known = [*shown, *given]
        return known[0] if known else None, override

    if artifact.adopted:
        reasons.append(f"NOTE: the image is ADOPTED, hpcstack did not build it: {artifact.adopted}")
    listed = "".join(f"\n  {reason}" for reason in reasons[:20])
    more = f"\n  and {len(reasons) - 20} more" if len(reasons) > 20 else ""
    raise AnswerIsNo(
        f"the gate to production is shut for {stack.full_name}:{listed}{more}",
        f"hpcstack test {artifact.key[:12]} -N 2 --tier {site.modules.tier}; or --override "
        f"REASON, which is written down",
        page="promote-a-release",
    )


def judge_reports(
    stack: Stack, artifact: Artifact, site: Site, given: list[Report], *, named: bool = False
) -> tuple[list[Report], list[str]]:
    """Return the reports in GIVEN that count, and why the gate to production is shut.

    Where it is open, the second list is empty. See `require_proof`.
    """
    shown: list[Report] = []
    reasons: list[str] = []
    for kind in _list_kinds_to_prove(artifact, site):
        of_kind = [one for one in given if not kind or one.node_type == kind]
        good, why = choose_report(stack, artifact, site, of_kind, named=named)
        if good:
            shown.append(good)
        prefix = f"{kind}: " if kind else ""
        reasons += [f"{prefix}{obstacle}" for obstacle in why]
    reasons += explain_shut_gate(artifact, site)
    return shown, reasons


def _list_kinds_to_prove(artifact: Artifact, site: Site) -> list[str]:
    """Return the node types that must each have a report: those of `modules.prove_on` that can run
    the image.

    [""] where the site asks for none: then a report of any node type will do.
    """
    asked = [
        kind
        for kind in site.modules.prove_on
        if site.node_types[kind].platform == artifact.platform
    ]
    return asked or [""]


def choose_report(
    stack: Stack, artifact: Artifact, site: Site, given: list[Report], *, named: bool = False
) -> tuple[Report | None, list[Obstacle]]:
    """Return (the report in GIVEN that opens the gate, []), or (None, why it is shut).

    GIVEN are of one node type, the newest first. See `require_proof` for NAMED.
    """
    first: list[Obstacle] = []
    for report in given:
        found = _find_obstacles_at(stack, artifact, site, report)
        if not found:
            return report, []
        first = first or found
        only_lacks_checks = all(obstacle.not_run for obstacle in found)
        if not named and not only_lacks_checks:
            return None, found
    return None, first or [NO_REPORT]


def _find_obstacles_at(
    stack: Stack, artifact: Artifact, site: Site, report: Report
) -> list[Obstacle]:
    """Return why REPORT does not open the gate to the image of ARTIFACT at SITE."""
    if site.node_types and report.node_type not in site.node_types:
        what = "of a run outside of Slurm, or on nodes of several types"
        if report.node_type:
            what = f"of node type {report.node_type!r}"
        return [Obstacle(f"the report is {what}, and site.yaml knows {', '.join(site.node_types)}")]

    node = site.node_types.get(report.node_type)
    return find_obstacles(
        stack.tests,
        site.modules.tier,
        node,
        report,
        artifact.sha256,
        artifact.suite,
        list_own_checks(stack, site),
    )
