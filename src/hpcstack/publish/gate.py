"""The gate to production: which checks a recipe requires, and whether a report shows them. Pure.

A family that a recipe's `tests` names requires all of its checks that this node type can run. A
check named by its own code is required wherever its device is. Only PASS opens the gate. FAIL,
ERROR, WARN, SKIP and a check that has not run keep it shut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.recipe.own_checks import DEFINITION
from hpcstack_smoke.select import SCOPES, TIERS, Check, select_checks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.recipe.own_checks import OwnCheck
    from hpcstack.report import Outcome, Report
    from hpcstack.site.model import NodeType

FAMILIES_BY_DEFAULT = ("node", "fabric", "io", "tasks")  # for a recipe that names no tests


@dataclass(frozen=True)
class Obstacle:
    """One reason that keeps the gate shut.

    `not_run` says that the report merely lacks the check: another report may have it. `outdated`
    says that a new run might have it: the check is another one by now.
    """

    reason: str
    not_run: bool = False
    outdated: bool = False

    def __str__(self) -> str:
        return self.reason


NO_REPORT = Obstacle("there is no report of this image")


def list_required(tests: tuple[str, ...], tier: str, node: NodeType | None) -> list[str]:
    """Return the codes of the checks up to TIER that a recipe with TESTS requires on NODE."""
    asked = tests or FAMILIES_BY_DEFAULT
    checks = [check for scope in SCOPES for check in select_checks(",".join(asked), scope, tier)]
    return [check.code for check in checks if _is_required(check, asked, node)]


def _is_required(check: Check, asked: tuple[str, ...], node: NodeType | None) -> bool:
    """Whether CHECK, which a family or code in ASKED has selected, must have passed on NODE.

    The hardware that it needs decides. Where that is not known from site.yaml (`named`), or NODE has
    GPUs and the check is meant for nodes without, it must have passed only if its code was asked
    for.
    """
    has_gpus = bool(node and node.real_gpus)
    has_fabric = bool(node and (node.hcas or node.hca_rate))
    is_named = check.code in asked

    if check.needs == "gpu":
        return has_gpus
    if check.needs == "no-gpu":
        return is_named or not has_gpus
    if check.needs == "fabric":
        return has_fabric
    if check.needs == "named":
        return is_named
    return True


def list_required_own(own: Mapping[str, OwnCheck], tier: str, node: NodeType | None) -> list[str]:
    """Return the codes of those of OWN up to TIER that NODE has what they need for."""
    has = {
        "gpu": bool(node and node.real_gpus),
        "fabric": bool(node and (node.hcas or node.hca_rate)),
    }
    return [
        code
        for code, check in own.items()
        if TIERS.index(check.tier) <= TIERS.index(tier) and all(has[one] for one in check.needs)
    ]


def find_obstacles(
    tests: tuple[str, ...],
    tier: str,
    node: NodeType | None,
    report: Report | None,
    sha256: str,
    suite: str,
    own: Mapping[str, OwnCheck],
) -> list[Obstacle]:
    """Return why REPORT does not open the gate to the image of SHA256; empty where it does.

    SUITE identifies the smoke suite inside that image: a report of another suite proves
    nothing about it. OWN are the own checks of the site and the recipe, by their codes.
    """
    if report is None:
        return [NO_REPORT]

    out = []
    if report.image_sha256 != sha256:
        out.append(Obstacle(f"the report is of another image: sha256 {report.image_sha256[:12]}"))
    if report.suite != suite or report.suite_from_host:
        out.append(Obstacle(f"the report is of suite {report.suite_name}; the image's is {suite}"))
    if report.planted:
        out.append(Obstacle("a bug was planted in that run"))

    codes = list_required(tests, tier, node)
    codes += list_required_own(own, tier, node)
    if not codes:
        out.append(
            Obstacle(
                f"none of the recipe's `tests` ({', '.join(tests or FAMILIES_BY_DEFAULT)}) can run on this node type"
            )
        )
    found = {one.code: one for one in report.outcomes}
    for code in codes:
        outcome = found.get(code)
        if outcome is None:
            why = f"{code} was not run (the report's tier is {report.tier}, {tier} is required)"
            out.append(Obstacle(why, not_run=True))
        elif outcome.status != "PASS" and not _cannot_pass(outcome):
            why = outcome.evidence or outcome.measured or "no reason given"
            out.append(Obstacle(f"{code} is {outcome.status}: {why}"))
        elif code in own and outcome.versions.get(DEFINITION) != own[code].digest():
            why = f"{code} has been changed since that run: it checks something else now"
            out.append(Obstacle(why, not_run=True, outdated=True))

    # A check that nobody requires does not have to run, but if it ran it must not have failed.
    failed = [one for one in report.outcomes if one.status in ("FAIL", "ERROR")]
    out += [Obstacle(f"{one.code} is {one.status}") for one in failed if one.code not in codes]
    return out


def _cannot_pass(outcome: Outcome) -> bool:
    """Whether OUTCOME is a SKIP, or a WARN, for all users of such nodes: it must not shut the gate."""
    lacks_it = outcome.status in ("SKIP", "WARN") and outcome.not_built_in
    return lacks_it or _only_root_can_tell(outcome)


def _only_root_can_tell(outcome: Outcome) -> bool:
    """Whether OUTCOME was skipped because only root may read what it looks at (dmesg_restrict).

    No user can make it PASS at such a site. So it opens the gate, and the release says that it was
    not read.
    """
    return outcome.status == "SKIP" and outcome.needs_root


# what a release says beside its tests, under this name
KNOWN_VULNERABILITIES = "known vulnerabilities"
# Between a verdict's word and its tally in a release's record: `PASS (97 PASS, 2 SKIP)`
BEFORE_TALLY = " ("


def read_verdict(tested: Mapping[str, str]) -> str:
    """Return the word of the verdict in TESTED, which `describe_report` made; empty for none."""
    return tested.get("verdict", "").partition(BEFORE_TALLY)[0]


def describe_report(report: Report) -> tuple[tuple[str, str], ...]:
    """Return what a release says of REPORT: ((what, value), ...), the verdict first."""
    counts = report.counts()
    tally = ", ".join(
        f"{counts[status]} {status}"
        for status in ("PASS", "FAIL", "ERROR", "WARN", "SKIP")
        if counts[status]
    )
    nodes = ", ".join(report.nodes[:4])
    if len(report.nodes) > 4:
        nodes += ", ..."
    kind = f" of type {report.node_type}" if report.node_type else ""
    count = format_count(len(report.nodes), "node")
    where = f"{count}{kind}: {nodes}; {report.world_size} ranks by {report.runtime}"
    out = [
        ("verdict", f"{report.verdict()}{BEFORE_TALLY}{tally})"),
        ("date", report.started[:10]),
        ("suite", f"{report.suite_name}, {report.tier} tier"),
        ("on", where),
    ]

    for one in report.outcomes:
        is_bandwidth = one.code in ("nccl.bandwidth", "nccl.gloo-bandwidth")
        if is_bandwidth and one.status in ("PASS", "WARN") and one.measured:
            out.append(("bus bandwidth", one.measured))
    out += [("NOTE", caveat) for caveat in report.caveats()]
    for one in report.outcomes:
        if _only_root_can_tell(one):
            out.append(("NOTE", f"{one.code} was not read: {one.evidence}"))
        if one.not_built_in and one.status == "SKIP":
            out.append(("NOTE", f"{one.code} has nothing to read: {one.evidence}"))
        elif one.not_built_in:
            out.append(("NOTE", f"{one.code} is {one.status} on such nodes: {one.measured}"))
    return tuple(out)
