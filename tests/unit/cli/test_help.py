"""`hpcstack help`, and the pages that refusals name."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import hpcstack
from hpcstack.cli import VERBS, group, main
from hpcstack.cli.help_ import list_topics
from hpcstack.core.data import find_howto_folder
from hpcstack.core.errors import HpcstackError

PACKAGE = Path(hpcstack.__file__).parent


def run(*words: str) -> str:
    done = CliRunner().invoke(group, ["help", *words])
    assert done.exit_code == 0, done.exception
    return done.output


def list_named_pages() -> dict[str, str]:
    """{page: the file that names it}, of all `page=` of refusals and of their classes."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            values: list[ast.expr] = []
            if isinstance(node, ast.keyword) and node.arg == "page":
                values = [node.value]
            elif isinstance(node, ast.ClassDef):
                lines = [line for line in node.body if isinstance(line, ast.Assign)]
                values = [line.value for line in lines if ast.unparse(line.targets[0]) == "page"]
            constants = [part for value in values for part in ast.walk(value)]
            for part in constants:
                text = part.value if isinstance(part, ast.Constant) else ""
                if text and isinstance(text, str):
                    found[text] = str(path)
    return found


def test_every_page_that_a_refusal_names_exists() -> None:
    named = list_named_pages()
    assert len(named) >= 8
    topics = {topic.name for topic in list_topics()}
    assert {page: path for page, path in named.items() if page not in topics} == {}


def test_all_pages_are_listed() -> None:
    pages = {path.stem for path in find_howto_folder().glob("*.md")} - {"index"}
    listed = {line.split()[0] for line in run().splitlines()}
    assert listed == pages
    assert {row["topic"] for row in json.loads(run("--json"))} == pages


def test_a_page_is_found_by_its_name_a_part_of_it_or_what_it_says() -> None:
    page = (find_howto_folder() / "roll-back.md").read_text().rstrip("\n")
    assert run("roll-back").rstrip("\n") == page
    assert run("roll").rstrip("\n") == page
    assert run("four", "gpus").startswith("# Use four GPUs of eight")
    assert json.loads(run("roll-back", "--json"))["page"].rstrip("\n") == page


def test_a_verb_is_helped_as_by_its_own_option() -> None:
    for verb in VERBS:
        own = CliRunner().invoke(group, [verb, "--help"], prog_name="hpcstack")
        assert run(verb).split("\n", 1)[1] == own.output.split("\n", 1)[1], verb


@pytest.mark.parametrize("words", [("squirrel",), ("a",)])
def test_none_or_several_pages_are_named(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(group, ["help", *words])
    assert isinstance(done.exception, HpcstackError)
    assert done.exception.exit_code == 2
    if words == ("a",):
        assert "hpcstack help add-a-pip-package: Add a pip package" in done.exception.message


def test_a_refusal_says_which_page_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch", "pytorch-24.11"])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "  READ: hpcstack help write-a-job-script"
