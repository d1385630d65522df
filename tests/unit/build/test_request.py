"""What an image's key is made of, and what its memo hears of."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.build.engines import ENGINES, find_engine
from hpcstack.build.request import BuildRequest, list_deciding_folders
from hpcstack.core import data
from hpcstack.recipe.catalog import Catalog
from hpcstack.render import image as render_image
from hpcstack.render import template
from support.locks import example_lock

# Renders the context and every definition of a stack, and prints each file that this opens.
OPENED = """
import sys
opened = set()
sys.addaudithook(lambda event, facts: event == "open" and opened.add(str(facts[0])))
from pathlib import Path
from hpcstack.lock.model import read_lock
from hpcstack.core import data
from hpcstack.recipe.catalog import Catalog
from hpcstack.render.image import render_image_files
from hpcstack.render.steps import plan_steps
stack = Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack
lock = read_lock(Path(sys.argv[1]))
opened = {path for path in opened if path.endswith((".py", ".pyc"))}
render_image_files(stack, lock, "linux/amd64")
plan_steps(stack, lock.platform("linux/amd64"), lock.sources)
print(*opened, sep="\\n")
"""
# They hold the version, which the memo's question has in it.
OF_THE_VERSION = ("hpcstack/__init__.py", "hpcstack/_version.py")


def make_request(tmp_path: Path, engine: str, **changed: object) -> BuildRequest:
    stack = Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack
    site = make_site(tmp_path)
    request = BuildRequest(stack, example_lock(stack), site, "linux/amd64", find_engine(engine))
    return replace(request, **changed)  # type: ignore[arg-type]


def find_source(opened: str) -> Path:
    """The source of a compiled module that was OPENED, or what was opened itself."""
    path = Path(opened)
    if path.suffix == ".pyc":
        return path.parent.parent / f"{path.name.partition('.')[0]}.py"
    return path


def test_the_memo_of_keys_hears_of_every_file_that_rendering_opens(tmp_path: Path) -> None:
    stack = Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack
    lock = tmp_path / "lock.json"
    lock.write_text(example_lock(stack).text())
    argv = [sys.executable, "-c", OPENED, str(lock)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)

    package = Path(render_image.__file__).parents[2]
    folders = [data.find_data_folder("images"), data.find_data_folder("facts"), package]
    ours = [
        path
        for path in map(find_source, done.stdout.splitlines())
        if any(path.is_relative_to(folder) for folder in folders)
    ]
    assert package / "hpcstack/render/image.py" in ours, "nothing was seen"

    deciding = list_deciding_folders()
    unheard = {
        str(path)
        for path in ours
        if not any(path.is_relative_to(folder) for folder in deciding)
        and not str(path).endswith(OF_THE_VERSION)
    }
    assert not unheard, "a change there would leave the keys as they were"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_key_is_made_of_what_its_engine_reads(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment in Dockerfile.j2 changed the key of an image that Apptainer makes."""
    before = make_request(tmp_path, engine)._rendered_key()
    fill = template.fill_template
    changed: list[str] = []
    monkeypatch.setattr(
        render_image,
        "fill_template",
        lambda room, file, /, **values: fill(room, file, **values) + "# " * (file in changed),
    )
    for definition, file in render_image.DEFINITIONS.items():
        changed[:] = [file]
        after = make_request(tmp_path, engine)._rendered_key()
        read = definition == find_engine(engine).definition
        assert (after != before) == read, f"{engine} and a comment in {file}"


def test_a_format_more_changes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {engine: make_request(tmp_path, engine)._rendered_key() for engine in ENGINES}
    monkeypatch.setitem(render_image.DEFINITIONS, "another.def", "apptainer.def.j2")
    for engine, key in keys.items():
        assert make_request(tmp_path, engine)._rendered_key() == key


def test_keys_differ_by_engine_and_by_what_steps_do(tmp_path: Path) -> None:
    keys = {make_request(tmp_path, engine)._rendered_key() for engine in ENGINES}
    assert len(keys) == len(ENGINES)
    request = make_request(tmp_path, "builtin")
    packages = request.stack.packages.model_copy(update={"apt": ("hwloc",)})
    other = request.stack.model_copy(update={"packages": packages})
    assert replace(request, stack=other)._rendered_key() not in keys
