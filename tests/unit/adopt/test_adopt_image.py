"""The recipe of an adopted image, and which verbs take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import make_site
from hpcstack.adopt import adopt_image
from hpcstack.adopt.adopt_image import NO_BASE, AdoptRequest, render_recipe
from hpcstack.adopt.lua_module import LuaModule
from hpcstack.adopt.survey import Survey
from hpcstack.build.workbench import Workbench
from hpcstack.core import data
from hpcstack.core.errors import InputError, ProblemsError, StoreError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.lock.check import find_staleness
from hpcstack.lock.known import make_known_lock
from hpcstack.lock.model import AdoptedContents
from hpcstack.oci.client import Registry
from hpcstack.recipe.adopted import describe_adopted, refuse_adopted
from hpcstack.recipe.catalog import Catalog, Recipe
from hpcstack.recipe.new_recipe import place_new_recipe
from hpcstack.render.image import render_image_files

SHA = "ab" * 32
SURVEY = Survey(
    "linux/amd64",
    {"PATH": "/bin"},
    {},
    base="nvcr.io/nvidia/pytorch:24.11-py3",
    base_said_by="its label",
)


def adopted(tmp_path: Path, survey: Survey = SURVEY, **more: object) -> Recipe:
    request = AdoptRequest("registry.x/y:1", "mytorch", "1", tmp_path, **more)  # type: ignore[arg-type]
    (tmp_path / "mytorch-1.yaml").write_text(render_recipe(request, survey, "registry.x/y:1", SHA))
    return Catalog([tmp_path]).find("mytorch-1")


def test_the_recipe_is_one_that_is_read(tmp_path: Path) -> None:
    settings: dict[str, dict[str, object]] = {
        "A": {"set": "no"},  # YAML's own false, where it is not quoted
        "PATH": {"prepend": ["/a", "/b"], "append": [], "separator": ":"},
    }
    stack = adopted(tmp_path, modulefile=LuaModule(Path("1.lua"), settings, ())).stack
    assert stack.adopted
    assert stack.adopted.sha256 == SHA
    assert stack.launch.mode == "plain"
    assert stack.module.environment["A"].set == "no"
    assert stack.module.environment["PATH"].prepend == ("/a", "/b")
    assert describe_adopted(stack) == f"registry.x/y:1, sha256 {SHA[:12]}"


def test_a_base_that_nothing_names_is_not_invented(tmp_path: Path) -> None:
    recipe = adopted(tmp_path, Survey("linux/amd64", {}, {}))
    assert recipe.stack.base.image == NO_BASE
    assert "Nothing says what it was made from." in recipe.path.read_text()


def test_it_is_not_built_and_the_refusal_says_what_to_write(tmp_path: Path) -> None:
    recipe = adopted(tmp_path)
    with pytest.raises(InputError, match="adopted") as refused:
        refuse_adopted(recipe)
    assert "drop `adopted`" in refused.value.hint
    assert str(recipe.path) in refused.value.hint


def test_nothing_is_rendered_to_build_it_by(tmp_path: Path) -> None:
    stack = adopted(tmp_path).stack
    files = render_image_files(stack, make_known_lock(stack), "linux/amd64")
    assert not {"apptainer.def", "Dockerfile", "enroot.sh"} & set(files)


def test_packages_do_not_go_with_it(tmp_path: Path) -> None:
    path = adopted(tmp_path).path
    path.write_text(path.read_text() + "packages: {pip: [einops]}\n")
    with pytest.raises(ProblemsError, match="taken as it is"):
        Catalog([tmp_path]).find("mytorch-1")


def test_the_lock_of_another_image_is_stale(tmp_path: Path) -> None:
    stack = adopted(tmp_path).stack
    lock = make_known_lock(stack).model_copy(
        update={"adopted": AdoptedContents(sha256=SHA, source="x")}
    )
    assert find_staleness(stack, lock) == []
    assert not lock.not_looked_up
    other = lock.model_copy(update={"adopted": AdoptedContents(sha256="cd" * 32, source="x")})
    assert find_staleness(stack, other) == [
        "the recipe and the lock are of different adopted images"
    ]


@pytest.mark.parametrize(
    ("name", "version"), [("../x", "1"), ("mine", "../1"), ("Mine", "1"), ("mine", "")]
)
def test_a_name_that_no_recipe_has_is_told_before_anything_is_read(
    tmp_path: Path, name: str, version: str
) -> None:
    with pytest.raises(InputError, match="is not the"):
        place_new_recipe(tmp_path, name, version, Catalog([tmp_path]))


def test_a_stack_of_others_is_not_hidden(tmp_path: Path) -> None:
    catalog = Catalog([tmp_path, data.find_data_folder("recipes")])
    with pytest.raises(InputError, match="there is a stack pytorch-24.11 already"):
        place_new_recipe(tmp_path, "pytorch", "24.11", catalog)


def test_a_path_with_a_line_break_adds_no_key(tmp_path: Path) -> None:
    settings: dict[str, dict[str, object]] = {"A": {"set": "1"}}
    recipe = adopted(
        tmp_path, modulefile=LuaModule(Path("x\nlabels: {a.b: injected}"), settings, ())
    )
    assert not recipe.stack.labels


# -- what engines are given, with a build that is none


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    site = make_site(tmp_path / "site")
    monkeypatch.setattr(adopt_image, "survey_image", lambda *_: SURVEY)
    monkeypatch.setattr(adopt_image, "choose_engine", lambda *_: (object(), "a test"))
    monkeypatch.setattr(adopt_image, "find_host_platform", lambda: "linux/amd64")
    return Workbench(site, Registry(site), Runner(), Progress())


def adopt_file(folder: Path, content: bytes, bench: Workbench, recipes: Path) -> None:
    folder.mkdir()
    (folder / "image.sqsh").write_bytes(content)
    request = AdoptRequest(str(folder / "image.sqsh"), "mine", folder.name, recipes)
    adopt_image.adopt_image(request, Catalog([recipes]), bench)


def test_engines_know_images_of_one_file_name_apart(
    tmp_path: Path, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that unpacks a base finds it again by its name."""
    bases: list[Path] = []

    def build_none(image: Path, *_: object) -> None:
        bases.append(image)
        assert image.read_bytes() in (b"one", b"two")
        raise StoreError("no room")

    monkeypatch.setattr(adopt_image, "build_on", build_none)
    (tmp_path / "recipes").mkdir()
    for folder, content in (("1", b"one"), ("2", b"two")):
        with pytest.raises(StoreError):
            adopt_file(tmp_path / folder, content, bench, tmp_path / "recipes")
    assert bases[0].name != bases[1].name
    assert list((tmp_path / "recipes").iterdir()) == [], "what fails leaves no recipe"


def test_an_image_that_changes_meanwhile_is_not_stored(
    tmp_path: Path, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_slowly(image: Path, request: object, _: object, complete: Any) -> None:
        image.resolve().write_bytes(b"other bytes")
        complete(request, image)

    monkeypatch.setattr(adopt_image, "build_on", build_slowly)
    (tmp_path / "recipes").mkdir()
    with pytest.raises(InputError, match="was changed while it was read"):
        adopt_file(tmp_path / "1", b"one", bench, tmp_path / "recipes")
