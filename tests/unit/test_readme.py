"""README says what is so: its length, its numbers, its links, its recipe, its picture."""

from __future__ import annotations

import re
from pathlib import Path

import pictures
import yaml
from check_pages import find_long_lines

from hpcstack.cli import VERBS
from hpcstack.diagnose.signatures import read_signatures
from hpcstack.lock.model import TEMPLATE_VERSION
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Stack
from hpcstack_smoke import __version__ as suite_version
from hpcstack_smoke.select import CHECKS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PROSE = re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120
    assert not list(find_long_lines(README))


def test_its_numbers_are_those_of_the_code() -> None:
    numbers = {
        r"(\d+) stacks come with": len(Catalog((ROOT / "recipes",)).names()),
        r"suite has (\d+) checks": len(CHECKS),
        r"recognises (\d+) error messages": len(read_signatures()),
    }
    prose = " ".join(PROSE.split())
    for pattern, number in numbers.items():
        assert re.findall(pattern, prose) == [str(number)], pattern
        prose = re.sub(pattern, "", prose)
    requires = re.search(r'requires-python = ">=(.+)"', (ROOT / "pyproject.toml").read_text())
    assert requires
    assert f"Python {requires[1]} or newer" in prose
    prose = prose.replace(f"Python {requires[1]}", "")
    # What is left are names of releases and licences, and no figure that nobody looks after.
    left = re.findall(r"(?<![\w./-])\d+(?:\.\d+)?(?![\w./-])", prose.replace("-N 2", ""))
    assert left == [], left


def test_the_suite_of_its_transcript_is_todays() -> None:
    assert re.findall(r"  suite (\S+)$", README, re.MULTILINE) == [suite_version]


def test_the_verdict_of_its_transcript_is_of_a_whole_report() -> None:
    (counted,) = re.findall(r"^PASS, CPU only: (\d+) PASS, (\d+) SKIP$", README, re.MULTILINE)
    assert sum(map(int, counted)) <= len(CHECKS)


def test_its_recipe_is_valid() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.M | re.S)
    assert Stack.model_validate(yaml.safe_load(text)).full_name == "pytorch-24.11"


def test_the_verbs_that_it_names_are_there() -> None:
    named = set(re.findall(r"hpcstack ([a-z]+)\b", " ".join(re.findall(r"`([^`]+)`", PROSE))))
    assert named
    assert named <= set(VERBS)


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert links
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing


def test_the_pictures_are_what_the_script_makes() -> None:
    assert pictures.find_old_pictures() == [], "./ci/pictures"


def test_the_versions_in_the_changelog_are_todays() -> None:
    changes = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    assert f"The templates are version {TEMPLATE_VERSION}:" in changes
    assert f"The suite is {suite_version}." in changes
