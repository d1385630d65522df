"""constraints.txt and ci/constraints.txt: every dependency once, within pyproject.toml's bounds, by
its hashes. Whether something newer is there only ci/constraints asks.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPO = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
PINNED = re.compile(r"^(?P<pin>[\w.-]+==\S+)(?: ; (?P<marker>.*?))? \\\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
                    re.MULTILINE)  # fmt: skip


def read_pins(name: str) -> dict[str, set[str]]:
    """{package: its versions} of the file NAME; a package has several where Pythons differ."""
    text = (REPO / name).read_text()
    found = [Requirement(match["pin"]) for match in PINNED.finditer(text)]
    lines = re.findall(r"^[\w.-]+==", text, re.MULTILINE)
    assert len(found) == len(lines), "each line that pins has its hashes"
    pins: dict[str, set[str]] = {}
    for one in found:
        pins.setdefault(canonicalize_name(one.name), set()).add(
            str(one.specifier).removeprefix("==")
        )
    return pins


def find_misfits(wanted: list[str], pins: dict[str, set[str]]) -> list[str]:
    """What of WANTED, requirements as pyproject.toml writes them, PINS do not fulfil."""
    wrong = []
    for text in wanted:
        requirement = Requirement(text)
        versions = pins.get(canonicalize_name(requirement.name), set())
        if not versions or not all(
            requirement.specifier.contains(one, prereleases=True) for one in versions
        ):
            wrong.append(f"{text}: {sorted(versions)}")
    return wrong


def test_what_the_wheel_needs_is_pinned() -> None:
    assert find_misfits(PROJECT["dependencies"], read_pins("constraints.txt")) == []


def test_what_tests_and_docs_need_is_pinned_in_the_same_versions() -> None:
    every = read_pins("ci/constraints.txt")
    extras = PROJECT["optional-dependencies"]
    assert find_misfits([*PROJECT["dependencies"], *extras["test"], *extras["docs"]], every) == []
    own = read_pins("constraints.txt")
    assert {name: every[name] for name in own} == own


def test_no_index_is_named() -> None:
    for name in ("constraints.txt", "ci/constraints.txt"):
        assert "://" not in (REPO / name).read_text()


def test_a_misfit_is_seen() -> None:
    assert find_misfits(["click>=99"], read_pins("constraints.txt")) != []
    assert find_misfits(["no-such-package"], read_pins("constraints.txt")) != []
