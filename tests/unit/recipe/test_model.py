"""Recipes: what is accepted, and what each refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.recipe.catalog import Catalog, Recipe
from hpcstack.recipe.model import Stack

GOOD = """\
apiVersion: hpcstack/v1
name: demo
version: "1.0"
summary: A demo
base: {image: "nvcr.io/nvidia/pytorch:24.11-py3"}
packages:
  apt: [infiniband-diags]
  pip: [deepspeed==0.19.8]
environment: {A: "1"}
tests: [node, ddp.fp32]
"""


def read(path: Path) -> Recipe:
    """The one stack of a file."""
    (recipe,) = Catalog([path.parent]).read(path)
    return recipe


def written(folder: Path, text: str, name: str = "demo-1.0.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ProblemsError) as caught:
        read(written(folder, text))
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_a_good_recipe(tmp_path: Path) -> None:
    stack = read(written(tmp_path, GOOD)).stack
    assert stack.full_name == "demo-1.0"
    assert (stack.base.registry, stack.base.repository, stack.base.tag) == (
        "nvcr.io",
        "nvidia/pytorch",
        "24.11-py3",
    )


def test_the_version_is_text_even_without_quotes(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace('"1.0"', "24.10"), "demo-24.10.yaml")
    assert read(path).stack.version == "24.10"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "packages:",
            "pakages:",
            "demo-1.0.yaml:6:1: pakages: unknown key 'pakages' (did you mean 'packages'?)",
        ),
        (
            "  apt:",
            "  apts:",
            "demo-1.0.yaml:7:3: packages.apts: unknown key 'apts' (did you mean 'apt'?)",
        ),
        ("summary: A demo\n", "", "demo-1.0.yaml:1:1: the key 'summary' is missing"),
        ("pytorch:24.11-py3", "pytorch", "demo-1.0.yaml:5:15: base.image: name a tag"),
        (
            "nvcr.io/nvidia/pytorch",
            "pytorch",
            "demo-1.0.yaml:5:15: base.image: write REGISTRY/REPOSITORY:TAG",
        ),
        (
            "deepspeed==0.19.8",
            "deepspeed=0.19",
            "demo-1.0.yaml:8:9: packages.pip[0]: not a pip requirement",
        ),
        (
            "infiniband-diags",
            '"x; rm -rf /"',
            "demo-1.0.yaml:7:9: packages.apt[0]: not an apt package",
        ),
        ('"1"}', '"a\\nb"}', "demo-1.0.yaml:9:18: environment.A: newlines and control characters"),
        ("{A:", "{A-B:", "demo-1.0.yaml:9:14: environment: 'A-B' is not a variable's name"),
        ("{A:", "{SLURM_X:", "demo-1.0.yaml:9:14: environment: SLURM_X belongs to"),
        (
            "ddp.fp32",
            "dpp",
            "demo-1.0.yaml:10:8: tests: no check or family 'dpp' (did you mean 'ddp'?)",
        ),
        (
            "ddp.fp32",
            "ddp.fp23",
            "demo-1.0.yaml:10:8: tests: no check or family 'ddp.fp23' (did you mean 'ddp.fp32'?)",
        ),
        (
            "hpcstack/v1",
            "hpcstack/v9",
            "demo-1.0.yaml:1:13: apiVersion: input should be 'hpcstack/v1'",
        ),
        (
            "name: demo",
            "name: demos",
            "demo-1.0.yaml:2:7: name: the file of demos-1.0 must be named",
        ),
        ("name: demo", "name: De mo", "demo-1.0.yaml:2:7: name: string should match pattern"),
        ('"1"}', '"${HOME}"}', "demo-1.0.yaml:9:18: environment.A: Enroot would replace ${HOME}"),
        (
            "tests:",
            "module: {commands: [python]}\ntests:",
            "demo-1.0.yaml:10:21: module.commands[0]: a wrapper named python",
        ),
        (
            "tests:",
            "launch: {mode: mpirun}\ntests:",
            "demo-1.0.yaml:10:16: launch.mode: input should be 'torchrun',",
        ),
    ],
)
def test_each_problem_has_its_line_and_a_hint(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in GOOD
    assert problems(tmp_path, GOOD.replace(old, new, 1))[0].startswith(expected)


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("summary", "sumary").replace("apt:", "atp:").replace("ddp.fp32", "nope")
    assert len(problems(tmp_path, text)) == 4  # the missing summary, too


def test_what_cannot_be_read_hides_nothing_else(tmp_path: Path) -> None:
    """What it extends is not there, nor is a file; both are said, and what is wrong beside them,
    but nothing is missing.
    """
    wrong = (
        'apiVersion: hpcstack/v1\nname: demo\nversion: "1.0"\nextends: none-1\nsumary: a\n'
        "files: [{path: /etc/a, source: gone.txt}, {path: etc/b, content: b}]\nlaunch: {mode: "
        "mpirun}\n"
    )
    said = problems(tmp_path, wrong)
    expected = (
        "4:10: extends: there is nothing to extend named 'none-1'",
        "5:1: sumary: unknown key",
        "gone.txt",
        "files[1].path",
        "launch.mode",
    )
    assert len(said) == len(expected) and all(
        any(part in line for line in said) for part in expected
    ), said
    said = problems(
        tmp_path,
        wrong.replace("extends: none-1\n", "base: {image: nvcr.io/nvidia/pytorch:24.11-py3}\n"),
    )
    assert len(said) == 5 and any("'summary' is missing" in line for line in said), said


def test_a_recipe_that_is_no_mapping(tmp_path: Path) -> None:
    assert "a recipe is a mapping" in problems(tmp_path, "- a\n")[0]
    assert "a recipe is a mapping" in problems(tmp_path, "")[0]


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0.yaml"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(ProblemsError, match="not UTF-8"):
        read(path)


def test_an_unknown_stack_names_the_nearest(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    with pytest.raises(InputError, match=r"no stack 'demo-1.1' \(did you mean 'demo-1.0'\?\)"):
        Catalog([tmp_path]).find("demo-1.1")
    with pytest.raises(InputError) as caught:
        Catalog([tmp_path]).find("demo")
    assert "demo-1.0" in caught.value.hint


def test_an_earlier_folder_wins(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    written(mine, GOOD)
    written(tmp_path, GOOD)
    assert Catalog([mine, tmp_path]).find("demo-1.0").path.parent == mine


def test_the_checksum_is_of_the_meaning(tmp_path: Path) -> None:
    first = read(written(tmp_path, GOOD)).stack.checksum()
    assert read(written(tmp_path, "# a comment\n" + GOOD)).stack.checksum() == first
    assert read(written(tmp_path, GOOD.replace("A demo", "Another"))).stack.checksum() != first


def test_every_recipe_of_the_package_is_good() -> None:
    catalog = Catalog([data.find_data_folder("recipes")])
    assert {"pytorch-24.11", "pytorch-25.10"} <= set(catalog.names())
    for path in catalog.files():
        assert all(isinstance(recipe.stack, Stack) for recipe in catalog.read(path))


LAYER = """\
apiVersion: hpcstack/v1
name: mine
version: "1"
extends: demo-1.0
summary: Mine
packages: {pip: [einops==0.8.1]}
"""


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        (LAYER, ("demo-1.0", ("einops==0.8.1",))),
        (LAYER.replace("pip:", "apt: [vim], pip:"), None),
        (LAYER.replace("packages: {pip: [einops==0.8.1]}", 'environment: {B: "1"}'), None),
        (LAYER.replace("[einops==0.8.1]", "{replace: [einops==0.8.1]}"), None),
        (LAYER.replace("packages: {pip: [einops==0.8.1]}\n", ""), None),
        (LAYER.replace("extends: demo-1.0", "extends: none-1"), None),
    ],
    ids=["only pip", "apt too", "environment", "replaced", "nothing", "no such base"],
)
def test_a_recipe_that_only_adds_packages_of_pips_is_a_layer(
    tmp_path: Path, text: str, layer: object
) -> None:
    written(tmp_path, GOOD)
    written(tmp_path, text, "mine-1.yaml")
    assert Catalog([tmp_path]).layer("mine-1") == layer
    assert Catalog([tmp_path]).layer("demo-1.0") is None
    assert Catalog([tmp_path]).layer("nothing-1") is None


def test_a_bundles_recipe_holds_the_text_of_its_files(tmp_path: Path) -> None:
    """It is the same recipe, so that the lock that comes with it is its lock."""
    from hpcstack.build.bundle import _recipes
    from hpcstack.recipe.catalog import Catalog

    (tmp_path / "a.sh").write_text("#!/bin/sh\necho said\n")
    (tmp_path / "demo-1.yaml").write_text(
        "apiVersion: hpcstack/v1\nname: demo\nversion: '1'\nsummary: s\nbase: {image: "
        "nvcr.io/x/y:1}\n"
        "files: [{source: a.sh, path: /opt/a.sh}]\n"
    )
    recipe = Catalog([tmp_path]).find("demo-1")
    [text] = _recipes(recipe).values()
    other = tmp_path / "other"
    other.mkdir()
    (other / "demo-1.yaml").write_text(text)
    again = Catalog([other]).find("demo-1").stack
    assert again.files[0].content == "#!/bin/sh\necho said\n"
    assert again.checksum() == recipe.stack.checksum()


# -- a project of Python's


PROJECT = GOOD.replace(
    "  pip: [deepspeed==0.19.8]\n", "  pip: [deepspeed==0.19.8]\n  project: mine\n"
)


def write_project(folder: Path, requirements: str = "rich>=13\n-c pins.txt\n") -> None:
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine/requirements.txt").write_text(requirements)
    (folder / "mine/pins.txt").write_text("numpy<2\n")


def test_what_a_project_asks_for_is_among_the_packages(tmp_path: Path) -> None:
    write_project(tmp_path)
    recipe = read(written(tmp_path, PROJECT))
    packages = recipe.stack.packages
    assert packages.pip == ("deepspeed==0.19.8", "rich>=13")
    assert packages.constraints == ("numpy<2",)
    assert packages.project
    assert packages.project.folder == "mine"
    assert recipe.project
    before = recipe.stack.checksum(), recipe.project.sha256

    write_project(tmp_path, "rich>=14\n")
    changed = read(written(tmp_path, PROJECT))
    assert changed.project
    assert changed.stack.checksum() != before[0]
    assert changed.project.sha256 != before[1]


def test_the_packages_themselves_make_the_same_stack(tmp_path: Path) -> None:
    """As a bundle writes them, for a machine that has not got the project."""
    write_project(tmp_path)
    with_project = read(written(tmp_path, PROJECT)).stack
    spelled = GOOD.replace(
        "  pip: [deepspeed==0.19.8]\n",
        "  pip: [deepspeed==0.19.8, 'rich>=13']\n  constraints: ['numpy<2']\n",
    )
    assert read(written(tmp_path, spelled)).stack.checksum() == with_project.checksum()


def test_a_project_is_looked_for_beside_the_file_that_names_it(tmp_path: Path) -> None:
    below = tmp_path / "templates"
    below.mkdir()
    write_project(below)
    written(below, PROJECT, "_mine.yaml")
    (tmp_path / "demo-2.0.yaml").write_text(
        'apiVersion: hpcstack/v1\nextends: _mine\nversion: "2.0"\nsummary: B\n'
        'name: demo\nbase: {image: "nvcr.io/nvidia/pytorch:24.11-py3"}\n'
    )
    (recipe,) = Catalog([tmp_path, below]).read(tmp_path / "demo-2.0.yaml")
    assert "rich>=13" in recipe.stack.packages.pip


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("..", "a project lies beside the recipe or below"),
        ("/tmp", "a project lies beside the recipe or below"),
        ("link", "a project lies beside the recipe or below"),
        ("none", "does not exist"),
        ("{folder: mine, extras: [x]}", "--extra and --group need a pyproject.toml"),
        ("{folder: mine, more: 1}", "unknown key 'more'"),
        ("[mine]", "packages.project"),
    ],
)
def test_a_project_that_is_refused(tmp_path: Path, said: str, expected: str) -> None:
    write_project(tmp_path)
    (tmp_path / "link").symlink_to("/tmp")
    found = problems(tmp_path, PROJECT.replace("project: mine", f"project: {said}"))
    assert any(expected in one for one in found), found
    assert all(one.startswith("demo-1.0.yaml:9:") for one in found)


def test_a_line_that_no_image_can_have_is_said_of_the_project(tmp_path: Path) -> None:
    write_project(tmp_path, "x @ https://example.org/x.whl\n")
    (found,) = problems(tmp_path, PROJECT)
    assert "a URL cannot be locked" in found
