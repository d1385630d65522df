"""Plots as SVG: lines, with their gate drawn in, and matrices as heat maps.

Each plot has its numbers as a table below it.

Tested in tests/unit/report/test_report_forms.py.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 640, 300  # of a plot
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 16, 44  # its margins; the legend is at the right
# Okabe and Ito's colours, which the colour-blind can tell apart; each line has its own dashes, too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4", "4 1")


def format_bytes(value: float) -> str:
    """Return VALUE bytes in binary units, as message sizes are written: 8 B, 64 KiB, 256 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:g} {unit}"
        value /= 1024
    return ""


def choose_ticks(least: float, most: float, count: int = 5) -> list[float]:
    """Return round numbers from LEAST to MOST, about COUNT of them."""
    if most <= least:
        return [least]
    step = 10 ** math.floor(math.log10((most - least) / count))
    step *= next(factor for factor in (1, 2, 5, 10) if (most - least) / (step * factor) <= count)
    first = math.ceil(least / step) * step
    out = []
    while first <= most + step * 1e-9:
        out.append(round(first, 10))
        first += step
    return out


class Axes:
    """The axes of a plot: where a value lies in the picture. That of bytes is logarithmic."""

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        """Choose axes on which all LINES, their ideals and their gates have room."""
        xs = [float(x) for line in lines for x in line["x"]] or [0.0]
        ys: list[float] = []
        for line in lines:
            ys += map(float, (*line["y"], *line.get("ideal", ()), *_list_gate(line)))
        ys = ys or [0.0]

        self.unit = lines[0].get("x_unit", "")
        self.log = self.unit == "bytes" and min(xs) > 0
        self.x0 = min(map(self._scale, xs))
        self.x1 = max(map(self._scale, xs))
        self.y0 = min(0.0, *ys)
        self.y1 = max(ys) * 1.08 or 1.0
        self.xs = sorted(set(xs))

    def _scale(self, value: float) -> float:
        return math.log2(value) if self.log else value

    def x(self, value: float) -> float:
        """Return the place of VALUE from the left."""
        share = 0.5
        if self.x1 > self.x0:
            share = (self._scale(value) - self.x0) / (self.x1 - self.x0)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Return the place of VALUE from the top."""
        span = self.y1 - self.y0 or 1.0
        share = (value - self.y0) / span
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def _list_gate(line: dict[str, Any]) -> tuple[float, ...]:
    """Return the gate of LINE, if it has one."""
    return (float(line["gate"]),) if line.get("gate") else ()


def draw_lines(title: str, series: Sequence[dict[str, Any]]) -> str:
    """Return a figure of all lines of SERIES, and a table of the same numbers."""
    axes = Axes(series)
    parts = [_draw_grid(axes, series[0])]
    for number, line in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        dash = DASHES[number % len(DASHES)]
        marks = len(line["x"]) <= 24
        parts.append(_draw_line(axes, line["x"], line["y"], colour, dash, marks=marks))
        if line.get("ideal"):
            parts.append(_draw_line(axes, line["x"], line["ideal"], "#888", "2 4", marks=False))

        # the legend
        top = TOP + 14 + 16 * number
        parts.append(
            f'<line x1="{WIDTH - RIGHT + 8}" x2="{WIDTH - RIGHT + 30}" y1="{top - 4}" '
            f'y2="{top - 4}" stroke="{colour}" '
            f'stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        parts.append(
            f'<text x="{WIDTH - RIGHT + 34}" y="{top}">{escape(str(line["name"])[:22])}</text>'
        )

    gates = sorted({gate for line in series for gate in _list_gate(line)})
    for gate in gates:
        y = axes.y(gate)
        parts.append(
            f'<line class="gate" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text x="{WIDTH - RIGHT + 4}" y="{y + 4}">gate {gate:g}</text>'
        )

    # for who does not see the picture
    said = "; ".join(
        f"{line['name']}: {min(line['y']):g} to {max(line['y']):g} {line.get('y_unit', '')}"
        for line in series
        if line["y"]
    )
    return _make_figure(title, said, "".join(parts), draw_table(series))


def _draw_grid(axes: Axes, first: dict[str, Any]) -> str:
    """Return the grid of AXES with its numbers; the units are those of the FIRST line."""
    parts = []
    for value in choose_ticks(axes.y0, axes.y1):
        y = axes.y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text class="end" x="{LEFT - 6}" y="{y + 4}">{value:g}</text>'
        )

    shown = axes.xs
    if len(axes.xs) > 8:
        shown = axes.xs[::2] if axes.log else choose_ticks(axes.xs[0], axes.xs[-1])
    for value in shown:
        label = format_bytes(value) if axes.unit == "bytes" else f"{value:g}"
        parts.append(
            f'<text class="middle" x="{axes.x(value)}" y="{HEIGHT - BOTTOM + 16}">{label}</text>'
        )

    bottom = HEIGHT - BOTTOM
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="middle" x="{middle}" '
        f'y="{HEIGHT - 6}">{escape(str(first.get("x_unit", "")))}</text>'
    )
    parts.append(
        f'<text class="middle" transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)">'
        f"{escape(str(first.get('y_unit', '')))}</text>"
    )
    return "".join(parts)


def _draw_line(
    axes: Axes, xs: Sequence[float], ys: Sequence[float], colour: str, dash: str, *, marks: bool
) -> str:
    """Return a line through the points of XS and YS. MARKS: with a dot at each of them."""
    points = [(axes.x(float(x)), axes.y(float(y))) for x, y in zip(xs, ys, strict=False)]
    path = " ".join(f"{x},{y}" for x, y in points)
    out = (
        f'<polyline fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" '
        f'points="{path}"/>'
    )
    if marks:
        out += "".join(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in points)
    return out


def draw_table(series: Sequence[dict[str, Any]]) -> str:
    """Return the numbers of all lines of SERIES as an HTML table, with a row for each x."""
    xs = sorted({float(x) for line in series for x in line["x"]})
    unit = series[0].get("x_unit", "")
    head = "".join(
        f'<th scope="col">{escape(str(line["name"]))} ({escape(str(line.get("y_unit", "")))})</th>'
        for line in series
    )
    rows = []
    for x in xs:
        cells = []
        for line in series:
            known = {float(one): y for one, y in zip(line["x"], line["y"], strict=False)}
            cells.append(f"<td>{known[x]:g}</td>" if x in known else "<td></td>")
        label = format_bytes(x) if unit == "bytes" else f"{x:g}"
        rows.append(f'<tr><th scope="row">{label}</th>{"".join(cells)}</tr>')
    return (
        f"<table><thead><tr><th "
        f'scope="col">{escape(unit)}</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def draw_matrix(title: str, one: dict[str, Any]) -> str:
    """Return a heat map of the matrix ONE; darker is more. Cells that have room show their number."""
    labels = [str(label) for label in one["labels"]]
    values = one["values"]
    numbers = [
        value for row in values for value in row if isinstance(value, (int, float)) and value
    ]
    most = max(numbers, default=1.0)
    least = min(numbers, default=0.0)
    size = max(26, min(64, 480 // max(1, len(labels))))  # of a cell
    left, top = 110, 28  # margins, for the labels
    parts = []
    for r, row in enumerate(values):
        parts.append(
            f'<text class="end" x="{left - 6}" '
            f'y="{top + r * size + size / 2 + 4}">{escape(labels[r][:16])}</text>'
        )
        parts.append(
            f'<text class="middle" x="{left + r * size + size / 2}" '
            f'y="{top - 8}">{escape(labels[r][-6:])}</text>'
        )
        for c, value in enumerate(row):
            share = 0.0
            fill = "#f4f4f4"
            text = ""
            if value:
                share = (value - least) / (most - least) if most > least else 1.0
                fill = f"hsl(210 70% {92 - 55 * share:.0f}%)"
                text = f"{value:.3g}"
            x = left + c * size
            y = top + r * size
            parts.append(
                f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{fill}" '
                f'stroke="#fff"/>'
            )
            if size >= 36:
                ink = "#fff" if share > 0.55 else "#111"
                parts.append(
                    f'<text class="middle" x="{x + size / 2}" y="{y + size / 2 + 4}" '
                    f'fill="{ink}">{text}</text>'
                )

    width = left + size * len(labels) + 20
    height = top + size * len(labels) + 10
    said = f"{least:g} to {most:g} {one.get('y_unit', '')}"
    return _make_figure(title, said, "".join(parts), draw_words(one), width, height)


def draw_words(one: dict[str, Any]) -> str:
    """Return the matrix ONE, of numbers or words, as an HTML table."""
    labels = [escape(str(label)) for label in one["labels"]]
    head = "".join(f'<th scope="col">{label}</th>' for label in labels)
    rows = []
    for label, row in zip(labels, one["values"], strict=True):
        cells = "".join(f"<td>{escape(str(value)) if value else ''}</td>" for value in row)
        rows.append(f'<tr><th scope="row">{label}</th>{cells}</tr>')
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _make_figure(
    title: str, said: str, inside: str, data: str, width: float = WIDTH, height: float = HEIGHT
) -> str:
    """Return a figure with INSIDE as its SVG, and the table DATA folded away below it.

    SAID tells what is in the picture, for a screen reader.
    """
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" '
        f'role="img" aria-label="{escape(title)}: '
        f'{escape(said)}"><title>{escape(title)}</title><desc>{escape(said)}</desc>{inside}</svg>'
        f"<details><summary>the numbers</summary>{data}</details></figure>"
    )
