"""Which image a name means, and what is said where it means none."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.launch.image import find_image, image_to_launch
from hpcstack.recipe.catalog import Catalog
from support.modules import Place


def catalog() -> Catalog:
    return Catalog([data.folder("recipes")])


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
        find_image("pytorch-24.12", catalog, place.site, {})
    assert refused.value.message == "there is no stack 'pytorch-24.12'; there are pytorch-24.11, pytorch-25.10"
    assert refused.value.hint.startswith("hpcstack launch pytorch-24.11;")


def test_of_a_kind_that_is_not_here_what_could_be_built_is_suggested(place: Place) -> None:
    with pytest.raises(InputError, match=r"there is no stack 'jax-26\.07' \(did you mean 'jax-26\.0[0-9]'\?\)"):
        find_image("jax-26.07", catalog, place.site, {})


def test_the_image_for_the_nodes_own_processors_comes_first(place: Place) -> None:
    stack = place.stack()
    arm = place.artifact(stack, b"arm", platform="linux/arm64")
    intel = image_to_launch(stack.full_name, place.site, place.store, {}, platform="linux/amd64")[0]
    assert intel.platform == "linux/amd64", "what was built later for others is not what the stack means"
    assert image_to_launch(stack.full_name, place.site, place.store, {}, platform="linux/arm64")[0].key == arm.key
