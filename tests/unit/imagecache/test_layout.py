"""The cache's folders: whole or not there, and only for who has shown his right."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcstack.core.errors import StoreError
from hpcstack.imagecache import acl
from hpcstack.imagecache.layout import (
    FAILED_S,
    GRANT_S,
    IMAGE,
    STEP_S,
    CachedImage,
    ImageCache,
    key_of,
)
from hpcstack.oci.reference import parse_registry_image

DIGEST = "sha256:" + "1" * 64


@pytest.fixture
def cache(tmp_path: Path) -> ImageCache:
    found = ImageCache(tmp_path / "cache")
    found.prepare()
    return found


def put(
    cache: ImageCache, key: str = "k", *, public: bool = False, data: bytes = b"hsqs"
) -> CachedImage:
    folder = cache.new_folder()
    (folder / IMAGE).write_bytes(data)
    entry = CachedImage("nvcr.io/a/b@" + DIGEST, DIGEST, "linux/amd64", len(data), public)
    cache.put(folder, key, entry)
    return entry


def test_a_key_is_of_one_registry_one_repository_and_one_platform() -> None:
    """A digest alone opens nothing: its manifest may have been copied by who saw it."""
    images = ("nvcr.io/a/b:1", "nvcr.io/a/c:1", "evil.example/a/b:1")
    keys = {
        key_of(parse_registry_image(image), DIGEST, platform)
        for image in images
        for platform in ("linux/amd64", "linux/arm64")
    }
    assert len(keys) == 6
    assert key_of(parse_registry_image("nvcr.io/a/b:1"), DIGEST, "p") == key_of(
        parse_registry_image("nvcr.io#a/b:2"), DIGEST, "p"
    )


def test_what_is_put_is_there_for_its_readers(cache: ImageCache) -> None:
    entry = put(cache)
    assert cache.entry("k") == entry
    assert cache.image("k").read_bytes() == b"hsqs"
    assert cache.image("k").stat().st_mode & 0o777 == 0o600
    cache.grant("k", entry, 61001)
    cache.grant("k", entry, 61002)
    assert acl.list_readers(cache.image("k")) == {61001, 61002}
    assert cache.may_read("k", entry, 61001)
    assert not cache.may_read("k", entry, 61003)
    assert list((cache.top / "incoming").iterdir()) == []


def test_what_everybody_may_pull_everybody_may_read(cache: ImageCache) -> None:
    entry = put(cache, public=True)
    cache.grant("k", entry, 61001)
    assert cache.image("k").stat().st_mode & 0o777 == 0o644
    assert acl.list_readers(cache.image("k")) == set()
    assert cache.may_read("k", entry, 61003)


def test_a_right_that_was_not_shown_for_long_is_taken_back(cache: ImageCache) -> None:
    entry = put(cache)
    for user in (61001, 61002):
        cache.grant("k", entry, user)
    old = (cache.top).stat().st_mtime - GRANT_S - 10
    os.utime(cache.top / "grants/k-61001", (old, old))
    assert not cache.may_read("k", entry, 61001)
    assert cache.withdraw_grants() == 1
    assert acl.list_readers(cache.image("k")) == {61002}
    cache.grant("k", entry, 61001)
    assert acl.list_readers(cache.image("k")) == {61001, 61002}


def test_a_torn_image_is_not_there_and_is_replaced(cache: ImageCache) -> None:
    put(cache)
    cache.image("k").write_bytes(b"hs")
    assert cache.entry("k") is None
    assert cache.entries() == {}
    entry = put(cache, data=b"again")
    assert cache.entry("k") == entry
    assert cache.image("k").read_bytes() == b"again"
    (cache.top / "images/k/entry.json").write_text('{"image": 1}')
    assert cache.entry("k") is None


def test_what_is_removed_is_gone_with_its_rights(cache: ImageCache) -> None:
    cache.grant("k", put(cache), 61001)
    cache.remove("k")
    cache.remove("k")
    assert not any(
        (cache.top / name).glob("*") and list((cache.top / name).iterdir())
        for name in ("images", "grants", "incoming")
    )


def test_what_was_got_meanwhile_stays(cache: ImageCache) -> None:
    put(cache)
    since = cache.used("k")
    os.utime(cache.top / "images/k/used", (since + 1, since + 1))
    assert not cache.remove("k", since)
    assert cache.entry("k")
    assert cache.remove("k", since + 1)
    assert not cache.entry("k")


def test_a_step_is_known_for_minutes(cache: ImageCache) -> None:
    assert cache.step("s") == {}
    for said, seconds in (({"digest": DIGEST, "shown": True}, STEP_S), ({"digest": DIGEST, "shown": False}, FAILED_S),
                          ({"kind": "registry"}, FAILED_S)):  # fmt: skip
        cache.write_step("s", said, 61001)
        assert cache.step("s") == said
        old = (cache.top / "steps/s").stat().st_mtime - seconds - 10
        os.utime(cache.top / "steps/s", (old, old))
        assert cache.step("s") == {}
    os.utime(cache.top / "steps/s", (1, 1))
    cache.forget_steps()
    assert list((cache.top / "steps").iterdir()) == []


def test_a_cache_that_others_write_is_none(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(StoreError, match="others may write"):
        ImageCache(tmp_path / "cache").prepare()


def test_rights_to_an_image_that_was_torn_are_granted_anew(cache: ImageCache) -> None:
    """A mark alone is no right: the new file has no ACL."""
    cache.grant("k", put(cache), 61001)
    cache.image("k").write_bytes(b"hs")
    entry = put(cache, data=b"again")
    assert acl.list_readers(cache.image("k")) == set()
    cache.grant("k", entry, 61001)
    assert acl.list_readers(cache.image("k")) == {61001}
    acl.set_readers(cache.image("k"), set())
    cache.grant("k", entry, 61001)
    assert acl.list_readers(cache.image("k")) == {61001}, "also where only the ACL is gone"


def test_a_second_import_leaves_the_image_that_is_there(cache: ImageCache) -> None:
    entry = put(cache)
    number = cache.image("k").stat().st_ino
    put(cache, data=b"other")
    assert cache.entry("k") == entry
    assert cache.image("k").stat().st_ino == number


def test_what_imports_leave_behind_goes_by_age(cache: ImageCache) -> None:
    (cache.top / "partial/k").mkdir()
    (cache.top / "failed/k").write_text("{}")
    cache.forget_imports(60)
    assert (cache.top / "partial/k").exists()
    for path in ("partial/k", "failed/k"):
        os.utime(cache.top / path, (1, 1))
    cache.forget_imports(60)
    assert not list((cache.top / "partial").iterdir())
    assert not list((cache.top / "failed").iterdir())


def test_a_record_of_the_cache_is_read_strictly(cache: ImageCache) -> None:
    """One without a number is as version 1 was; a newer one is read as far as it is known; what is
    added is refused.
    """
    entry = put(cache)
    path = cache.image("k").with_name("entry.json")
    written = json.loads(path.read_text())
    assert written["format"] == "hpcstack/cached-image/v1"
    changes: list[tuple[dict[str, object], bool]] = [
        ({}, True),
        ({"format": None}, True),
        ({"format": "hpcstack/cached-image/v2", "added": 1}, True),
        ({"added": 1}, False),
        ({"size": "4"}, False),
        ({"format": "hpcstack/modules/v1"}, False),
        ({"image": "a\x1b[2J"}, False),
    ]
    for change, readable in changes:
        document = {key: value for key, value in {**written, **change}.items() if value is not None}
        path.write_text(json.dumps(document))
        assert cache.entry("k") == (entry if readable else None), change
