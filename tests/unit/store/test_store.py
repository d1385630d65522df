"""The store: whole or not there, one builder per key, and refusals that say what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcstack.core.errors import StoreError
from hpcstack.core.files import digest_of
from hpcstack.site.load import Site
from hpcstack.store.artifact import Artifact
from hpcstack.store.artifact_format import ELSEWHERE, read_elsewhere, write_artifact
from hpcstack.store.package import (
    NOT_LOOKED,
    Package,
    PackagesElsewhere,
    list_packages_elsewhere,
)
from hpcstack.store.store import Store, open_store


def artifact(image: Path, key: str = "k1") -> Artifact:
    return Artifact(
        stack="demo-1.0", key=key, sha256=digest_of(image), size=image.stat().st_size, platform="linux/amd64",
        engine="apptainer", lock_sha256="1" * 64, base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={},
    )  # fmt: skip


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(os.urandom(100_000))
    (tmp_path / "log").write_text("log")
    return path


def test_what_is_put_is_found_whole(tmp_path: Path, image: Path) -> None:
    store = Store(tmp_path / "store")
    put = store.put(artifact(image), image, tmp_path / "log", lock="{}\n")
    assert put.image.read_bytes() == image.read_bytes()
    assert (put.image.parent / "lock.json").read_text() == "{}\n"
    assert store.artifact("k1") == put == store.newest("demo-1.0")
    assert list(store.stacks()) == ["demo-1.0"]
    assert list((tmp_path / "store/incoming").iterdir()) == []


def test_nothing_is_there_before_anything_is_put(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert (store.artifact("k1"), store.newest("demo-1.0"), store.stacks()) == (None, None, {})


def test_an_image_is_put_instead_of_another(tmp_path: Path, image: Path) -> None:
    store = Store(tmp_path / "store")
    store.put(artifact(image), image, tmp_path / "log")
    other = tmp_path / "other"
    other.write_bytes(b"another image")
    put = store.put(artifact(other), other, tmp_path / "log", instead=True)
    assert put.image.read_bytes() == b"another image"
    assert not list((tmp_path / "store/incoming").iterdir())


def test_a_torn_image_is_refused(tmp_path: Path, image: Path) -> None:
    store = Store(tmp_path / "store")
    put = store.put(artifact(image), image, tmp_path / "log")
    put.image.write_bytes(b"short")
    with pytest.raises(StoreError, match="not the file that was stored"):
        store.artifact("k1")


def test_bytes_that_differ_from_the_digest_are_not_stored(tmp_path: Path, image: Path) -> None:
    store, wrong = Store(tmp_path / "store"), artifact(image)
    image.write_bytes(os.urandom(100_000))
    with pytest.raises(StoreError, match="differs"):
        store.put(wrong, image, tmp_path / "log")
    assert store.artifact("k1") is None


def test_a_path_that_cannot_be_written(tmp_path: Path, image: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="not stored"):
        Store(tmp_path / "file/store").put(artifact(image), image, tmp_path / "log")


def test_what_is_stored_is_readable_for_all_whatever_the_umask(tmp_path: Path, image: Path) -> None:
    old = os.umask(0o077)
    try:
        put = Store(tmp_path / "store").put(artifact(image), image, tmp_path / "log")
    finally:
        os.umask(old)
    for path in (
        put.image,
        put.image.parent,
        put.image.parent.parent,
        tmp_path / "store",
        tmp_path / "store/stacks",
    ):
        assert path.stat().st_mode & 0o444 == 0o444, path


def test_leftovers_and_damage_do_not_disturb_a_list(tmp_path: Path, image: Path) -> None:
    store = Store(tmp_path / "store")
    put = store.put(artifact(image), image, tmp_path / "log")
    (tmp_path / "store/stacks/.demo-1.0.abc.part").write_text("k1")
    (tmp_path / "store/stacks/other-1").write_bytes(b"\xff")
    store.put(
        replace(artifact(image, "k2"), stack="damaged-1"), image, tmp_path / "log"
    ).image.write_bytes(b"")
    assert store.stacks() == {"demo-1.0": put}


KILLED = """
import os, signal, sys
from pathlib import Path
from hpcstack.core import descriptors
from hpcstack.store.store import Store

os.rename = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
Store(Path(sys.argv[1])).point("demo-1.0", "k1")
"""


def test_a_pointer_whose_writer_was_killed_is_swept_by_the_next(tmp_path: Path) -> None:
    """Whoever is killed before the rename leaves a file with its label."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    left = list((tmp_path / "stacks").iterdir())
    assert done.returncode == -9
    assert len(left) == 1
    assert left[0].name.endswith(".part")
    Store(tmp_path).point("demo-1.0", "k2")
    assert [path.name for path in (tmp_path / "stacks").iterdir()] == ["demo-1.0"]


def change_record(path: Path, change: dict[str, object], *, without: tuple[str, ...] = ()) -> None:
    """The record PATH with CHANGE in it."""
    document = {**json.loads(path.read_text()), **change}
    path.write_text(
        json.dumps({name: value for name, value in document.items() if name not in without})
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"added": 1}, "added: Extra inputs are not permitted"),
        ({"pip": [1]}, "pip: Input should be a valid dictionary"),
        ({"pip": {"a": "\x1b]0;x"}}, "pip.a: Value error, it holds a control character"),
        ({"size": "5"}, "size: Input should be a valid integer"),
        ({"sha256": "../x"}, "sha256"),
        ({"key": "../../x"}, "key: String should match pattern"),
        ({"format": "hpcstack/artifact/one"}, "of another hpcstack"),
        ({"format": 1}, "of another hpcstack"),
        ({"stack": "x" * 3000}, "stack: String should have at most"),
    ],
)
def test_a_record_says_what_a_record_can(
    tmp_path: Path, image: Path, change: dict[str, object], says: str
) -> None:
    store = Store(tmp_path / "store")
    record = store.put(artifact(image), image, tmp_path / "log").image.parent / "artifact.json"
    change_record(record, change)
    with pytest.raises(StoreError, match=re.escape(says)):
        store.artifact("k1")


@pytest.mark.parametrize("text", ["{}", "[]", "{", "[" * 5000, '"x"', "null"])
def test_what_is_no_record_is_refused(tmp_path: Path, image: Path, text: str) -> None:
    store = Store(tmp_path / "store")
    record = store.put(artifact(image), image, tmp_path / "log").image.parent / "artifact.json"
    record.write_text(text)
    with pytest.raises(StoreError, match=r"damaged|cannot be read"):
        store.artifact("k1")


def test_a_record_of_a_newer_hpcstack_is_read_and_not_replaced(tmp_path: Path, image: Path) -> None:
    store = Store(tmp_path / "store")
    made = store.put(artifact(image), image, tmp_path / "log")
    change_record(
        made.image.parent / "artifact.json", {"format": "hpcstack/artifact/v2", "added": {"x": 1}}
    )
    assert store.artifact("k1") == made
    with pytest.raises(
        StoreError, match=r"written by a newer hpcstack \(format 2; this one writes 1\)"
    ):
        store.put(artifact(image), image, tmp_path / "log", instead=True)
    assert store.artifact("k1") == made


def test_a_record_of_before_there_were_formats_is_read(tmp_path: Path, image: Path) -> None:
    store = Store(tmp_path / "store")
    made = store.put(artifact(image), image, tmp_path / "log")
    change_record(
        made.image.parent / "artifact.json", {"known_once": 1}, without=("format", "unconfined")
    )
    assert store.artifact("k1") == made


def test_a_users_own_store_lies_over_the_sites(tmp_path: Path, image: Path) -> None:
    """admin 10: what is the site's is read and never written; what is made is the user's."""
    below = Store(tmp_path / "site")
    own = Store(tmp_path / "own", below=below)
    of_the_site = below.put(artifact(image, "a1"), image, tmp_path / "log")
    mine = own.put(replace(artifact(image, "b2"), stack="mine-1"), image, tmp_path / "log")
    assert sorted(own.stacks()) == ["demo-1.0", "mine-1"]
    assert sorted(below.stacks()) == ["demo-1.0"]
    assert own.images() == [of_the_site, mine]
    assert below.images() == [of_the_site]
    assert own.artifact("a1") == of_the_site
    assert of_the_site.image.is_relative_to(below.top)
    mine_of_the_sites_name = own.put(artifact(image, "c3"), image, tmp_path / "log")
    assert own.newest("demo-1.0") == mine_of_the_sites_name
    assert below.newest("demo-1.0") == of_the_site
    assert own.releases == below.top / "releases"


def test_a_store_of_ones_own_that_is_anothers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own", "site"):
        (tmp_path / name).mkdir()
    site = Site(
        store=tmp_path / "site",
        user_store=tmp_path / "own",
        lock_dir=tmp_path,
        module_root=tmp_path,
    )
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Site, "_is_administrators", lambda _: False)
    assert open_store(site).below
    if os.geteuid() == 0:
        os.chown(tmp_path / "own", 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(StoreError, match="can put something else in the place of"):
        open_store(site)


@pytest.mark.parametrize("made", [True, False])
def test_a_way_to_ones_own_store_that_anybody_may_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    """/scratch without a sticky bit: another user could put his store in the place of ours, before
    it is made or after.
    """
    (tmp_path / "site").mkdir()
    open_to_all = tmp_path / "scratch"
    open_to_all.mkdir()
    own = open_to_all / "hpcstack"
    if made:
        own.mkdir()
    site = Site(store=tmp_path / "site", user_store=own, lock_dir=tmp_path, module_root=tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Site, "_is_administrators", lambda _: False)
    assert open_store(site).below
    open_to_all.chmod(0o777)
    with pytest.raises(StoreError, match="lets anybody put something else"):
        open_store(site)


def test_packages_that_lie_elsewhere_are_in_a_file_that_an_older_hpcstack_overlooks(
    tmp_path: Path, image: Path
) -> None:
    store = Store(tmp_path / "store")
    made = replace(artifact(image), elsewhere={"/opt/venv": {"six": "1.16"}})
    assert "elsewhere" not in json.loads(write_artifact(made))

    stored = store.put(made, image, tmp_path / "log")
    assert read_elsewhere(stored) == made.elsewhere
    found = list_packages_elsewhere(stored)
    assert found == PackagesElsewhere([Package("pypi", "six", "1.16", "/opt/venv")])

    path = Path(stored.folder) / ELSEWHERE
    path.write_text("torn")
    with pytest.raises(StoreError, match="cannot be read"):
        read_elsewhere(stored)
    assert list_packages_elsewhere(stored).doubt.startswith(str(path))
    path.unlink()
    assert list_packages_elsewhere(stored) == PackagesElsewhere([], NOT_LOOKED, was_looked=False)
