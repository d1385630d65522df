"""Keep what a run's verdicts were made of, and judge it again by today's code.

A capsule is a tar.gz of JSON documents: the request and what the site promises, the report, what
nodes and ranks wrote, and what each machine answered to the checks of its node. It has no logs of
programs and no environment, and at most MOST bytes. `hide_names` puts other words in place of all
that may name somebody, so that a site can send one.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import re
import tarfile
import zlib
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, cast

from hpcstack.core import descriptors
from hpcstack.core.carried import check_carried_output
from hpcstack.core.errors import InputError
from hpcstack.recipe.own_checks import DEFINITION
from hpcstack.report import Report
from hpcstack.suite.anonymous import Replacements
from hpcstack.suite.judge import judge_report
from hpcstack.suite.outcomes import RunFiles, SuiteRun, make_host_rows, make_outcomes
from hpcstack.suite.own_checks import read_own_runs
from hpcstack_smoke.agent import import_check
from hpcstack_smoke.collectives.transport import judge_kept_lines
from hpcstack_smoke.node import machine
from hpcstack_smoke.node.inventory import make_inventory
from hpcstack_smoke.node.recorder import NotRecorded, Replayed
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import Skip, run_check
from hpcstack_smoke.select import CHECKS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "capsule.tar.gz"  # in a run's folder
MOST = 2 << 20  # bytes of a capsule
MOST_UNPACKED = 64 << 20
PATTERNS = (
    *("node-*.json", "task-*.json", "rank-*.json", "mpi-*.json", "own-*.json"),
    *("transport-*.json", "machine-*.json"),
)
# Checks of a node that ask its machine alone, so that they can be made again from its answers
REPLAYED = frozenset(
    {
        *("node.driver", "node.gpus", "node.ecc", "node.xid", "node.throttle", "node.pcie"),
        *("node.nvlink", "node.nvlink-fabric", "node.imex", "node.persistence"),
        *("fabric.hcas", "fabric.rate", "fabric.gid", "fabric.mtu", "fabric.gdr"),
    }
)
# What a file that is no capsule, or one that somebody has changed, may raise
DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    RecursionError,
    OverflowError,
    zlib.error,
    tarfile.TarError,
)
TRANSPORT = "nccl.transport"  # the check that is judged again by the lines of NCCL's log
UNKNOWN = "UNKNOWN"  # in place of a verdict that today's code cannot make from the capsule


@dataclass(frozen=True)
class Capsule:
    """What a run was judged by: {name of a document: the document}."""

    documents: Mapping[str, Any]

    @property
    def report(self) -> Report:
        return Report.model_validate(self.documents["report.json"])

    @property
    def verdicts(self) -> dict[str, str]:
        """{check: its status}, as the code of that time judged it."""
        return dict(self.documents["verdicts.json"])


@dataclass(frozen=True)
class VerdictChange:
    """A check that is judged otherwise today: BEFORE and AFTER are statuses, WHY what says so."""

    code: str
    before: str
    after: str
    why: str


def gather_capsule(folder: Path, report: Report) -> Capsule:
    """Return the capsule of the run in FOLDER, whose REPORT has been judged."""
    documents: dict[str, Any] = {"report.json": report.model_dump(mode="json")}
    for pattern in ("request.json", *PATTERNS):
        for path in sorted(folder.glob(pattern)):
            try:
                documents[path.name] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # the run's report names who has left nothing
    capsule = Capsule(documents)
    return Capsule({**documents, "verdicts.json": _list_verdicts(capsule)})


def _list_verdicts(capsule: Capsule) -> dict[str, str]:
    """Return {check: the status that today's code gives it} of CAPSULE."""
    return {one.code: one.status for one in judge_capsule(capsule).outcomes}


def write_capsule(path: Path, capsule: Capsule) -> int:
    """Write CAPSULE to PATH, all of it or nothing. Return how many bytes it has."""
    check_carried_output(path)
    packed = pack_capsule(capsule)
    descriptors.make_folder(path.parent)
    descriptors.write_file(path, packed, 0o644)
    return len(packed)


def pack_capsule(capsule: Capsule) -> bytes:
    """Return CAPSULE as a tar.gz of at most MOST bytes.

    Where it is larger, what the machines answered is left out first, then what ranks and nodes
    wrote: of those the report's own verdicts count. Raise InputError where the report is too large.
    """
    kept = dict(capsule.documents)
    packed, unpacked = _pack(kept)
    for left_out in ("transport-", "machine-", "rank-", "task-", "own-", "node-"):
        if _fits(packed, unpacked):
            return packed
        kept = {name: one for name, one in kept.items() if not name.startswith(left_out)}
        kept["verdicts.json"] = _list_verdicts(Capsule(kept))
        packed, unpacked = _pack(kept)
    if _fits(packed, unpacked):
        return packed
    raise InputError(
        f"the capsule has {len(packed)} bytes", f"{MOST} are the most", page="compare-runs"
    )


def _fits(packed: bytes, unpacked: int) -> bool:
    """Whether a capsule that is PACKED, and has so many bytes UNPACKED, is one that is read."""
    return len(packed) <= MOST and unpacked <= MOST_UNPACKED


def _pack(documents: Mapping[str, Any]) -> tuple[bytes, int]:
    """Return (DOCUMENTS as a tar.gz, how many bytes the tar has)."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, document in documents.items():
            content = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(tar.getvalue(), mtime=0), len(tar.getvalue())


class _Bounded:
    """FILE, of which at most MOST_UNPACKED bytes can be read: whatever a header claims."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self.file = file
        self.left = MOST_UNPACKED

    def read(self, size: int = -1) -> bytes:
        wanted = self.left + 1 if size < 0 else min(size, self.left + 1)
        found = self.file.read(wanted)
        self.left -= len(found)
        if self.left < 0:
            raise ValueError(f"it has more than {MOST_UNPACKED >> 20} MiB")
        return found


def read_capsule(path: Path) -> Capsule:
    """Return the capsule in PATH. Raise InputError where it is none: it may be anybody's file."""
    documents: dict[str, Any] = {}
    try:
        with (
            gzip.open(path) as unpacked,
            tarfile.open(fileobj=cast("IO[bytes]", _Bounded(unpacked)), mode="r|") as archive,
        ):
            for entry in archive:
                file = archive.extractfile(entry) if entry.isfile() else None
                if file is None or not re.fullmatch(r"[\w.-]+\.json", entry.name):
                    raise ValueError(f"{entry.name} does not belong into one")
                documents[entry.name] = json.loads(file.read())
        capsule = Capsule(documents)
        _ = capsule.verdicts, judge_capsule(capsule)
    except DAMAGE as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path} is not a capsule of a run: {said}",
            "hpcstack report RUN --capsule FILE writes one",
            page="compare-runs",
        ) from None
    return capsule


def judge_capsule(capsule: Capsule) -> Report:
    """Return the report of CAPSULE, judged by today's code, without history and baselines.

    Checks of REPLAYED are run again on what their machine answered. Of all others the rows count,
    and of those whose rows were left out, what the report says.
    """
    report = capsule.report
    request = _read_request(capsule)
    found = RunFiles(backend=report.backend)
    answers = {
        document["host"]: document["answers"]
        for name, document in capsule.documents.items()
        if name.startswith("machine-")
    }
    for name, document in capsule.documents.items():
        if name.startswith(("node-", "task-", "rank-", "mpi-", "own-")):
            found.add(_replay_rows(document, request, answers))
    _replay_transports(capsule, found)
    for host, own in answers.items():
        with _AskRecorded(own):
            try:
                found.inventory[host] = {**found.inventory.get(host, {}), **_ask_inventory(request)}
            except NotRecorded:
                continue  # the inventory of that time counts

    nodes = max(1, request.nodes)
    ranks = max(1, report.world_size // nodes)
    settled = replace(request, nodes=nodes, ranks=ranks)
    own_checks = read_own_runs(request.own)
    run = SuiteRun(settled, own=own_checks, node_types=(report.node_type,))
    found.add({"rows": make_host_rows(run, found.inventory)})
    reported = {one.code: one for one in report.outcomes}
    with_rows = {row["code"] for row in found.rows}
    with_rows |= {str(document["own"]) for document in found.own}
    outcomes = tuple(
        one if one.code in with_rows else reported.get(one.code, one)
        for one in make_outcomes(run, found, "")
    )
    inventory = found.inventory or report.inventory
    again = report.model_copy(update={"outcomes": outcomes, "inventory": inventory})
    return judge_report(again, [], {})


def rejudge_capsule(capsule: Capsule) -> list[VerdictChange]:
    """Return the checks of CAPSULE that today's code judges otherwise, and why."""
    before = capsule.verdicts
    today = {one.code: one for one in judge_capsule(capsule).outcomes}
    out = []
    for code in dict.fromkeys([*before, *today]):
        outcome = today.get(code)
        after = outcome.status if outcome else "gone"
        was = before.get(code, "new")
        if after == was:
            continue
        why = "no check has this code any more"
        if outcome:
            why = outcome.measured or outcome.evidence
            if outcome.expected:
                why += f"; expected: {outcome.expected}"
        out.append(VerdictChange(code, was, after, why))
    return out


def _read_request(capsule: Capsule) -> Request:
    """Return the request in CAPSULE; keys that today's code does not know are left out."""
    known = {one.name for one in dataclasses.fields(Request)}
    document = capsule.documents.get("request.json", {})
    values = {name: value for name, value in document.items() if name in known}
    for name in ("hcas", "injected", "own"):
        values[name] = tuple(values.get(name, ()))
    return Request(**{**values, "output": ""})


class _AskRecorded:
    """While it is entered, checks ask the machine that gave these answers."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.replayed = Replayed(dict(answers))
        self.before = machine.HERE

    def __enter__(self) -> None:
        machine.HERE = self.replayed

    def __exit__(self, *_: object) -> None:
        machine.HERE = self.before


def _ask_inventory(request: Request) -> dict[str, Any]:
    """Return what today's code finds out of the machine's answers; not what this machine is."""
    made = make_inventory(request)
    of_here = ("cpus", "kernel", "arch", "memory_gb")
    found = {name: value for name, value in made.items() if name not in of_here}
    found["alike"] = {name: one for name, one in made["alike"].items() if name != "kernel"}
    return found


def _replay_transports(capsule: Capsule, found: RunFiles) -> None:
    """Judge again what NCCL's log said, where CAPSULE has each rank's lines; replace FOUND's rows."""
    kept = [one for name, one in capsule.documents.items() if name.startswith("transport-")]
    kept.sort(key=lambda one: int(one["rank"]))
    rows = [row for row in found.rows if row["code"] == TRANSPORT]
    if not kept or len(kept) != len(rows):
        return
    again = run_check(TRANSPORT, lambda: judge_kept_lines(kept), "")
    for row in rows:
        row.update({**again, "where": row["where"]})


def _replay_rows(
    document: dict[str, Any], request: Request, answers: Mapping[str, Any]
) -> dict[str, Any]:
    """Return DOCUMENT, with the rows of REPLAYED made again where its machine's ANSWERS are there."""
    own = answers.get(document.get("host", ""))
    if own is None or "inventory" not in document:
        return document
    rows = []
    for row in document.get("rows", []):
        if row.get("code") not in REPLAYED:
            rows.append(row)
            continue
        with _AskRecorded(own):
            rows.append(_run_again(row, request))
    return {**document, "rows": rows}


def _run_again(row: dict[str, Any], request: Request) -> dict[str, Any]:
    """Return the row of ROW's check by today's code; a SKIP where it asks what was not asked then."""
    check = next((one for one in CHECKS if one.code == row["code"]), None)
    if check is None:
        return row

    def run() -> Any:
        try:
            return import_check(check)(request)
        except NotRecorded as missing:
            raise Skip(f"{UNKNOWN}: the capsule has no answer to {missing}") from None

    return run_check(row["code"], run, row["where"])


def hide_names(capsule: Capsule) -> Capsule:
    """Return CAPSULE with other words in place of all that may name somebody (suite/anonymous.py)."""
    hosts = {host: f"node{number}" for number, host in enumerate(sorted(capsule.report.nodes), 1)}
    replacements = Replacements(hosts)
    documents = {}
    for name, document in capsule.documents.items():
        if name.startswith("own-"):
            continue  # a program's output: the report's verdicts count
        if name == "request.json" and document.get("own"):
            document = {**document, "own": [_hide_definition(one) for one in document["own"]]}
        documents[_change_name(name, replacements)] = replacements.change_all(document)
    return Capsule(documents)


def _hide_definition(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return OWN, a check of a request, without its command and its patterns."""
    name = str(own["code"]).partition(".")[2]
    on = own.get("on", "nodes")
    hidden = {"name": name, "command": "hidden", "on": on}
    return {"code": own["code"], "on": on, "argv": [], "time_limit": 1, DEFINITION: hidden}


def _change_name(name: str, replacements: Replacements) -> str:
    """Return the name of a document, KIND-WHOSE.json or KIND.json, without the name of a host."""
    kind, dash, whose = name.removesuffix(".json").partition("-")
    return f"{kind}{dash}{replacements.change(whose)}.json"
