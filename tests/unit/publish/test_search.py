"""`find`: what is published, stored and locked is searched; what cannot be is named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcstack.cli.session import format_table
from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.publish.holdings import list_holdings
from hpcstack.publish.search import MOST_FILES, find_hits, find_paths
from hpcstack.recipe.catalog import Catalog
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.walk import walk_paths
from hpcstack.store.artifact_format import ELSEWHERE
from support.locks import example_lock
from support.modules import Place

OLD = {"torch": "2.5.0", "urllib3": "2.0.7"}
NEW = {"torch": "2.6.0", "urllib3": "2.6.0"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A release in production with old packages, one that waits, and an image that is no release."""
    place = Place(tmp_path)
    place.publish(content=b"old", pip=OLD)
    place.publish(content=b"new", pip=NEW)
    place.artifact(
        place.stack("jax-25.04"), b"stored", pip=OLD, apt={"libssl3": "3.0.2-0ubuntu1.1"}
    )
    return place


def ask(place: Place, text: str) -> list[tuple[str, str]]:
    holdings = list_holdings(place.store, place.tree)
    hits = find_hits(text, holdings, lambda _: None)
    assert holdings.unread == []
    return [(hit.stack, hit.where) for hit in hits]


def test_releases_come_first_and_are_named(place: Place) -> None:
    assert ask(place, "urllib3<2.5") == [
        ("pytorch-24.11", "pytorch/24.11-r1 (testing)"),
        ("jax-25.04", "stored"),
    ]
    assert ask(place, "urllib3>=2.5") == [("pytorch-24.11", "pytorch/24.11-r2 (testing, default)")]
    assert ask(place, "deb:libssl3") == [("jax-25.04", "stored")]
    assert ask(place, "nothing-of-this-name") == []


def test_an_image_of_an_older_hpcstack_is_found_and_told_apart_from_a_damaged_one(
    place: Place,
) -> None:
    older, damaged, *_ = place.store.images()
    (Path(older.folder) / ELSEWHERE).unlink()
    (Path(damaged.folder) / ELSEWHERE).write_text("torn")
    holdings = list_holdings(place.store, place.tree)
    assert len(find_hits("urllib3", holdings, lambda _: None)) == 3
    assert holdings.by_older == [older]
    assert [damaged.key[:12] in one for one in holdings.unread] == [True]


def test_what_was_removed_is_no_release(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # other tests may have a release of this name loaded, in a process of this machine
    monkeypatch.setattr("hpcstack.publish.publisher.find_users", lambda *_, **__: [])
    from hpcstack.releases.changes import remove_releases

    place.publisher.change(
        "pytorch", "remove", lambda ledger, event: remove_releases(ledger, ["24.11-r1"], event), ""
    )
    assert ask(place, "urllib3<2.5") == [("jax-25.04", "stored"), ("pytorch-24.11", "stored")]


def test_a_version_that_cannot_be_compared_is_shown_as_such(place: Place) -> None:
    place.artifact(place.stack("jax-25.04"), b"odd", pip={"urllib3": "odd-version"})
    hits = find_hits("urllib3<2", list_holdings(place.store, place.tree), lambda _: None)
    assert [hit.undecided for hit in hits] == [True]


def test_a_published_image_that_is_gone_is_not_passed_over(place: Place) -> None:
    [image] = [one for one in place.store.images() if one.pip == OLD and one.apt == {}]
    shutil.rmtree(image.folder)
    holdings = list_holdings(place.store, place.tree)
    assert len(holdings.unread) == 1
    assert "pytorch/24.11-r1" in holdings.unread[0]


def test_locks_have_what_their_recipes_add(place: Place) -> None:
    catalog = Catalog([data.find_data_folder("recipes")])
    lock = example_lock(place.stack())
    place.site.lock_dir.mkdir(parents=True)
    (place.site.lock_dir / "pytorch-24.11.lock.json").write_text(lock.text())
    names = {one.name for platform in lock.base.platforms.values() for one in platform.pip or ()}
    holdings = list_holdings(place.store, place.tree, catalog, place.site)
    assert [one.stack for one in holdings.locks] == ["pytorch-24.11"] * len(lock.base.platforms)
    for name in names:
        where = [hit.where for hit in find_hits(f"pypi:{name}", holdings, lambda _: None)]
        assert "locked" in where


@pytest.mark.squashfs
def test_files_are_found_by_name_path_and_pattern(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    (folder / "usr/lib/x").mkdir(parents=True)
    for name in ("usr/lib/x/libnccl.so.2", "usr/lib/libcudart.so.12", "readme"):
        (folder / name).write_text("x")
    (folder / "usr/lib/libnccl.so").symlink_to("x/libnccl.so.2")
    (folder / "lib").symlink_to("usr/lib")
    image = tmp_path / "image.sqsh"
    subprocess.run(["mksquashfs", str(folder), str(image), "-quiet", "-no-progress"], check=True)

    assert find_paths(image, "libnccl.so.2") == ["/usr/lib/x/libnccl.so.2"]
    assert find_paths(image, "libnccl.so*") == ["/usr/lib/libnccl.so", "/usr/lib/x/libnccl.so.2"]
    assert find_paths(image, "/usr/lib/*.so.12") == ["/usr/lib/libcudart.so.12"]
    assert find_paths(image, "usr/lib/x") == ["/usr/lib/x"]
    assert find_paths(image, "nccl") == []
    # what has a slash is a whole path, and links lead to it as they lead a program
    assert find_paths(image, "/readme") == ["/readme"]
    assert find_paths(image, "/libnccl.so.2") == []
    assert find_paths(image, "/lib/libcudart.so.12") == ["/lib/libcudart.so.12"]
    with Squashfs(image) as opened:
        every = {path.decode() for path in walk_paths(opened)}
    assert every == {str(one.relative_to(folder)) for one in folder.rglob("*")}

    place.artifact(place.stack("jax-25.04"), image.read_bytes())
    holdings = list_holdings(place.store, place.tree)
    hits = find_hits("file:libnccl.so.2", holdings, lambda _: None)
    assert [(hit.stack, hit.path) for hit in hits] == [("jax-25.04", "/usr/lib/x/libnccl.so.2")]
    assert len(holdings.unread) == 3  # the others are a few bytes, and no images


@pytest.mark.squashfs
def test_of_very_many_files_it_is_said_that_some_are_left_out(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(MOST_FILES + 5):
        (folder / f"n{number}").touch()
    image = tmp_path / "many.sqsh"
    subprocess.run(["mksquashfs", str(folder), str(image), "-quiet", "-no-progress"], check=True)
    place.artifact(place.stack("jax-25.04"), image.read_bytes())
    holdings = list_holdings(place.store, place.tree)
    assert len(find_hits("file:n*", holdings, lambda _: None)) == MOST_FILES
    assert any(f"more than {MOST_FILES} such files" in one for one in holdings.unread)


def test_a_folder_that_is_in_itself_ends_the_walk() -> None:
    """A superblock may claim any number of inodes, so the folders that were seen are kept."""
    entries = {
        f"{number}".encode(): SimpleNamespace(kind=DIR, reference=0) for number in range(1000)
    }
    image: Any = SimpleNamespace(
        super=SimpleNamespace(root=0, inodes=1 << 31),
        inode=lambda _: SimpleNamespace(number=1),
        listing=lambda _: entries,
    )
    with pytest.raises(Unreadable):
        list(walk_paths(image))


def test_folders_that_lie_too_deep_end_the_walk() -> None:
    """Each path is whole, so very deep ones would cost more and more."""
    image: Any = SimpleNamespace(
        super=SimpleNamespace(root=0, inodes=1 << 31),
        inode=lambda number: SimpleNamespace(number=number),
        listing=lambda folder: {b"x" * 255: SimpleNamespace(kind=DIR, reference=folder.number + 1)},
    )
    with pytest.raises(Unreadable):
        list(walk_paths(image))


def test_a_damaged_image_is_not_passed_over(place: Place) -> None:
    [image] = [one for one in place.store.images() if one.apt]
    (Path(image.folder) / "artifact.json").write_text("{")
    holdings = list_holdings(place.store, place.tree)
    assert [one for one in holdings.unread if image.key in one]


def test_a_line_break_makes_no_row() -> None:
    table = format_table([("evil\npypi:torch 9.9", "x\t\u2028y")], ("WHAT", "STACK"))
    assert table.splitlines()[1:] == ["evil pypi:torch 9.9  x  y"]


def test_a_version_of_thousands_of_digits_stops_nothing(place: Place) -> None:
    place.artifact(place.stack("jax-25.04"), b"odd", pip={"torch": "9" * 5000})
    hits = find_hits("torch<3", list_holdings(place.store, place.tree), lambda _: None)
    assert any(hit.undecided for hit in hits)


def test_a_file_needs_a_name(place: Place) -> None:
    with pytest.raises(InputError):
        ask(place, "file:/")
