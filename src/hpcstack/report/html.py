"""A report as one HTML page that needs nothing else. Pure.

There is no script and nothing is fetched. The page can be printed, and read by a screen reader.

Tested in tests/unit/report/test_report_forms.py.
"""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from hpcstack.core.hosts import shorten_hosts
from hpcstack.report import plots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.report.model import Outcome, Report

SIGNS = {"PASS": "✓", "FAIL": "✗", "ERROR": "‼", "WARN": "!", "SKIP": "–"}
STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--back:#fff;--pass:#116329;--fail:#a40e26;--warn:#7d4e00}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b1;--line:#3d444d;--back:#0d1117;--pass:#56d364;--fail:#ff7b72;--warn:#e3b341}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:80rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;font-size:.92em;margin:.5rem 0}th,td{text-align:left;vertical-align:top;padding:.25rem .7rem .25rem 0;
border-bottom:1px solid var(--line)}thead th{color:var(--soft);font-weight:600}td.num{text-align:right;font-variant-numeric:tabular-nums}
.PASS{color:var(--pass)}.FAIL,.ERROR{color:var(--fail);font-weight:700}.WARN{color:var(--warn);font-weight:700}.SKIP{color:var(--soft)}
.verdict{font-size:1.3rem;font-weight:700;margin:.5rem 0}.note{border-left:4px solid var(--warn);padding:.3rem .8rem;margin:.4rem 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.3rem 0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
figure{margin:1rem 0;break-inside:avoid}figcaption{font-weight:600}svg{max-width:100%;height:auto;font:12px system-ui,sans-serif}
svg text{fill:var(--ink)}svg text[fill]{fill:revert-layer}.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--line)}.axis{fill:none;stroke:var(--soft)}.gate{stroke:#a40e26;stroke-width:2;stroke-dasharray:5 4}
details{margin:.3rem 0}summary{cursor:pointer;color:var(--soft)}code{font-size:.95em;overflow-wrap:anywhere}
.wide{overflow-x:auto}.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(30rem,1fr));gap:0 1.5rem}
@media print{body{margin:0;max-width:none;font-size:10pt}details>*{display:block}a{color:inherit}h2{break-after:avoid}tr{break-inside:avoid}}
"""


class PastRun(Protocol):
    """An earlier run, as far as it is drawn."""

    @property
    def started(self) -> str: ...

    @property
    def drawn(self) -> Mapping[str, float]:
        """{code/name: value} of its figures."""
        ...


def render_html(report: Report, history: Sequence[PastRun] = ()) -> str:
    """Return the page of REPORT. HISTORY, earlier runs of the same stack, is drawn."""
    verdict = report.verdict()
    stack = escape(report.stack)
    parts = [
        "<!doctype html>\n",
        f'<html lang="en"><head><meta charset="utf-8"><title>{stack}: {verdict}</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{STYLE}</style></head><body><main>",
        f"<h1>{stack}</h1>",
        f'<p class="verdict {verdict}">{SIGNS[verdict]} {verdict}: {_count_statuses(report)}</p>',
        *(f'<p class="note" role="note">{escape(caveat)}</p>' for caveat in report.caveats()),
        _render_facts(report),
        _render_bad(report),
        _render_checks(report),
        _render_plots(report),
        _render_history(history),
        _render_inventory(report),
        "</main></body></html>\n",
    ]
    return "".join(parts)


def _count_statuses(report: Report) -> str:
    """Return how many checks have each status, in words."""
    counts = report.counts()
    tally = ", ".join(f"{counts[status]} {status}" for status in SIGNS if counts[status])
    return tally or "no check ran"


def _render_pairs(values: dict[str, str]) -> str:
    """Return a list of names and VALUES, without those that are empty."""
    pairs = [
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
        for name, value in values.items()
        if value
    ]
    return f"<dl>{''.join(pairs)}</dl>"


def _render_facts(report: Report) -> str:
    """Return what was tested, where, and when."""
    return _render_pairs(
        {
            "image": f"sha256:{report.image_sha256}",
            "suite": report.suite_name,
            "tier": report.tier,
            "runtime": report.runtime,
            "nodes": f"{len(report.nodes)}: {shorten_hosts(report.nodes)}",
            "ranks": f"{report.world_size}, {report.backend or 'no'} backend",
            "started": report.started,
            "took": f"{report.seconds:.0f} s",
        }
    )


def _render_bad(report: Report) -> str:
    """Return the section on the checks that went wrong; empty where none did."""
    bad = [one for one in report.outcomes if one.status in ("FAIL", "ERROR", "WARN")]
    if not bad:
        return ""
    details = "".join(map(_render_details, bad))
    return f'<section aria-labelledby="bad"><h2 id="bad">What to look at</h2>{details}</section>'


def _render_details(one: Outcome) -> str:
    """Return all that one outcome has to say."""
    expected = f"{one.expected} ({one.source})" if one.source else one.expected
    values = {
        "measured": one.measured,
        "expected": expected,
        "on": ", ".join(one.where),
        "seen": one.evidence,
        "remedy": one.remedy,
    }
    return (
        f'<h3><span class="{one.status}">{SIGNS[one.status]} {one.status}</span> '
        f"<code>{escape(one.code)}</code></h3>{_render_pairs(values)}"
    )


def _render_checks(report: Report) -> str:
    """Return the table of all checks, by family."""
    rows = []
    for family, group in groupby(report.outcomes, lambda one: one.family):
        rows.append(f'<tr><th scope="rowgroup" colspan="4">{escape(family)}</th></tr>')
        for one in group:
            measured = escape(one.measured or one.evidence) + _render_note(one)
            rows.append(
                f'<tr><td class="{one.status}">{SIGNS[one.status]} {one.status}</td>'
                f"<td><code>{escape(one.code)}</code></td><td>{measured}</td>"
                f'<td class="num">{one.seconds:.1f} s</td></tr>'
            )
    columns = ("status", "check", "measured", "took")
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return (
        f'<section aria-labelledby="checks"><h2 id="checks">Checks</h2><div '
        f'class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _render_note(one: Outcome) -> str:
    """Return a mark for figures that are informational: no gate judges them."""
    if one.informational and one.figures:
        return ' <span class="SKIP">(not judged)</span>'
    return ""


def _render_plots(report: Report) -> str:
    """Return the plots of all checks: one for the lines of the same units, one for each matrix."""
    figures = []
    for one in report.outcomes:
        title = f"{one.code} (informational)" if one.informational else one.code
        lines = [line for line in one.series if "kind" not in line and len(line.get("x", ())) > 1]
        for _, group in groupby(lines, lambda line: (line.get("x_unit"), line.get("y_unit"))):
            figures.append(plots.draw_lines(title, list(group)))
        for other in one.series:
            if other.get("kind") == "matrix":
                figures.append(plots.draw_matrix(f"{title}: {other['name']}", other))
            elif other.get("kind") == "words":
                figures.append(
                    f"<figure><figcaption>{escape(one.code)}: "
                    f"{escape(other['name'])}</figcaption>{plots.draw_words(other)}</figure>"
                )
    if not figures:
        return ""
    return (
        f'<section aria-labelledby="plots"><h2 id="plots">Figures</h2><div '
        f'class="figures">{"".join(figures)}</div></section>'
    )


MOST_LINES = 6  # in a plot of the history


def _render_history(pasts: Sequence[PastRun]) -> str:
    """Return a plot for each check of the figures that earlier runs had, from the oldest on."""
    if len(pasts) < 2:
        return ""

    names = sorted({name for past in pasts for name in past.drawn})
    drawn = []
    for code, group in groupby(names, lambda name: name.partition("/")[0]):
        lines = []
        for name in list(group)[:MOST_LINES]:
            runs = [number for number, past in enumerate(pasts, 1) if name in past.drawn]
            if len(runs) < 2:
                continue
            short = name.partition("/")[2]
            line = {
                "name": short,
                "x": runs,
                "y": [past.drawn[name] for past in pasts if name in past.drawn],
                "x_unit": "run",
                "y_unit": short.rpartition("_")[2],
            }
            lines.append(line)
        if lines:
            drawn.append(plots.draw_lines(f"{code} over {len(pasts)} runs", lines))

    first = escape(pasts[0].started)
    last = escape(pasts[-1].started)
    return (
        f'<section aria-labelledby="history"><h2 id="history">History</h2>'
        f"<p>{len(pasts)} runs from {first} to {last}, counted from the oldest.</p>"
        f'<div class="figures">{"".join(drawn)}</div></section>'
    )


def _render_inventory(report: Report) -> str:
    """Return a table of what each node is made of."""
    if not report.inventory:
        return ""
    names = list(dict.fromkeys(name for node in report.inventory.values() for name in node))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("node", *names))
    rows = []
    for host, node in sorted(report.inventory.items()):
        cells = "".join(f"<td>{escape(str(node.get(name, '')))}</td>" for name in names)
        rows.append(f'<tr><th scope="row">{escape(host)}</th>{cells}</tr>')
    return (
        f'<section aria-labelledby="nodes"><h2 id="nodes">Nodes</h2><div '
        f'class="wide"><table><thead><tr>{head}</tr></thead><tbody>'
        f"{''.join(rows)}</tbody></table></div></section>"
    )
