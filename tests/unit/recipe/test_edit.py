"""Recipes moved to a newer base: texts in, texts out; what is not changed stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.core.yaml import parse_yaml
from hpcstack.recipe.catalog import Catalog, Recipe
from hpcstack.recipe.edit import (
    NewBase,
    RecipeEdit,
    adapt_summary,
    extend_shipped,
    move_recipe,
    set_base,
)

HOLDS = {"CUDA": "12.6.3.001", "PyTorch": "2.6.0a0+df5bbc0"}
WILL_HOLD = {"CUDA": "13.4.0", "PyTorch": "2.14.0a0+abc"}
IMAGE = "nvcr.io/nvidia/pytorch"
BASE = NewBase(f"{IMAGE}:26.08-py3", "26.08-py3", "24.11-py3", HOLDS, WILL_HOLD)

MATRIX = """\
# ours
apiVersion: hpcstack/v1
name: mine
base: {image: "nvcr.io/nvidia/pytorch:${stack.version}-py3"} # NGC
matrix:
  version:
    # the old one
    "24.11":
      summary: "Ours on 24.11 (CUDA 12.6, the last of its kind)"
      lifecycle: {deprecate: 2027-01-01, remove: 2027-06-01}
      packages:
        pip: [einops==0.8.0] # for attention

    # what comes last
  variant: [a, b]
"""


def read(folder: Path, name: str, text: str, stack: str) -> Recipe:
    (folder / f"{name}.yaml").write_text(text)
    return Catalog([folder]).find(stack)


def move(folder: Path, name: str, text: str, stack: str, *known: str) -> RecipeEdit:
    """The edit that moves STACK of the recipe NAME to BASE; there are stacks named KNOWN."""
    return move_recipe(read(folder, name, text, stack), text, BASE, known.__contains__)


def test_a_matrix_gets_an_entry_and_keeps_all_else(tmp_path: Path) -> None:
    edit = move(tmp_path, "mine", MATRIX, "mine-24.11-a")
    added = """\
    "26.08":
      summary: "Ours on 26.08 (CUDA 13.4)"
      packages:
        pip: [einops==0.8.0]
"""
    place = MATRIX.index("\n    # what comes last")
    assert edit.after == MATRIX[:place] + added + MATRIX[place:]
    assert (edit.stack, edit.before, edit.path) == ("mine-26.08-a", MATRIX, tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ('["24.05", "24.11"]', '["24.05", "24.11", "26.08"]'),
        ("[24.11, 24.05]", "[24.11, 26.08, 24.05]"),
        ("['24.11'] # one", "['24.11', '26.08'] # one"),
        ('{"24.11": {}}', '{"24.11": {}, "26.08": {}}'),
        ('{"24.11": }', '{"24.11":, "26.08": }'),
        (
            '{"24.11": {summary: S, lifecycle: {remove: 2027-01-01}}}',
            '{"24.11": {summary: S, lifecycle: {remove: 2027-01-01}}, "26.08": {summary: S}}',
        ),
        (
            '{"24.11": {lifecycle: {remove: 2027-01-01}, summary: S}}',
            '{"24.11": {lifecycle: {remove: 2027-01-01}, summary: S}, "26.08": {summary: S}}',
        ),
        (
            '{"24.11": {lifecycle: {remove: 2027-01-01}}}',
            '{"24.11": {lifecycle: {remove: 2027-01-01}}, "26.08": {}}',
        ),
        ('\n    - "24.11" # first\n    - "24.05"', '\n    - "24.11" # first\n    - "26.08"\n    - "24.05"'),
        ('\n    "24.11":\n    "24.05": {}', '\n    "24.11":\n    "26.08":\n    "24.05": {}'),
        ('\n    - "24.11"', '\n    - "24.11"\n    - "26.08"'),
    ],
)  # fmt: skip
def test_every_way_to_write_versions(tmp_path: Path, axis: str, expected: str) -> None:
    head = f"apiVersion: hpcstack/v1\nname: mine\nsummary: S\nbase: {{image: '{IMAGE}:${{stack.version}}-py3'}}\n"
    text = f"{head}matrix:\n  version: {axis}"
    edit = move(tmp_path, "mine", text, "mine-24.11")
    assert edit.after.rstrip("\n") == f"{head}matrix:\n  version: {expected}"
    names = [
        one.stack.full_name
        for one in Catalog([tmp_path]).plan(edit.path, edit.after).read(edit.path)
    ]
    assert "mine-26.08" in names


def test_a_file_of_one_version_gets_a_neighbour(tmp_path: Path) -> None:
    text = f"""\
apiVersion: hpcstack/v1
name: solo
version: 24.11 # the month
summary: Solo, NGC 24.11, the last with CUDA 12
lifecycle:
  # soon
  deprecate: 2027-01-01
  remove: 2027-06-01

base:
  image: '{IMAGE}:24.11-py3'  # here
run:
  - name: x
    command: |
      echo 24.11
"""
    edit = move(tmp_path, "solo-24.11", text, "solo-24.11")
    assert edit.path == tmp_path / "solo-26.08.yaml"
    assert edit.before == ""
    assert (
        edit.after
        == f"""\
apiVersion: hpcstack/v1
name: solo
version: 26.08 # the month
summary: Solo, NGC 26.08

base:
  image: '{IMAGE}:26.08-py3'  # here
run:
  - name: x
    command: |
      echo 24.11
"""
    )


@pytest.mark.parametrize("there", [True, False])
def test_what_it_extends_moves_along_if_it_can(tmp_path: Path, there: bool) -> None:
    (tmp_path / "low-24.11.yaml").write_text(
        f"apiVersion: hpcstack/v1\nname: low\nversion: '24.11'\nsummary: S\nbase: {{image: {IMAGE}:24.11-py3}}\n"
    )
    text = "apiVersion: hpcstack/v1\nextends: low-24.11 # below\nname: top\nversion: '24.11'\nsummary: S\n"
    edit = move(tmp_path, "top-24.11", text, "top-24.11", *(["low-26.08"] if there else []))
    assert ("extends: low-26.08 # below" in edit.after) == there
    assert any("it extends low-24.11 still" in note for note in edit.notes) != there

    set_ = set_base(edit, BASE.image)
    assert f"version: '26.08'\nbase: {{image: \"{IMAGE}:26.08-py3\"}}\nsummary" in set_.after
    with pytest.raises(InputError, match="would not be on"):
        set_base(set_, BASE.image)


def test_a_version_of_its_own_stays(tmp_path: Path) -> None:
    text = f"apiVersion: hpcstack/v1\nname: lab\nversion: '1.2'\nsummary: S\nbase: {{image: {IMAGE}:24.11-py3}} # so\n"
    edit = move(tmp_path, "lab", text, "lab-1.2")
    assert edit.after == text.replace("24.11", "26.08")
    assert (edit.stack, edit.path) == ("lab-1.2", tmp_path / "lab.yaml")
    assert "the version stays 1.2" in edit.notes[0]


def test_a_base_that_a_template_names_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "_all.yaml").write_text(f"base: {{image: {IMAGE}:24.11-py3}}\n")
    text = "apiVersion: hpcstack/v1\nextends: _all\nname: lab\nversion: '1.2'\nsummary: S\n"
    with pytest.raises(InputError, match=r"is written in .*_all\.yaml:1"):
        move(tmp_path, "lab", text, "lab-1.2")


def test_a_recipe_of_hpcstacks_own_is_extended(tmp_path: Path) -> None:
    text = f"apiVersion: hpcstack/v1\nname: p\nvariant: v\nversion: '24.11'\nsummary: P 24.11\nbase: {{image: {IMAGE}:24.11-py3}}\n"
    recipe = read(tmp_path, "p", text, "p-24.11-v")
    edit = extend_shipped(recipe, BASE, tmp_path / "own")
    assert edit.path == tmp_path / "own/p-26.08-v.yaml"
    found = Catalog([tmp_path / "own", tmp_path]).plan(edit.path, edit.after).find("p-26.08-v")
    assert found.stack.base.image == BASE.image
    assert found.stack.summary == "P 26.08"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("PyTorch 2.6 with DeepSpeed on NGC 24.11", "PyTorch 2.14 with DeepSpeed on NGC 26.08"),
        ("X on 24.11 (CUDA 12.6, Pascal to Hopper)", "X on 26.08 (CUDA 13.4, Pascal to Hopper)"),
        ("X on 24.11, the first with CUDA 12", "X on 26.08"),
        ("X on 24.11, the last with Python 3.10", "X on 26.08"),
        ("ZeRO, Transformers and X on 24.11", "ZeRO, Transformers and X on 26.08"),
        ("X (CUDA 12.6, Python 3.12)", "X (CUDA 13.4)"),
        ("X 24.11.1 and 124.11, cuda 12", "X 24.11.1 and 124.11, cuda 13"),
        ("CUDA 11.8 on X", "CUDA 11.8 on X"),
        ("plain", "plain"),
    ],
)
def test_a_summary_says_only_what_is_known(before: str, after: str) -> None:
    assert adapt_summary(before, BASE) == after


@given(
    comment=st.text(st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp")), max_size=20),
    months=st.lists(st.integers(1, 12), min_size=1, max_size=6, unique=True),
    chosen=st.integers(0, 5),
    style=st.sampled_from(["block", "flow", "list", "flow list"]),
)
def test_no_line_is_lost(comment: str, months: list[int], chosen: int, style: str) -> None:
    """Whatever the matrix: each line stays, and one version more is read."""
    versions = [f"24.{month:02d}" for month in months]
    had = versions[chosen % len(versions)]
    one = {"block": '    "{}": {{summary: "on {}"}}', "list": '    - "{}"'}.get(style, '"{}"')
    items = [one.format(version, version) for version in versions]
    joined = "\n" + "\n".join(f"{item} # {comment}" for item in items)
    if style.startswith("flow"):
        joined = f" [{', '.join(items)}] # {comment}"
    if style == "flow":
        joined = " {" + ", ".join(f"{item}: {{}}" for item in items) + "}"
    text = (
        f"# {comment}\napiVersion: hpcstack/v1\nname: mine\nsummary: S # {comment}\n"
        f"base: {{image: '{IMAGE}:${{stack.version}}-py3'}}\nmatrix:\n  version:{joined}\n# {comment}\n"
    )

    path = Path("/nowhere/mine.yaml")
    catalog = Catalog([path.parent]).plan(path, text)
    recipe = catalog.find(f"mine-{had}")
    base = NewBase(f"{IMAGE}:26.08-py3", "26.08-py3", f"{had}-py3")
    edit = move_recipe(recipe, text, base, lambda _: False)

    found = [one.stack.version for one in catalog.plan(path, edit.after).read(path)]
    assert sorted(found) == sorted([*versions, "26.08"])
    before, after = parse_yaml(text, "a").value, parse_yaml(edit.after, "b").value
    assert {key: before[key] for key in before if key != "matrix"} == {
        key: after[key] for key in after if key != "matrix"
    }
    if not style.startswith("flow"):
        remaining = edit.after.splitlines()
        for line in text.splitlines():
            assert line in remaining
            remaining = remaining[remaining.index(line) + 1 :]
