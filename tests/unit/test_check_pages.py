"""ci/docs finds lines and pages that are too long, and lets pass what cannot be shorter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from check_pages import ROOT, count_words, find_long_lines

LONG = "word " * 25


def test_a_long_line_is_found() -> None:
    assert list(find_long_lines(f"short\n{LONG.strip()}\n")) == [(2, 124)]


def test_tables_links_and_output_may_be_long() -> None:
    link = f"https://example.org/{'a' * 100}"
    text = f"| {LONG} |\n- [page]({link})\n<{link}>\n```text\n{LONG}\n```\n"
    assert list(find_long_lines(text)) == []
    assert list(find_long_lines(f"```console\n{LONG}\n```\n"))


def test_words_of_tables_and_code_do_not_count() -> None:
    assert count_words("one two\n\n| three |\n\n```yaml\nfour: 4\n```\n\n    five\n") == 2


@pytest.mark.parametrize("folder", ["tutorials", "how-to"])
def test_an_index_names_every_page_beside_it_once(folder: str) -> None:
    """A git forge shows no list of pages that Sphinx makes."""
    index: Path = ROOT / "docs" / folder / "index.md"
    named = re.findall(r"^- \[.+\]\((.+\.md)\)", index.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in index.parent.glob("*.md") if path != index)
