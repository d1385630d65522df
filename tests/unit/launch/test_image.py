"""Which image a name means, and what is said where it means none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.core.process import Runner
from hpcstack.launch.image import choose_image, find_image_to_launch
from hpcstack.publish.gc import list_items
from hpcstack.recipe.catalog import Catalog
from support.modules import Place


def catalog() -> Catalog:
    return Catalog([data.find_data_folder("recipes")])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A store with two stacks of a kind, of which there are recipes for more."""
    place = Place(tmp_path)
    for name in ("pytorch-24.11", "pytorch-25.10"):
        place.artifact(place.stack(name), name.encode())
    return place


def test_what_is_suggested_can_be_launched_here(place: Place) -> None:
    """researcher 20: `pytorch-24.12` was told pytorch-25.12, of which no image was there."""
    with pytest.raises(InputError) as refused:
        choose_image("pytorch-24.12", catalog, place.site, {})
    assert (
        refused.value.message
        == "there is no stack 'pytorch-24.12'; there are pytorch-24.11, pytorch-25.10"
    )
    assert refused.value.hint.startswith("hpcstack launch pytorch-24.11;")


def test_of_a_kind_that_is_not_here_what_could_be_built_is_suggested(place: Place) -> None:
    with pytest.raises(
        InputError, match=r"there is no stack 'jax-26\.07' \(did you mean 'jax-26\.0[0-9]'\?\)"
    ):
        choose_image("jax-26.07", catalog, place.site, {})


def test_the_image_for_the_nodes_own_processors_comes_first(place: Place) -> None:
    stack = place.stack()
    arm = place.artifact(stack, b"arm", platform="linux/arm64")
    intel = find_image_to_launch(
        stack.full_name, place.site, place.store, {}, platform="linux/amd64"
    ).artifact
    assert intel.platform == "linux/amd64", (
        "what was built later for others is not what the stack means"
    )
    assert (
        find_image_to_launch(
            stack.full_name, place.site, place.store, {}, platform="linux/arm64"
        ).artifact.key
        == arm.key
    )


def test_what_was_built_last_for_a_platform_is_named_and_not_guessed(place: Place) -> None:
    """A signature, or a repair, touches the folder of an old image: its time says nothing."""
    stack = place.stack()
    old = place.artifact(stack, b"old", platform="linux/arm64")
    new = place.artifact(stack, b"new", platform="linux/arm64")
    later = old.image.parent.stat().st_mtime + 1000
    os.utime(old.image.parent, (later, later))
    assert place.store.newest_for(stack.full_name, "linux/arm64") == new
    place.store.point(
        stack.full_name, old.key, "linux/arm64"
    )  # built again from the recipe as it was: it was there
    assert place.store.newest_for(stack.full_name, "linux/arm64") == old


def test_the_newest_of_each_platform_is_kept_and_listed(place: Place) -> None:
    stack = place.stack()
    arm = place.artifact(stack, b"arm", platform="linux/arm64")
    listed = [(one.stack, one.platform) for one in place.store.newest_images()]
    assert listed == [
        ("pytorch-24.11", "linux/amd64"), ("pytorch-24.11", "linux/arm64"), ("pytorch-25.10", "linux/amd64"),
    ]  # fmt: skip
    kept = {
        item.path.name: item.keep for item in list_items(place.site, Runner(), days=0, slurm=False)
    }
    assert kept[arm.key] == "the newest image of pytorch-24.11"
