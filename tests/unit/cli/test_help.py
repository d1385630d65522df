"""`hpcstack help`, and the pages that refusals name."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import hpcstack
from hpcstack.cli import VERBS, doctor_, group, main
from hpcstack.cli.help_ import list_topics
from hpcstack.core.data import find_howto_folder
from hpcstack.core.errors import HpcstackError
from hpcstack.diagnose.advice import report_wrong
from hpcstack.diagnose.signatures import read_signatures

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(hpcstack.__file__).parent
OF_THE_FACTS = "row.get('page', '')"  # facts/signatures*.yaml say it
# Pages about work that hpcstack does not refuse
NEVER_REFUSED = {
    "add-your-own-checks",
    "beside-easybuild",
    "cron-and-ci",
    "interrupt-a-launch",
    "open-a-shell",
    "record-ngc-answers",
    "test-one-gpu",
    "testbed",
}

TABLE = "PAGES_OF_"  # how the name of a table of pages begins


def run(*words: str) -> str:
    done = CliRunner().invoke(group, ["help", *words])
    assert done.exit_code == 0, done.exception
    return done.output


def list_page_values() -> Iterator[tuple[str, ast.expr]]:
    """Each place where the package says which page is about a refusal or a finding, and the value.

    These are `page=` of calls, `page = ` of classes and functions, `error.page = `, and the values of
    a table PAGES_OF_SOMETHING.
    """
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword):
                names = [node.arg or ""]
            elif isinstance(node, ast.Assign):
                names = [ast.unparse(target) for target in node.targets]
            elif isinstance(node, ast.AnnAssign):
                names = [ast.unparse(node.target)]
            else:
                continue
            values = (
                [node.value] if any(name.rpartition(".")[2] == "page" for name in names) else []
            )
            if isinstance(node.value, ast.Dict) and names[0].startswith(TABLE):
                values = list(node.value.values)
            for value in filter(None, values):
                yield f"{path.relative_to(PACKAGE)}:{value.lineno}: {ast.unparse(value)}", value


def read_pages(value: ast.expr) -> set[str] | None:
    """The pages that the expression VALUE can name; None where that cannot be read from it.

    What another variable or attribute `page` or a table holds is seen where that is set.
    """
    if isinstance(value, ast.Call) and ast.unparse(value.func).startswith(TABLE):
        return set()
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return {value.value} - {""}
    if isinstance(value, ast.IfExp):
        one, other = read_pages(value.body), read_pages(value.orelse)
        return None if one is None or other is None else one | other
    if ast.unparse(value).rpartition(".")[2] == "page" or ast.unparse(value) == OF_THE_FACTS:
        return set()
    return None


def list_named_pages() -> dict[str, str]:
    """{page: a place that names it}, of refusals, the doctor's findings and known messages."""
    found = {page: place for place, value in list_page_values() for page in read_pages(value) or ()}
    found |= {known.page: f"facts: {known.id}" for known in read_signatures() if known.page}
    return found


def test_each_page_that_a_refusal_names_can_be_read_from_the_source() -> None:
    """A page that is put together would be missed by the tests below."""
    places = list(list_page_values())
    assert len(places) > 200
    assert [place for place, value in places if read_pages(value) is None] == []


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        ("'roll-back'", {"roll-back"}),
        ("'roll-back' if full else ''", {"roll-back"}),
        ("error.page", set()),
        ("f'roll-{where}'", None),
        ("PAGES_OF_STATES.get(word, '')", set()),
        ("PAGES[code]", None),
        ("find_page() if full else ''", None),
    ],
)
def test_a_page_is_read_from_an_expression(text: str, pages: set[str] | None) -> None:
    assert read_pages(ast.parse(text, mode="eval").body) == pages


def test_every_page_that_is_named_exists() -> None:
    topics = {topic.name for topic in list_topics()}
    assert {page: place for page, place in list_named_pages().items() if page not in topics} == {}


def test_every_page_is_named_but_those_about_which_nothing_is_refused() -> None:
    topics = {topic.name for topic in list_topics()}
    assert topics - set(list_named_pages()) == NEVER_REFUSED


def test_all_pages_are_listed() -> None:
    pages = {path.stem for path in find_howto_folder().glob("*.md")} - {"index"}
    listed = {line.split()[0] for line in run().splitlines()}
    assert listed == pages
    assert {row["topic"] for row in json.loads(run("--json"))} == pages


def test_a_page_is_found_by_its_name_a_part_of_it_or_what_it_says() -> None:
    page = (find_howto_folder() / "roll-back.md").read_text().rstrip("\n")
    assert run("roll-back").rstrip("\n") == page
    assert run("roll").rstrip("\n") == page
    # researcher 20: `help oom` showed the page about NVLink domains
    assert run("oom").startswith("# Find out why")
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


def test_the_doctor_says_which_page_to_read() -> None:
    finding = report_wrong("userns", "node1", "not allowed")
    lines = doctor_._format_text([finding], 1).splitlines()
    assert lines[3] == "      READ: hpcstack help allow-user-namespaces"
    assert "READ" not in doctor_._format_text([report_wrong("nofile", "node1", "1024")], 0)


@pytest.mark.parametrize(
    ("line", "page"),
    [
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT",
            "stop-before-the-time-limit",
        ),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", ""),
        ("hpcstack: nothing was written for 600 s: the step is ended", "find-a-hang"),
    ],
)
def test_explain_says_which_page_to_read_about_how_a_job_ended(
    tmp_path: Path, line: str, page: str
) -> None:
    log = tmp_path / "job.out"
    log.write_text(f"{line}\n")
    answered = CliRunner().invoke(group, ["explain", str(log), "--json"])
    assert json.loads(answered.stdout)["page"] == page
    shown = CliRunner().invoke(group, ["explain", str(log)]).stdout
    assert (f"\n  READ: hpcstack help {page}" in shown) == bool(page)


def test_explain_says_which_page_to_read_about_a_known_message(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    found = json.loads(CliRunner().invoke(group, ["explain", str(log), "--json"]).stdout)
    assert found["findings"][0]["page"] == "does-my-model-fit"
    shown = CliRunner().invoke(group, ["explain", str(log)]).stdout
    assert "  READ: hpcstack help does-my-model-fit" in shown.splitlines()
