"""The pictures of the documentation: SVG with text as text, readable on light and dark pages.

`make_pictures()` gives {file name: SVG}. ci/pictures writes them into docs/pictures; git keeps them,
so that README shows them on a git forge.
"""

from __future__ import annotations

import ast
import pickle
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from example_pages import draw_catalogue, draw_report
from placeholders import with_placeholders

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/pictures"
STYLE = """
svg{font:14px system-ui,sans-serif}
.page{fill:#ffffff}.box{fill:#f3f6fa;stroke:#7d8793}.step{fill:#e7f0fb;stroke:#2f6fb2}
.bad{fill:#fbe4e2;stroke:#b3261e}.ink{fill:#1b1f24}.soft{fill:#57606a}.line{stroke:#57606a;fill:none}
.bold{font-weight:600}.mono{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}
.pass{fill:#116329}.skip{fill:#57606a}.warn{fill:#7d4e00}.fail{fill:#a40e26}
@media(prefers-color-scheme:dark){
.page{fill:#14171c}.box{fill:#20262e;stroke:#8b949e}.step{fill:#17304a;stroke:#6cb0f2}
.bad{fill:#4a1d1b;stroke:#ff8a80}.ink{fill:#e6edf3}.soft{fill:#9da7b1}.line{stroke:#9da7b1}
.pass{fill:#56d364}.skip{fill:#9da7b1}.warn{fill:#e3b341}.fail{fill:#ff7b72}}
"""


@dataclass
class Drawing:
    """An SVG of WIDTH by HEIGHT that is being drawn; TITLE is read out in place of it."""

    width: int
    height: int
    title: str

    def __post_init__(self) -> None:
        self.parts: list[str] = []

    def box(self, x: int, y: int, width: int, height: int, kind: str = "box") -> None:
        shape = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="6"'
        self.parts.append(f'<rect class="{kind}" {shape}/>')

    def text(self, x: int, y: int, text: str, kind: str = "ink", anchor: str = "start") -> None:
        where = f'x="{x}" y="{y}" text-anchor="{anchor}"'
        self.parts.append(f'<text class="{kind}" {where}>{escape(text, quote=False)}</text>')

    def arrow(self, points: Sequence[tuple[int, int]]) -> None:
        path = " ".join(f"{x},{y}" for x, y in points)
        self.parts.append(f'<polyline class="line" points="{path}" marker-end="url(#end)"/>')

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">'
        )
        arrowhead = (
            '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path class="soft" d="M0,0 L8,4 L0,8 z"/></marker>'
            "</defs>"
        )
        page = f'<rect class="page" width="{self.width}" height="{self.height}" rx="8"/>'
        title = f"<title>{escape(self.title, quote=False)}</title>"
        lines = [head, title, f"<style>{STYLE}</style>", arrowhead, page, *self.parts, "</svg>"]
        return "\n".join(lines) + "\n"


# -- the chain

STEPS = (
    ("spec", "what: a recipe", "where: site.yaml"),
    ("lock", "base by digest,", "packages by hash"),
    ("render", "Apptainer, Docker,", "Enroot, modules"),
    ("build", "one image.sqsh", "for all runtimes"),
    ("publish", "a release,", "a module, an alias"),
    ("launch", "srun in the image,", "on N nodes"),
    ("test", "the suite,", "on every rank"),
    ("report", "PASS, FAIL, WARN,", "SKIP, ERROR"),
)


def draw_chain() -> str:
    """The eight steps, four in a row."""
    width, height, gap, left, top = 168, 92, 40, 20, 20
    title = "The chain: spec, lock, render, build, publish, launch, test, report"
    drawing = Drawing(2 * left + 4 * width + 3 * gap, 2 * top + 2 * height + 44, title)
    for number, (name, *about) in enumerate(STEPS):
        row, column = divmod(number, 4)
        x, y = left + column * (width + gap), top + row * (height + 44)
        drawing.box(x, y, width, height, "step")
        middle = x + width // 2
        drawing.text(middle, y + 30, name, "ink bold", "middle")
        for line, text in enumerate(about):
            drawing.text(middle, y + 54 + 20 * line, text, "soft", "middle")
        if column < 3:
            drawing.arrow([(x + width, y + height // 2), (x + width + gap - 2, y + height // 2)])
        elif row == 0:
            below, first = y + height + 22, left + width // 2
            drawing.arrow(
                [(middle, y + height), (middle, below), (first, below), (first, below + 20)]
            )
    return drawing.svg()


# -- the rooms


def read_rooms() -> list[str]:
    """The rooms of src/hpcstack, low to high, as tests/unit/test_imports.py holds them."""
    for node in ast.parse((ROOT / "tests/unit/test_imports.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS":
            return list(ast.literal_eval(node.value))
    raise ValueError("tests/unit/test_imports.py names no ROOMS")


def read_purposes() -> dict[str, str]:
    """{room: what it is for}, by the table of docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| ((?:`[a-z]+`(?:, )?)+) \| (.+) \|$", text, re.MULTILINE)
    return {
        name: re.sub(r"[`*]", "", about)
        for names, about in rows
        for name in re.findall(r"`([a-z]+)`", names)
    }


def shorten(text: str, most: int = 92) -> str:
    """TEXT, cut where a part of it ends if it is longer than MOST."""
    parts = re.split(r"(?=[;:,] | \()", text)
    while len("".join(parts)) > most and len(parts) > 1:
        parts.pop()
    return "".join(parts)


def draw_rooms() -> str:
    """One row a room, the highest first: each imports only those below it."""
    rooms, purposes = read_rooms(), read_purposes()
    row, left, name_width, about_width = 32, 44, 120, 680
    height = row * len(rooms) + 50
    drawing = Drawing(
        left + name_width + about_width + 20, height, "The packages, from the highest to the lowest"
    )
    for number, name in enumerate(reversed(rooms)):
        y = 16 + row * number
        drawing.box(left, y, name_width + about_width, row - 6)
        drawing.text(left + 12, y + 18, name, "ink bold")
        drawing.text(left + name_width, y + 18, shorten(purposes[name]), "soft")
    bottom = 16 + row * len(rooms)
    drawing.arrow([(22, 16), (22, bottom - 8)])
    drawing.text(left, bottom + 16, "A file imports its own package and those below it.", "soft")
    return drawing.svg()


# -- sessions on a terminal

CONSOLE = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
KINDS = {"PASS": "pass", "SKIP": "skip", "WARN": "warn", "NOTE": "warn", "FAIL": "fail"}
SESSIONS = {
    "build": ("hpcstack lock", "hpcstack build"),
    "run": ("hpcstack launch", "hpcstack test"),
}


def draw_session(text: str, title: str) -> str:
    """TEXT as a terminal shows it."""
    lines = text.rstrip().splitlines()
    columns = max(map(len, lines))
    drawing = Drawing(40 + round(columns * 7.9), 40 + 20 * len(lines), title)
    for number, line in enumerate(lines):
        word = line.partition(" ")[0].rstrip(",")
        kind = "bold ink" if line.startswith("$ ") else KINDS.get(word, "ink")
        if line:
            drawing.text(20, 34 + 20 * number, line, f"mono {kind}")
    return drawing.svg()


def draw_sessions() -> dict[str, str]:
    """{file name: picture} of what README's transcript shows."""
    found = CONSOLE.search((ROOT / "README.md").read_text())
    parts = re.split(r"(?m)^(?=\$ )", with_placeholders(found[1]))[1:] if found else []
    out = {}
    for name, verbs in SESSIONS.items():
        shown = [part for part in parts if part[2:].startswith(verbs)]
        out[f"session-{name}.svg"] = draw_session("".join(shown), f"A session: {', '.join(verbs)}")
    return out


# -- a hang

RECORDED = ROOT / "tests/data/flights"  # files of torch's own flight recorder


def read_flight(rank: int) -> list[str]:
    """The collectives that RANK called, in their order: of the fault in which one is left out."""
    document: dict[str, Any] = pickle.loads((RECORDED / f"skips-{rank}").read_bytes())
    return [str(entry["profiling_name"]).rpartition(":")[2] for entry in document["entries"]]


def draw_hang() -> str:
    """A lane a rank, a box a collective; the one that the other ranks do not have is red."""
    lanes = [read_flight(rank) for rank in range(4)]
    width, height, left = 124, 40, 90
    columns = max(map(len, lanes))
    drawing = Drawing(
        left + columns * width + 10,
        70 + len(lanes) * (height + 12),
        "A hang: three ranks wait in all_reduce 5, rank 3 is in a barrier",
    )
    for rank, lane in enumerate(lanes):
        y = 16 + rank * (height + 12)
        drawing.text(20, y + 26, f"rank {rank}", "ink bold")
        for number, name in enumerate(lane):
            others = [other[number] for other in lanes if number < len(other)]
            odd = others.count(name) * 2 < len(lanes)
            x = left + number * width
            drawing.box(x, y, width - 10, height, "bad" if odd else "box")
            shown = f"{name} {number + 1}"
            drawing.text(x + (width - 10) // 2, y + 25, shown, "ink", "middle")
    told = "ROOT: rank 3 is in barrier 5, where the others are in all_reduce 5; 3 ranks wait for it"
    drawing.text(20, 44 + len(lanes) * (height + 12), told, "fail bold")
    return drawing.svg()


def make_pictures() -> dict[str, str]:
    """{file name below docs/pictures: SVG}."""
    return {
        "chain.svg": draw_chain(),
        "rooms.svg": draw_rooms(),
        "hang.svg": draw_hang(),
        "report.svg": draw_report(),
        "catalogue.svg": draw_catalogue(),
        **draw_sessions(),
    }


def find_old_pictures() -> list[str]:
    """The pictures that are missing, not what they would be if they were made now, or no longer
    made.
    """
    made = make_pictures()
    there = {path.name: path.read_text() for path in FOLDER.glob("*.svg")}
    return sorted(name for name in {*made, *there} if made.get(name) != there.get(name))
