"""NAME, NAME/VERSION, NAME/VERSION-rN and NAME-VERSION are one thing; STACK may be left out where a
module is loaded.
"""

from __future__ import annotations

import pytest

from hpcstack.core.errors import InputError
from hpcstack.releases.named import Named, resolve_name
from support.modules import Place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("named"))
    place.publish("pytorch-24.11", b"A", channel="production")
    place.publish("pytorch-24.11", b"B", channel="production")
    place.publish("pytorch-25.10", b"C")
    return place


@pytest.mark.parametrize(
    ("text", "loaded", "means"),
    [
        ("pytorch-24.11", "", Named("pytorch-24.11")), ("pytorch/24.11", "", Named("pytorch-24.11")),
        ("pytorch/24.11-r1", "", Named("pytorch-24.11", "pytorch/24.11-r1")),
        ("pytorch-24.11-r1", "", Named("pytorch-24.11", "pytorch/24.11-r1")),
        ("pytorch", "", Named("pytorch-24.11")), ("pytorch", "pytorch-25.10", Named("pytorch-25.10")),
        ("", "pytorch-25.10", Named("pytorch-25.10")), ("jax-26.06", "", Named("jax-26.06")),
        ("jax/26.06", "", Named("jax-26.06")), ("pytorch/99.99", "", Named("pytorch-99.99")),
    ],
)  # fmt: skip
def test_a_name(place: Place, text: str, loaded: str, means: Named) -> None:
    assert resolve_name(text, place.tree, {"HPCSTACK_STACK": loaded} if loaded else {}) == means


def test_nothing_is_refused_where_nothing_is_loaded(place: Place) -> None:
    with pytest.raises(InputError, match="no module of one is loaded"):
        resolve_name("", place.tree, {})
