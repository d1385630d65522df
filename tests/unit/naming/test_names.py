"""What a text means: one table for all verbs, and what is said where it means nothing, or two things."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from datetime import date
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.process import Runner
from hpcstack.naming import names
from hpcstack.publish.gc import list_items
from hpcstack.recipe.model import Lifecycle
from support.modules import Place


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
        place.names().find_image_to_run("pytorch-24.12")
    assert (
        refused.value.message
        == "there is no stack 'pytorch-24.12'; there are pytorch-24.11, pytorch-25.10"
    )
    assert refused.value.hint.startswith("hpcstack launch pytorch-24.11;")


def test_of_a_kind_that_is_not_here_what_could_be_built_is_suggested(place: Place) -> None:
    with pytest.raises(
        InputError, match=r"there is no stack 'jax-26\.07' \(did you mean 'jax-26\.0[0-9]'\?\)"
    ):
        place.names().find_image_to_run("jax-26.07")


def test_the_image_for_the_nodes_own_processors_comes_first(place: Place) -> None:
    stack = place.stack()
    arm = place.artifact(stack, b"arm", platform="linux/arm64")
    intel = place.names("linux/amd64").find_image(stack.full_name).artifact
    assert intel.platform == "linux/amd64", (
        "what was built later for others is not what the stack means"
    )
    assert place.names("linux/arm64").find_image(stack.full_name).artifact.key == arm.key


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


# -- one table: a text, what is published and built, who asks


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Two releases of pytorch 24.11 (A is production, B waits), C of 25.10, and D built since; E is
    of a stack that nobody publishes.
    """
    place = Place(tmp_path_factory.mktemp("names"))
    place.publish("pytorch-24.11", b"A", channel="production")
    place.publish("pytorch-24.11", b"B")
    place.publish("pytorch-25.10", b"C", channel="production")
    place.artifact(place.stack("pytorch-24.11"), b"D", engine="builtin")
    place.artifact(place.stack("jax-26.06"), b"E")
    return place


def key_of(place: Place, content: str) -> str:
    digest = hashlib.sha256(content.encode()).hexdigest()
    return next(one.key for one in place.store.images() if one.sha256 == digest)


def load(place: Place, stack: str, release: str, content: str) -> dict[str, str]:
    """The variables of a loaded module."""
    image = place.store.top / "images" / key_of(place, content) / "image.sqsh"
    return {"HPCSTACK_STACK": stack, "HPCSTACK_RELEASE": release, "HPCSTACK_IMAGE": str(image)}


# (text, loaded): the image, the stack, what else is named: a newer release, or what was built since
MEANT = {
    ("pytorch-24.11", ""): ("A", "pytorch-24.11", "r2"),
    ("pytorch/24.11", ""): ("A", "pytorch-24.11", "r2"),
    ("pytorch/24.11-r1", ""): ("A", "pytorch-24.11", ""),
    ("pytorch-24.11-r1", ""): ("A", "pytorch-24.11", ""),
    ("pytorch/24.11-r2", ""): ("B", "pytorch-24.11", ""),
    ("pytorch/25.10", ""): ("C", "pytorch-25.10", ""),
    ("pytorch", ""): ("C", "pytorch-25.10", ""),
    ("jax-26.06", ""): ("E", "jax-26.06", ""),
    ("jax/26.06", ""): ("E", "jax-26.06", ""),
    ("pytorch-24.11@built", ""): ("D", "pytorch-24.11", ""),
    ("pytorch/24.11@built", ""): ("D", "pytorch-24.11", ""),
    ("pytorch-24.11@builtin", ""): ("D", "pytorch-24.11", ""),
    ("pytorch-24.11@apptainer", ""): ("B", "pytorch-24.11", ""),
    ("pytorch", "B"): ("B", "pytorch-24.11", "@built"),
    ("", "B"): ("B", "pytorch-24.11", "@built"),
    ("pytorch-24.11", "B"): ("B", "pytorch-24.11", "@built"),
    ("pytorch/24.11-r1", "B"): ("A", "pytorch-24.11", ""),
    ("pytorch-25.10", "B"): ("C", "pytorch-25.10", ""),
    ("pytorch-24.11@built", "B"): ("D", "pytorch-24.11", ""),
}


def test_a_text_means_one_image_and_one_stack(site: Place) -> None:
    for (text, loaded), (content, stack, also) in MEANT.items():
        environ = load(site, "pytorch-24.11", "pytorch/24.11-r2", "B") if loaded else {}
        found = site.names(**environ)
        chosen = found.find_image(text)
        assert chosen.artifact.key == key_of(site, content), (text, loaded)
        assert found.find_image_to_run(text).artifact == chosen.artifact, (text, loaded)
        assert found.find_image_file(text).stored == chosen.artifact, (text, loaded)
        assert found.find_stack(text).stack == stack == chosen.artifact.stack, (text, loaded)
        assert (also in chosen.note) if also else chosen.note == "", (text, loaded, chosen.note)
        assert found.find_image_file(text).note == chosen.note, (text, loaded)


def test_a_key_and_a_file_mean_their_image(site: Place) -> None:
    for content in "ABCDE":
        key = key_of(site, content)
        path = site.store.top / "images" / key / "image.sqsh"
        for text in (key, key[:8], str(path)):
            assert site.names().find_image(text).artifact.key == key, text
            assert site.names().find_image_file(text).stored, text
        assert site.names().find_stack(key[:8]).stack == site.names().find_image(key).artifact.stack


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no module of one is loaded"),
        ("pytorch/24.11-r9", "no image of pytorch-24.11-r9"),
        ("pytorch/99.99", "no image of pytorch-99.99"),
        ("tensorflow-25.02", "no image of tensorflow-25.02"),
        ("pytorch-24.11@docker", "by an engine 'docker'"),
        ("./image.sqsh", "does not exist"),
        ("0123456789abcdef", "no image of"),
    ],
)
def test_what_means_no_image_is_refused(site: Place, text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        site.names().find_image(text)
    with pytest.raises(InputError, match=why):
        site.names().find_image_file(text)


def test_a_sign_in_a_files_path_names_no_engine(site: Place, tmp_path: Path) -> None:
    folder = tmp_path / "me@work"
    folder.mkdir()
    (folder / "image.sqsh").write_text("x")
    (folder / "jax-26.06.yaml").write_text(
        "apiVersion: hpcstack/v1\nname: jax\nversion: '26.06'\nsummary: mine\n"
        "base: {image: 'nvcr.io/nvidia/jax:26.06-py3'}\n"
    )
    assert site.names().find_image_file(str(folder / "image.sqsh")).path == folder / "image.sqsh"
    assert site.names().find_image(str(folder / "jax-26.06.yaml")).artifact.stack == "jax-26.06"


def test_the_beginning_of_several_keys_is_refused(site: Place) -> None:
    """The last one was taken."""
    key = key_of(site, "E")
    images = site.store.top / "images"
    twin = images / f"{key[:10]}{'0' * (len(key) - 10)}"
    shutil.copytree(images / key, twin)
    record = json.loads((twin / "artifact.json").read_text())
    (twin / "artifact.json").chmod(0o644)
    (twin / "artifact.json").write_text(json.dumps({**record, "key": twin.name}))
    try:
        with pytest.raises(InputError, match="the beginning of several keys"):
            site.names().find_image(key[:8])
        assert site.names().find_image(key[:12]).artifact.key == key
    finally:
        shutil.rmtree(twin)


def test_a_file_of_a_stacks_name_takes_nothing_over(
    site: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of logs lies one called as the stack is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytorch-24.11").write_text("a log")
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "pytorch/24.11").write_text("a log")
    (tmp_path / "other").write_text("an image")
    for text in ("pytorch-24.11", "pytorch/24.11"):
        assert site.names().find_image_file(text).stored
    assert site.names().find_image_file("./pytorch-24.11").stored is None
    assert site.names().find_image_file("other").path == tmp_path / "other"


def test_the_image_of_what_is_published_is_not_replaced_by_another(tmp_path: Path) -> None:
    """Where it was gone, `inspect` and `sign` took the one that was built last, silently."""
    place = Place(tmp_path)
    place.publish(content=b"published")
    place.artifact(place.stack(), b"built since")
    shutil.rmtree(place.store.top / "images" / key_of(place, "published"))
    for find in (place.names().find_image, place.names().find_image_file):
        with pytest.raises(StoreError, match="its image is gone"):
            find("pytorch-24.11")
    assert place.names().find_image("pytorch-24.11@built").artifact


def test_a_retired_version_is_for_verbs_that_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    until = Lifecycle(deprecate=date(2098, 1, 1), remove=date(2099, 1, 1))
    place.publish(channel="production", stack=place.stack(lifecycle=until))
    monkeypatch.setattr(names, "stamp_today", lambda: "2099-01-01")
    with pytest.raises(InputError, match="retired"):
        place.names().find_image("pytorch-24.11")
    assert place.names().find_image("pytorch-24.11", retired=True).release == "pytorch/24.11-r1"
    assert place.names().find_image_file("pytorch-24.11").stored


def test_an_image_of_the_module_that_is_not_here_is_told(site: Place) -> None:
    loaded = load(site, "pytorch-24.11", "pytorch/24.11-r2", "B")
    found = site.names(**{**loaded, "HPCSTACK_IMAGE": "/other/store/images/0123/image.sqsh"})
    chosen = found.find_image("pytorch-24.11")
    assert chosen.artifact.key == key_of(site, "A")
    assert "/other/store/images/0123/image.sqsh, is not in the store" in chosen.doubt


@pytest.mark.parametrize("text", ["./gone.sqsh", "/gone/x.sqsh"])
def test_a_file_that_is_not_there_is_no_stack(site: Place, text: str) -> None:
    with pytest.raises(InputError, match=r"gone.*\.sqsh does not exist"):
        site.names().find_image_to_run(text)
