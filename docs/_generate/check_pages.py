"""Are the pages readable as they are: lines of at most 100 columns, pages of at most 1,500 words?

    python docs/_generate/check_pages.py      # names each line and page that is too long; exit 1

Excepted are rows of tables, lines that hold one link and nothing else but marks of lists, blocks of
`text` (what a program prints is not ours to wrap), and generated pages. Words are counted without
code blocks and tables. The reference, the lab book and the changelog may be longer than a page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
COLUMNS, WORDS = 100, 1500
LAB_BOOK = ("docs/performance.md", "docs/scale.md")
LONG = ("docs/reference/", "docs/changelog.md", "CHANGELOG.md", *LAB_BOOK)
LINK_ONLY = re.compile(
    r"\s*(?:[-*]\s+|\d+\.\s+)?(?:!?\[[^\]]*\]\([^)\s]+\)|<?https?://\S+>?)[.,;:]?"
)


def list_pages() -> list[Path]:
    """Every page that people write."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in pages if "generated" not in page.parts]


def find_long_lines(text: str) -> Iterator[tuple[int, int]]:
    """(number, columns) of each line of TEXT that is too long."""
    printed = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            printed = line == "```text"
        excepted = printed or line.lstrip().startswith("|") or LINK_ONLY.fullmatch(line)
        if len(line) > COLUMNS and not excepted:
            yield number, len(line)


def count_words(text: str) -> int:
    """The words of TEXT that are read from beginning to end: without code blocks and tables."""
    text = re.sub(r"^(```+).*?^\1$", "", text, flags=re.M | re.S)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    "))]
    return len(" ".join(lines).split())


def main() -> int:
    wrong = []
    for page in list_pages():
        name, text = page.relative_to(ROOT).as_posix(), page.read_text()
        wrong += [
            f"{name}:{number}: {columns} columns, at most {COLUMNS}"
            for number, columns in find_long_lines(text)
        ]
        words = count_words(text)
        if words > WORDS and not name.startswith(LONG):
            wrong.append(f"{name}: {words} words, at most {WORDS}: split it")
    print("\n".join(wrong), end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
