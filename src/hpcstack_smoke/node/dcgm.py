"""DCGM's own diagnostics of this node's GPUs, where `dcgmi` is at hand and its host engine answers.

`dcgmi diag -r 2 -j` prints one JSON document, perhaps after warnings. Its form differs: up to DCGM
3 `DCGM GPU Diagnostic` with `gpu_ids`, later `entity_id` (nvvs/include/NvvsJsonStrings.h of
NVIDIA/DCGM): tests are whatever has a `name` and `results`. Level 2 takes about two minutes
(dcgmi-diag's manual).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.node import machine
from hpcstack_smoke.result import ERROR, FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from collections.abc import Iterator

LEVEL, SECONDS = "2", 900.0
NO_ENGINE = ("unable to connect", "unable to establish a connection", "host engine is not running")
MOST = 6


def diagnose(request: Any) -> Result:
    """DCGM's diagnostics of level 2 on a node that the step has whole: they load every GPU."""
    here = machine.HERE
    devices = here.found("/dev/nvidia[0-9]*")
    if not devices:
        raise Skip("no GPU on this node")
    if not all(here.opens(path) for path in devices):
        raise Skip("others may be on this node's other GPUs: --exclusive")
    status, text = here.ran(["dcgmi", "diag", "-r", LEVEL, "-j"], SECONDS)
    return judge_diagnostics(status, text)


def judge_diagnostics(status: int, text: str) -> Result:
    """What `dcgmi diag -j` printed and ended with. A word that is not known is no PASS."""
    expected = f"every test of level {LEVEL}"
    if status == 127:
        raise Skip("no dcgmi in the image (--mount the host's, or its package)")
    if status == 124:
        return Result(ERROR, f"dcgmi diag took longer than {SECONDS:.0f} s", expected, "DCGM")
    document = _document(text)
    found = list(_tests(document)) if document else []
    if not found:
        if any(words in text.lower() for words in NO_ENGINE):
            raise Skip("DCGM's host engine does not answer on this node")
        return Result(
            ERROR,
            f"dcgmi diag ended with {status}",
            expected,
            "DCGM",
            evidence=" ".join(text.split())[:300],
        )
    by = {
        kind: [one for one in found if _kind(one[1]) == kind]
        for kind in ("pass", "fail", "warn", "skip", "")
    }
    said = f"{len(by['pass'])} passed, {len(by['fail'])} failed, {len(by['skip'])} skipped"
    bad = by["fail"] or by["warn"] or by[""]
    if not bad and not by["pass"]:
        raise Skip(f"DCGM skipped every test: {found[0][2] or found[0][0]}"[:300])
    worst = PASS
    if by["fail"]:
        worst = FAIL
    elif bad:
        worst = WARN
    names = "; ".join(f"{name}{f': {why}' if why else ''}" for name, _, why in bad[:MOST])
    remedy = "drain the node; DCGM's word for what to do stands in `dcgmi diag -r 2`" if bad else ""
    return Result(worst, f"{names}; {said}"[:600] if bad else said, expected, "DCGM", remedy=remedy)


def _document(text: str) -> Any:
    begin, end = text.find("{"), text.rfind("}")
    try:
        return json.loads(text[begin : end + 1]) if 0 <= begin < end else None
    except (ValueError, RecursionError):
        return None


def _tests(value: Any) -> Iterator[tuple[str, str, str]]:
    """(name and GPU, status, why) of every result in a document."""
    if isinstance(value, list):
        for one in value:
            yield from _tests(one)
    elif isinstance(value, dict):
        name, results = value.get("name"), value.get("results")
        if isinstance(name, str) and isinstance(results, list):
            for one in results:
                if isinstance(one, dict) and "status" in one:
                    yield f"{name}{_whom(one)}", str(one["status"]), _why(one)
        else:
            for one in value.values():
                yield from _tests(one)


def _whom(result: dict[str, Any]) -> str:
    whom = result.get("gpu_ids", result.get("entity_id", ""))
    return f" on GPU {whom}" if str(whom) else ""


def _why(result: dict[str, Any]) -> str:
    said = result.get("warnings") or result.get("info") or ""
    parts = said if isinstance(said, list) else [said]
    return " ".join(
        str(one.get("warning", one) if isinstance(one, dict) else one) for one in parts
    )[:200]


def _kind(status: str) -> str:
    word = status.strip().lower()
    return next((kind for kind in ("pass", "fail", "warn", "skip") if word.startswith(kind)), "")
