"""Run DCGM's own diagnostics of this node's GPUs.

They need `dcgmi` in the image and a host engine that answers. `dcgmi diag -r 2 -j` prints one JSON
document, perhaps after warnings. Its form differs: up to DCGM 3 it is `DCGM GPU Diagnostic` with
`gpu_ids`, later there is `entity_id` (nvvs/include/NvvsJsonStrings.h of NVIDIA/DCGM). So a test is
whatever has a `name` and `results`. Level 2 takes about two minutes (dcgmi-diag's manual).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.node import machine
from hpcstack_smoke.result import ERROR, FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from collections.abc import Iterator

LEVEL = "2"
SECONDS = 900.0
# What dcgmi prints where no host engine runs
NO_ENGINE = ("unable to connect", "unable to establish a connection", "host engine is not running")
# So many tests are named in a Result
MOST = 6


def check_node_dcgm(request: Any) -> Result:
    """Run DCGM's diagnostics of level 2.

    They load every GPU of the node: raise Skip where the step does not have all of them.
    """
    here = machine.HERE
    devices = here.found("/dev/nvidia[0-9]*")
    if not devices:
        raise Skip("no GPU on this node")
    if not all(here.opens(path) for path in devices):
        raise Skip("this step does not have all of the node's GPUs: use --exclusive")
    status, text = here.ran(["dcgmi", "diag", "-r", LEVEL, "-j"], SECONDS)
    return judge_diagnostics(status, text)


def judge_diagnostics(status: int, text: str) -> Result:
    """Judge the exit STATUS of `dcgmi diag -j` and the TEXT that it printed.

    A test whose status is a word that is not known here is a WARN, never a PASS.
    """
    expected = f"every test of level {LEVEL}"
    if status == 127:
        raise Skip("no dcgmi in the image (--mount the host's, or install its package)")
    if status == 124:
        return Result(ERROR, f"dcgmi diag took longer than {SECONDS:.0f} s", expected, "DCGM")

    document = _parse_document(text)
    found = list(_walk_results(document)) if document else []
    if not found:
        if any(words in text.lower() for words in NO_ENGINE):
            raise Skip("DCGM's host engine does not answer on this node")
        evidence = " ".join(text.split())[:300]
        measured = f"dcgmi diag exited with {status}"
        return Result(ERROR, measured, expected, "DCGM", evidence=evidence)

    by: dict[str, list[tuple[str, str, str]]] = {
        kind: [] for kind in ("pass", "fail", "warn", "skip", "")
    }
    for one in found:
        by[_classify_status(one[1])].append(one)
    # The worst kind that there is; a status that is not known counts as a warning
    bad = by["fail"] or by["warn"] or by[""]
    if not bad and not by["pass"]:
        name, _, why = found[0]
        raise Skip(f"DCGM skipped every test: {why or name}"[:300])

    counts = f"{len(by['pass'])} passed, {len(by['fail'])} failed, {len(by['skip'])} skipped"
    if not bad:
        return Result(PASS, counts, expected, "DCGM")
    listed = "; ".join(f"{name}: {why}" if why else name for name, _, why in bad[:MOST])
    remedy = "drain the node; `dcgmi diag -r 2` prints what DCGM advises"
    worst = FAIL if by["fail"] else WARN
    return Result(worst, f"{listed}; {counts}"[:600], expected, "DCGM", remedy=remedy)


def _parse_document(text: str) -> Any:
    """Return the JSON document in TEXT, from the first `{` to the last `}`; None without one."""
    begin, end = text.find("{"), text.rfind("}")
    if not 0 <= begin < end:
        return None
    try:
        return json.loads(text[begin : end + 1])
    except (ValueError, RecursionError):
        return None


def _walk_results(value: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (test and GPU, status, reason) of every result in VALUE, a document or part of one."""
    if isinstance(value, list):
        for one in value:
            yield from _walk_results(one)
    elif isinstance(value, dict):
        name = value.get("name")
        results = value.get("results")
        if isinstance(name, str) and isinstance(results, list):
            for one in results:
                if isinstance(one, dict) and "status" in one:
                    yield f"{name}{_name_gpu(one)}", str(one["status"]), _join_reasons(one)
        else:
            for one in value.values():
                yield from _walk_results(one)


def _name_gpu(result: dict[str, Any]) -> str:
    """Return ` on GPU N` of RESULT, empty where it is of no GPU."""
    gpu = result.get("gpu_ids", result.get("entity_id", ""))
    return f" on GPU {gpu}" if str(gpu) else ""


def _join_reasons(result: dict[str, Any]) -> str:
    """Return RESULT's warnings, else its info, as one text.

    Either is a text or a list, and in a list a warning may be {warning: text}.
    """
    found = result.get("warnings") or result.get("info") or ""
    reasons = []
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, dict):
            reasons.append(str(one.get("warning", one)))
        else:
            reasons.append(str(one))
    return " ".join(reasons)[:200]


def _classify_status(status: str) -> str:
    """Return the kind that STATUS begins with: pass, fail, warn or skip; else empty."""
    word = status.strip().lower()
    return next((kind for kind in ("pass", "fail", "warn", "skip") if word.startswith(kind)), "")
