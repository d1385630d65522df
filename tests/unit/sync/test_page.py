"""The report of a sync: a page, Markdown, JSON and its exit code say the same; no text of others
becomes markup.
"""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import BuildError
from hpcstack.sync.page import render_sync_markdown, render_sync_page
from hpcstack.sync.plan import NamePlan, SyncStep, VersionPlan
from hpcstack.sync.result import (
    Deed,
    NameResult,
    SyncResult,
    list_sync_rows,
    make_document,
    make_failure,
    summarise_result,
)

BUILD = SyncStep("build", "demo-25.10", "it is not built", "25.10")
TEST = SyncStep("test", "demo-25.10", "its image is new", "25.10", "dgx")


def make_result(**more: Any) -> SyncResult:
    versions = (
        VersionPlan("25.09", "done", "in production as 25.09-r2"),
        VersionPlan("25.10", "todo", "it is not built", (BUILD, TEST)),
        VersionPlan("25.11", "held", "somebody took it back"),
    )
    name = NameResult("demo", Path("demo.yaml"), NamePlan("demo", versions), more.pop("deeds", []))
    values = {"dry_run": True, "names": [name], **more}
    return SyncResult("here", Path("releases"), "2027-01-31 06:00 UTC", "abc123", **values)


def test_all_forms_say_the_same() -> None:
    result = make_result(undeclared=["mine"])
    page, markdown = render_sync_page(result), render_sync_markdown(result)
    for row in list_sync_rows(result):
        assert all(part in page for part in row.cells)
        assert all(part in markdown for part in row.cells)
    assert "mine" in page
    assert summarise_result(result) == "1 HELD, 1 to do, 1 as declared"
    document = make_document(result)
    assert [one["status"] for one in document["names"][0]["versions"]] == ["done", "todo", "held"]
    assert (result.exit_code, result.differs) == (1, True)


def test_a_failure_decides() -> None:
    error = BuildError("no space left\n  in /tmp", "its log: x")
    result = make_result(deeds=[Deed(TEST, "PASS"), make_failure(BUILD, error)], dry_run=False)
    assert result.exit_code == error.exit_code == 4
    (row,) = [one for one in list_sync_rows(result) if one.subject == "demo/25.10"]
    assert row.cells[1:] == ("FAILED", "build: no space left in /tmp")
    assert "its log: x" in render_sync_page(result)
    assert make_document(result)["names"][0]["failed"][0]["exit_code"] == 4


def test_a_wait_hides_no_failure() -> None:
    plan = NamePlan("demo", (VersionPlan("25.10", "failed", "x is FAIL on gh200"),))
    name = NameResult("demo", Path("demo.yaml"), plan, waiting={"25.10": "no nodes on dgx"})
    (row,) = list_sync_rows(make_result(names=[name]))
    assert row.cells == ("demo/25.10", "FAILED", "x is FAIL on gh200")
    waits = replace(plan, versions=(VersionPlan("25.10", "todo", ""),))
    (row,) = list_sync_rows(make_result(names=[replace(name, plan=waits)]))
    assert row.cells == ("demo/25.10", "waits", "no nodes on dgx")


def test_all_is_well() -> None:
    plan = NamePlan("demo", (VersionPlan("25.09", "done", ""), VersionPlan("25.10", "waits", "")))
    result = make_result(names=[NameResult("demo", Path("demo.yaml"), plan)])
    assert (result.exit_code, result.differs) == (0, False)
    pruning = SyncStep("prune", "releases", "declared")
    result.prune_failure = make_failure(pruning, BuildError("no"))
    assert result.exit_code == 4


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") for name, _ in attrs)
        self.tags.append(tag)


@given(st.text(alphabet=st.sampled_from("<>&\"'`|\n{}%$ script/x="), max_size=40))
def test_no_text_becomes_markup(text: str) -> None:
    plan = NamePlan("demo", (VersionPlan("25.10", "failed", text),), notes=(("failed", text),))
    deed = Deed(SyncStep("build", "demo-25.10", text, "25.10"), text, text, 4)
    name = NameResult("demo", Path("demo.yaml"), plan, [deed, Deed(TEST, text)])
    result = make_result(names=[name])
    tags = Tags()
    tags.feed(render_sync_page(result))
    assert "script" not in tags.tags
    for line in render_sync_markdown(result).splitlines():
        if line.startswith("| `demo"):
            assert line.count("`") % 2 == 0
