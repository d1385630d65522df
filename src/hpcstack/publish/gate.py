"""The gate to production: which checks a recipe requires on a node type, and whether a report shows them. Pure.

A family named in a recipe's `tests` requires all of its checks that this kind of node can run; a check named by its own
code is required wherever its device is. PASS opens; FAIL, ERROR, WARN, SKIP and not having run keep shut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import counted
from hpcstack_smoke.select import SCOPES, Check, selected

if TYPE_CHECKING:
    from hpcstack.report import Outcome, Report
    from hpcstack.site.model import NodeType

# What a check needs of its node
GPU = """
node.driver node.gpus node.ecc node.xid node.throttle node.pcie node.arch node.memory node.hbm node.matmul node.copies
node.counters nccl.exact nccl.transport nccl.bandwidth nccl.latency ddp.scaler
""".split()  # noqa: SIM905
NO_GPU = ("nccl.gloo", "nccl.gloo-bandwidth", "nccl.gloo-pairs", "nccl.gloo-permutations")
FABRIC = ("fabric.hcas", "fabric.rate", "fabric.memlock", "fabric.tools", "fabric.counters")
# What depends on more than site.yaml says: a second GPU, RoCE, Lustre, what an image holds. By its own code only.
OPTIONAL = """
node.torch node.same node.persistence node.nvlink node.nvlink-fabric node.imex node.alike node.p2p nccl.pairs nccl.ring
nccl.node fabric.injected fabric.gid fabric.mtu fabric.gdr fabric.storage fabric.write
io.lustre fsdp.fsdp1 fsdp.fsdp2 deepspeed.offload deepspeed.nvme train.compile train.horovod train.lightning train.dali
parallel.mesh mpi.device mpi.cuda mpi.nccl
""".split()  # noqa: SIM905


# What only root may read on some sites: nobody can make it PASS there, so its SKIP is told and opens the gate
ROOTS = {"node.xid": "kernel log not readable"}
NOT_RUN = "was not run"
ANY = ("node", "fabric", "io", "tasks")  # of a recipe that names no tests


def required(tests: tuple[str, ...], tier: str, node: NodeType | None) -> list[str]:
    """The codes of the checks that a recipe with TESTS requires on NODE, up to TIER."""
    tests = tests or ANY
    checks = [check for scope in SCOPES for check in selected(",".join(tests), scope, tier)]
    return [check.code for check in checks if _applies(check, tests, node)]


def _applies(check: Check, tests: tuple[str, ...], node: NodeType | None) -> bool:
    gpus, fabric = node.real_gpus if node else 0, bool(node and (node.hcas or node.hca_rate))
    if check.code in NO_GPU:
        return not gpus or check.code in tests
    if (check.code in GPU and not gpus) or (check.code in FABRIC and not fabric):
        return False
    return check.code not in OPTIONAL or check.code in tests


def shut(
    tests: tuple[str, ...], tier: str, node: NodeType | None, report: Report | None, sha256: str, suite: str
) -> list[str]:
    """Why REPORT does not open the gate to the image of SHA256, one reason a line; empty where it does."""
    if report is None:
        return ["there is no report of this image"]
    out = []
    if report.image_sha256 != sha256:
        out.append(f"the report is of another image: sha256 {report.image_sha256[:12]}")
    if report.suite != suite:
        out.append(f"the report is of suite {report.suite}; the image's is {suite}")
    if report.planted:
        out.append("a bug was planted in that run")
    found = {one.code: one for one in report.outcomes}
    codes = required(tests, tier, node)
    if not codes:
        out.append(f"none of the recipe's `tests` ({', '.join(tests)}) can run on this node type")
    for code in codes:
        outcome = found.get(code)
        if outcome is None:
            out.append(f"{code} {NOT_RUN} (the report's tier is {report.tier}, {tier} is required)")
        elif outcome.status != "PASS" and not _only_roots(outcome):
            out.append(f"{code} is {outcome.status}: {outcome.evidence or outcome.measured or 'no reason given'}")
    failed = [one.code for one in report.outcomes if one.status in ("FAIL", "ERROR")]
    named = " ".join(out)
    out += [f"{code} is {found[code].status}" for code in failed if code not in named]
    return out


def _only_roots(outcome: Outcome) -> bool:
    """Whether OUTCOME is a SKIP of what this site lets only root read (dmesg_restrict)."""
    return outcome.status == "SKIP" and outcome.evidence.startswith(ROOTS.get(outcome.code, "\0"))


def about(report: Report) -> tuple[tuple[str, str], ...]:
    """What a release says of REPORT: ((what, value), ...), the verdict first."""
    counts = report.counts()
    tally = ", ".join(
        f"{counts[status]} {status}" for status in ("PASS", "FAIL", "ERROR", "WARN", "SKIP") if counts[status]
    )
    nodes = ", ".join(report.nodes[:4]) + (", ..." if len(report.nodes) > 4 else "")
    kind = f" of type {report.node_type}" if report.node_type else ""
    out = [
        ("verdict", f"{report.verdict()} ({tally})"),
        ("date", report.started[:10]),
        ("suite", f"{report.suite}, {report.tier} tier"),
        ("on", f"{counted(len(report.nodes), 'node')}{kind}: {nodes}; {report.world_size} ranks by {report.runtime}"),
    ]
    for one in report.outcomes:
        if one.code in ("nccl.bandwidth", "nccl.gloo-bandwidth") and one.status in ("PASS", "WARN") and one.measured:
            out.append(("bus bandwidth", one.measured))
    out += [("NOTE", caveat) for caveat in report.caveats()]
    unread = [one for one in report.outcomes if _only_roots(one)]
    out += [("NOTE", f"{one.code} was not read: {one.evidence}") for one in unread]
    return tuple(out)
