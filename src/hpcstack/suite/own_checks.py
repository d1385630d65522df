"""Own checks of a site and a recipe: which ones a run has, and what their output says.

The image's suite runs their commands and keeps what these print (hpcstack_smoke/own.py). Patterns,
gates and the comparison of nodes are applied here. Pure, but for the time limit of a pattern.
"""

from __future__ import annotations

import contextlib
import re
import signal
import statistics
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import format_count
from hpcstack.recipe.own_checks import DEFINITION, OF_SITE, OwnCheck
from hpcstack.report.model import is_number
from hpcstack_smoke import own
from hpcstack_smoke.select import BURN, TIERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PATTERN_S = 20.0  # that one pattern may take: a bad one can take for ever
MORE_OF_NUMBER = re.compile(r"[eE][-+]?[0-9]|[.,]?[0-9]")
THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?")
LINES_SHOWN = 3  # of the output of a check that failed
LETTERS_SHOWN = 400
ALL_RANKS = "all ranks"
TOO_OLD = (
    "the image's smoke suite is older than own checks: build the stack again, or add "
    "--suite-from-host"
)


def select_own_checks(
    checks: Mapping[str, OwnCheck], only: Sequence[str], tier: str, skip: Sequence[str]
) -> dict[str, OwnCheck]:
    """Return those of CHECKS that a run has.

    A recipe's `tests` do not matter: whoever writes a check wants it run. ONLY and SKIP are codes,
    families and groups; with an ONLY, just the checks that it names are run. A check whose tier is
    above TIER runs only if its code is named, as do all of them in a burn.
    """
    out = {}
    for code, check in checks.items():
        family = code.partition(".")[0]
        if code in skip or family in skip:
            continue
        if only and code not in only and family not in only:
            continue
        in_tier = tier != BURN and TIERS.index(check.tier) <= TIERS.index(tier)
        if in_tier or code in only:
            out[code] = check
    return out


def write_own_runs(checks: Mapping[str, OwnCheck]) -> tuple[dict[str, Any], ...]:
    """Return CHECKS as request.json has them: what the image must know, and the definition."""
    return tuple(
        {
            "code": code,
            "on": check.on,
            "argv": list(check.argv),
            "time_limit": check.time_limit,
            "needs": list(check.needs),
            "min_nodes": check.min_nodes,
            DEFINITION: check.model_dump(mode="json", exclude_defaults=True, exclude={"stacks"}),
        }
        for code, check in checks.items()
    )


def read_own_runs(documents: Sequence[Mapping[str, Any]]) -> dict[str, OwnCheck]:
    """Return {code: check} of the DOCUMENTS that `write_own_runs` made."""
    return {one["code"]: OwnCheck.model_validate(one[DEFINITION]) for one in documents}


@dataclass(frozen=True)
class OwnEvidence:
    """What a run left of its own checks, and what is needed to judge that."""

    documents: Sequence[Mapping[str, Any]]  # of processes, as hpcstack_smoke/own.py writes them
    node_type: str = ""
    able: bool = True  # whether the image's suite runs own checks
    # {code: why} of checks whose step could not be started, or ended without a word
    lost: Mapping[str, str] | None = None


def make_own_rows(
    code: str, check: OwnCheck, expected: int, evidence: OwnEvidence
) -> list[dict[str, Any]]:
    """Return the rows of CHECK, whose code is CODE: one a node, or one of all ranks.

    EXPECTED processes should have left a document; a missing one is an ERROR.
    """
    mine = [one for one in evidence.documents if one.get("own") == code and "rank" in one]
    mine.sort(key=lambda one: int(one["rank"]))
    lost = (evidence.lost or {}).get(code, "")
    if not mine and not lost and not evidence.able:
        return [_make_row(code, check, "all nodes", "SKIP", evidence=TOO_OLD)]

    failed = [one for one in mine if one.get("failed")]
    skipped = [one for one in mine if "skip" in one]
    rows: list[dict[str, Any]] = []
    if check.on == "nodes":
        rows = [judge_process(code, check, [one], evidence.node_type) for one in mine]
    elif failed or skipped or len(mine) >= expected > 0:
        rows = [judge_process(code, check, mine, evidence.node_type)]

    silent = expected - len(mine)
    if silent > 0 and not (rows and check.on != "nodes"):
        unit = "node" if check.on == "nodes" else "rank"
        said = f"{silent} of {format_count(expected, unit)} left no result"
        rows.append(
            _make_row(
                code,
                check,
                "?",
                "ERROR",
                measured=said,
                evidence=lost,
                remedy="read step.log and own-*.log in the run's folder",
            )
        )
    return rows


def judge_process(
    code: str, check: OwnCheck, documents: Sequence[Mapping[str, Any]], node_type: str
) -> dict[str, Any]:
    """Return the row of CHECK for the process of a node, or for those of all ranks together.

    NODE_TYPE says which gates apply. Gates themselves are judged later (`judge_own_gates`), when
    it is known whether figures of these nodes mean anything.
    """
    where = str(documents[0]["where"]) if len(documents) == 1 else ALL_RANKS
    seconds = max(float(one.get("seconds", 0.0)) for one in documents)
    skipped = next((one for one in documents if "skip" in one), None)
    if skipped is not None:
        return _make_row(code, check, where, "SKIP", evidence=str(skipped["skip"]))

    # whoever was ended since another had failed is none of the causes
    failed = [one for one in documents if one.get("failed")]
    causes = [one for one in failed if one["ending"] != own.AFTER_ANOTHER] or failed
    output = "\n".join(str(one.get("output", "")) for one in documents)
    cut = sum(int(one.get("cut", 0)) for one in documents)
    if causes:
        first = min(causes, key=lambda one: float(one.get("ended", 0.0)))
        started = first["ending"] not in (own.NOT_STARTED, own.NOT_MET, own.WITH_THE_RUN)
        return _make_row(
            code,
            check,
            str(first["where"]),
            "FAIL" if started else "ERROR",
            seconds=seconds,
            measured=_describe_end(first, check),
            expected="exit status 0",
            evidence=_show_last_lines(str(first.get("output", ""))) or str(first["detail"]),
            remedy=f"read own-{code}-{first['rank']}.log in the run's folder",
        )

    try:
        wrong = "; ".join(_list_wrong(check, output))
        figures, missing = _read_figures(check, output)
    except TimeoutError as error:
        remedy = "write the pattern so that it cannot match the same text in many ways"
        return _make_row(code, check, where, "ERROR", measured=str(error), remedy=remedy)
    wrong = "; ".join(filter(None, (wrong, *missing)))
    if wrong and cut:
        wrong += f"; {cut} bytes of its output were not kept"
    elif cut and _needs_all(check):
        unknown = f"UNKNOWN: {cut} bytes in the middle of its output were not kept; print less"
        return _make_row(code, check, where, "SKIP", seconds=seconds, evidence=unknown)
    described = ", ".join(
        f"{name} {figures[check.name_figure(name)]:g} {figure.unit}".strip()
        for name, figure in check.figures.items()
        if check.name_figure(name) in figures
    )
    gates = {
        check.name_figure(name): gate
        for name, figure in check.figures.items()
        if (gate := figure.gate_on(node_type)) is not None
    }
    return _make_row(
        code,
        check,
        where,
        "FAIL" if wrong else "PASS",
        seconds=seconds,
        measured=wrong or described or "exit status 0",
        expected="; ".join(_list_expected(check, node_type)),
        evidence=_show_last_lines(output) if wrong else "",
        remedy=f"read own-{code}-*.log in the run's folder" if wrong else "",
        figures=figures,
        better={check.name_figure(name): one.better for name, one in check.figures.items()},
        gates=gates,
    )


def _needs_all(check: OwnCheck) -> bool:
    """Whether CHECK can be judged by the whole output alone."""
    takes = {figure.take for figure in check.figures.values()}
    return bool(check.forbid or takes & {"mean", "highest", "lowest"})


def _list_expected(check: OwnCheck, node_type: str) -> Iterator[str]:
    """Yield what CHECK expects, and which figure has no gate on NODE_TYPE though others have."""
    for pattern in check.expect:
        yield f"'{pattern}' is printed"
    for name, figure in check.figures.items():
        if isinstance(figure.gate, dict) and node_type not in figure.gate:
            yield f"no gate of {name} for node type {node_type or '(unknown)'}"


def _make_row(code: str, check: OwnCheck, where: str, status: str, **more: Any) -> dict[str, Any]:
    """Return a row as the suite's checks leave it, marked with the definition of CHECK."""
    source = f"the own check {check.name} of the {_name_owner(code)}"
    versions = {DEFINITION: check.digest()}
    row = {"code": code, "where": where, "status": status, "source": source, "versions": versions}
    return {**row, **more}


def _name_owner(code: str) -> str:
    return "site" if code.startswith(f"{OF_SITE}.") else "recipe"


def _describe_end(document: Mapping[str, Any], check: OwnCheck) -> str:
    """Return how the failed process of DOCUMENT has ended."""
    ending, status = document["ending"], int(document["status"])
    if ending == own.AT_TIME_LIMIT:
        return f"ended after {check.time_limit} s, its time limit"
    if ending == own.NOT_STARTED:
        return "the command cannot be started"
    if ending == own.NOT_MET:
        return "its node did not reach the first node"
    if ending == own.WITH_THE_RUN:
        return "ended with the run"
    if ending == own.AFTER_ANOTHER:
        return "ended, as another rank had failed"
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(status - 128).name}"
    return f"exit status {status}"


def _show_last_lines(output: str) -> str:
    """Return the last lines of OUTPUT that are not blank, for a report."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-LINES_SHOWN:])[-LETTERS_SHOWN:]


def _list_wrong(check: OwnCheck, output: str) -> Iterator[str]:
    """Yield what OUTPUT lacks or has against the patterns of CHECK."""
    for pattern in check.expect:
        if not find_all(pattern, output, most=1):
            yield f"'{pattern}' is not printed"
    for pattern in check.forbid:
        found = find_all(pattern, output, most=1)
        if found:
            yield f"printed: {found[0][0].strip()[:80]!r}, which '{pattern}' forbids"


def _read_figures(check: OwnCheck, output: str) -> tuple[dict[str, float], list[str]]:
    """Return ({name with its unit: value} of the figures of CHECK in OUTPUT, what is missing)."""
    figures: dict[str, float] = {}
    missing = []
    for name, figure in check.figures.items():
        matches = find_all(figure.pattern, output)
        texts = [_pick_number(match) for match in matches]
        values = [value for value in map(_read_number, texts) if value is not None]
        if len(values) < len(texts):
            wrong = next(text for text in texts if _read_number(text) is None)
            missing.append(f"{name} is {wrong[:40]!r}, which is no number")
        elif any(_is_cut(match) for match in matches):
            missing.append(f"{name}: its pattern takes a part of a number, such as 1.3 of 1.3e+12")
        elif not values:
            missing.append(f"no {name}: '{figure.pattern}' is not printed")
        else:
            figures[check.name_figure(name)] = _take(values, figure.take)
    return figures, missing


def _pick_number(match: re.Match[str]) -> str:
    """Return the text of the group of MATCH that is the figure; empty where it took no part."""
    group: str | int = "value" if "value" in match.re.groupindex else 1
    return match[group] or ""


def _is_cut(match: re.Match[str]) -> bool:
    """Whether more of the number follows what MATCH has of it."""
    group: str | int = "value" if "value" in match.re.groupindex else 1
    rest = match.string[match.end(group) : match.end(group) + 4]
    return bool(match[group] and MORE_OF_NUMBER.match(rest))


def _read_number(text: str) -> float | None:
    """Return the finite number that TEXT is; None where it is none.

    Commas may stand between groups of three digits, and nowhere else.
    """
    if THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if is_number(value) else None


def _take(values: list[float], how: str) -> float:
    """Return the one of VALUES that counts."""
    if how == "mean":
        return statistics.fmean(values)
    if how == "highest":
        return max(values)
    if how == "lowest":
        return min(values)
    return values[0] if how == "first" else values[-1]


def find_all(pattern: str, text: str, *, most: int = 0) -> list[re.Match[str]]:
    """Return the places of TEXT where PATTERN is found; at most MOST, where that is not 0.

    TimeoutError where that takes more than PATTERN_S seconds. (Python's `re` looks at signals; they
    reach the main thread alone.)
    """
    found: list[re.Match[str]] = []
    with _limit_time(PATTERN_S, f"the pattern '{pattern}' took more than {PATTERN_S:g} s"):
        for match in re.finditer(pattern, text, re.MULTILINE):
            found.append(match)
            if len(found) == most:
                break
    return found


@contextlib.contextmanager
def _limit_time(seconds: float, message: str) -> Iterator[None]:
    """Raise TimeoutError with MESSAGE where what is done inside takes more than SECONDS."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(message)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
