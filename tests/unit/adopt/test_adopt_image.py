"""The recipe of an adopted image, and which verbs take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.adopt.adopt_image import NO_BASE, AdoptRequest, _recipe_path, recipe_text
from hpcstack.adopt.lua_module import LuaModule
from hpcstack.adopt.survey import Survey
from hpcstack.core import data
from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.lock.check import find_staleness
from hpcstack.lock.known import known_lock
from hpcstack.lock.model import AdoptedContents
from hpcstack.recipe.adopted import describe_adopted, refuse_adopted
from hpcstack.recipe.catalog import Catalog, Recipe
from hpcstack.render.image import image_files

SHA = "ab" * 32
SURVEY = Survey("linux/amd64", {"PATH": "/bin"}, {}, base="nvcr.io/nvidia/pytorch:24.11-py3", base_said_by="its label")


def adopted(tmp_path: Path, survey: Survey = SURVEY, **more: object) -> Recipe:
    request = AdoptRequest("registry.x/y:1", "mytorch", "1", tmp_path, **more)  # type: ignore[arg-type]
    (tmp_path / "mytorch-1.yaml").write_text(recipe_text(request, survey, "registry.x/y:1", SHA))
    return Catalog([tmp_path]).find("mytorch-1")


def test_the_recipe_is_one_that_is_read(tmp_path: Path) -> None:
    settings: dict[str, dict[str, object]] = {
        "A": {"set": "no"},  # YAML's own false, where it is not quoted
        "PATH": {"prepend": ["/a", "/b"], "append": [], "separator": ":"},
    }
    stack = adopted(tmp_path, modulefile=LuaModule(Path("1.lua"), settings, ())).stack
    assert stack.adopted and stack.adopted.sha256 == SHA and stack.launch.mode == "plain"
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
    assert "drop `adopted`" in refused.value.hint and str(recipe.path) in refused.value.hint


def test_nothing_is_rendered_to_build_it_by(tmp_path: Path) -> None:
    stack = adopted(tmp_path).stack
    files = image_files(stack, known_lock(stack), "linux/amd64")
    assert not {"apptainer.def", "Dockerfile", "enroot.sh"} & set(files)


def test_packages_do_not_go_with_it(tmp_path: Path) -> None:
    path = adopted(tmp_path).path
    path.write_text(path.read_text() + "packages: {pip: [einops]}\n")
    with pytest.raises(ProblemsError, match="taken as it is"):
        Catalog([tmp_path]).find("mytorch-1")


def test_the_lock_of_another_image_is_stale(tmp_path: Path) -> None:
    stack = adopted(tmp_path).stack
    lock = known_lock(stack).model_copy(update={"adopted": AdoptedContents(sha256=SHA, source="x")})
    assert find_staleness(stack, lock) == [] and not lock.not_looked_up
    other = lock.model_copy(update={"adopted": AdoptedContents(sha256="cd" * 32, source="x")})
    assert find_staleness(stack, other) == ["the recipe and the lock are of different adopted images"]


@pytest.mark.parametrize(("name", "version"), [("../x", "1"), ("mine", "../1"), ("Mine", "1"), ("mine", "")])
def test_a_name_that_no_recipe_has_is_told_before_anything_is_read(tmp_path: Path, name: str, version: str) -> None:
    with pytest.raises(InputError, match="is not the"):
        _recipe_path(AdoptRequest("x.sqsh", name, version, tmp_path), Catalog([tmp_path]))


def test_a_stack_of_others_is_not_hidden(tmp_path: Path) -> None:
    catalog = Catalog([tmp_path, data.folder("recipes")])
    with pytest.raises(InputError, match="there is a stack pytorch-24.11 already"):
        _recipe_path(AdoptRequest("x.sqsh", "pytorch", "24.11", tmp_path), catalog)


def test_a_path_with_a_line_break_adds_no_key(tmp_path: Path) -> None:
    settings: dict[str, dict[str, object]] = {"A": {"set": "1"}}
    recipe = adopted(tmp_path, modulefile=LuaModule(Path("x\nlabels: {a.b: injected}"), settings, ()))
    assert not recipe.stack.labels
