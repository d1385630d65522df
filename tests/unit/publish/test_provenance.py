"""What a release says of where it came from: this hpcstack, and the commit of its recipe."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcstack import __version__
from hpcstack.core.process import Runner
from hpcstack.publish import gc
from hpcstack.publish.make_release import (
    Candidate,
    ReleaseRequest,
    find_candidate_of_recipe,
    find_candidate_of_release,
    release_candidate,
)
from hpcstack.publish.provenance import find_commit
from hpcstack.recipe.catalog import Catalog, Recipe
from hpcstack.releases.journal import name_prepared
from hpcstack.releases.records import RECORD, read_prepared, read_record, read_releases
from support.modules import Place, report

TEXT = (
    "apiVersion: hpcstack/v1\nname: demo\nversion: '1'\nsummary: Demo\nbase: {image: "
    "'nvcr.io/nvidia/pytorch:24.11-py3'}\n"
)


def run_git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A recipe that is committed."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "demo-1.yaml").write_text(TEXT)
    run_git(folder, "init", "--quiet")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "-m", "one")
    return Catalog([folder]).find("demo-1")


def test_the_commit_of_a_recipe_and_whether_it_still_is_that(recipe: Recipe) -> None:
    head = run_git(recipe.path.parent, "rev-parse", "HEAD")
    assert find_commit(recipe.path, Runner()) == head
    (recipe.path.parent / "_template.yaml").write_text(
        "summary: other\n"
    )  # what the recipe may build on counts too
    assert find_commit(recipe.path, Runner()) == f"{head}, changed since"


def test_a_recipe_in_no_repository_and_one_of_no_commit(tmp_path: Path) -> None:
    (tmp_path / "demo-1.yaml").write_text(TEXT)
    assert find_commit(tmp_path / "demo-1.yaml", Runner()) == ""
    run_git(tmp_path, "init", "--quiet")
    assert find_commit(tmp_path / "demo-1.yaml", Runner()) == ""


def test_a_recipe_that_git_ignores_is_of_no_commit(recipe: Recipe) -> None:
    folder = recipe.path.parent / "installed"
    folder.mkdir()
    (recipe.path.parent / ".gitignore").write_text("installed/\n")
    (folder / "demo-1.yaml").write_text(TEXT)
    assert find_commit(folder / "demo-1.yaml", Runner()) == ""


def test_a_repositorys_own_program_is_not_run(recipe: Recipe, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    run_git(recipe.path.parent, "config", "core.fsmonitor", str(hook))
    assert find_commit(recipe.path, Runner())
    assert not (tmp_path / "ran").exists()


@pytest.mark.lmod
def test_a_release_and_what_is_promoted_of_it_say_where_they_came_from(
    recipe: Recipe, tmp_path: Path
) -> None:
    place = Place(tmp_path / "site")
    place.artifact(recipe.stack)
    head = run_git(recipe.path.parent, "rev-parse", "HEAD")
    asked = ReleaseRequest()
    release_candidate(
        find_candidate_of_recipe(recipe, asked, place.publisher), asked, place.publisher
    )
    run_git(
        recipe.path.parent, "commit", "--quiet", "--allow-empty", "-m", "two"
    )  # after the image was made

    to_production = ReleaseRequest("production", override="a test")
    release_candidate(
        find_candidate_of_release("demo/1", to_production, place.publisher),
        to_production,
        place.publisher,
    )

    for name in ("1-r1", "1-r2"):
        record = read_record(place.store, "demo", name)
        assert record
        assert (record.hpcstack, record.recipe_commit) == (__version__, head)


@pytest.mark.lmod
def test_an_override_of_a_gate_that_was_open_is_the_reason_in_the_history(
    recipe: Recipe, tmp_path: Path
) -> None:
    place = Place(tmp_path / "site")
    artifact = place.artifact(recipe.stack)
    asked = ReleaseRequest("production", override="moved from /old")
    judged_well = Candidate(
        recipe.stack, artifact, report(artifact, {"node.image": "PASS"}), "", recipe
    )
    release_candidate(judged_well, asked, place.publisher)
    assert place.tree.ledger("demo").events[-1].reason == "moved from /old"


@pytest.mark.lmod
def test_the_record_of_an_older_hpcstack_is_read(recipe: Recipe, tmp_path: Path) -> None:
    place = Place(tmp_path / "site")
    place.publish(stack=recipe.stack)
    path = place.store.releases / "demo/1-r1" / RECORD
    document = json.loads(path.read_text())
    del document["hpcstack"], document["recipe_commit"]
    path.write_text(json.dumps({**document, "format": "hpcstack/modules/v1"}))
    record = read_record(place.store, "demo", "1-r1")
    assert record
    assert record.hpcstack == ""


def test_what_a_killed_publish_has_left_is_no_release(tmp_path: Path) -> None:
    """Every build and gc of the site ended with "is damaged" until that name was published again."""
    place = Place(tmp_path)
    place.publish()
    released = place.store.releases / "pytorch/24.11-r1"
    left = name_prepared(released.with_name("24.11-r2"), place.site.module_root)
    shutil.copytree(released, left)
    assert [name for name, _ in read_releases(place.store)] == ["pytorch/24.11-r1"]
    assert [one.release for one in read_prepared(place.store)] == ["pytorch/24.11-r1"]


def test_gc_leaves_the_image_of_a_publish_that_is_at_work(tmp_path: Path) -> None:
    """It may be an older one, which nothing else keeps."""
    place = Place(tmp_path)
    older = place.artifact(place.stack(), b"older")
    place.publish(content=b"newer")
    released = place.store.releases / "pytorch/24.11-r1"
    prepared = name_prepared(released.with_name("24.11-r2"), place.site.module_root)
    shutil.copytree(released, prepared)
    record = json.loads((released / RECORD).read_text())
    (prepared / RECORD).write_text(json.dumps({**record, "key": older.key}))

    def keeps() -> str:
        items = gc.list_items(place.site, Runner(), 0, slurm=False)
        (item,) = (item for item in items if item.path.name == older.key)
        return item.keep

    assert keeps() == "being published as pytorch/24.11-r1"
    shutil.rmtree(prepared)
    assert keeps() == ""
