"""Who imports, who waits, and who is told what."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conftest import make_site
from hpcstack.core.errors import HpcstackError, LoginRefused, RegistryError, StoreError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.imagecache.collect import check_room, collect_cache
from hpcstack.imagecache.layout import IMAGE, CachedImage, ImageCache
from hpcstack.imagecache.provide import (
    IMPORTS,
    IMPORTS_OF_ONE,
    Provided,
    Provider,
    WantedImage,
    check_shareable,
    import_slot,
    pin_digest,
)
from hpcstack.imagecache.refusals import HolderGone, NotShared
from hpcstack.oci.client import Registry
from hpcstack.oci.reference import parse_registry_image
from hpcstack.recipe.model import Base

DIGEST = "sha256:" + "1" * 64
IMAGE_NAME = "nvcr.io/a/b:1"


class Answers(Registry):
    """A registry that says what it is told, and counts."""

    def __init__(self, site: Any, *, error: HpcstackError | None = None) -> None:
        super().__init__(site)
        self.error, self.asked = error, 0

    def digest(self, base: Base) -> str:
        self.asked += 1
        if self.error:
            raise self.error
        return base.digest or DIGEST


class Importing(Provider):
    """Everything but the import itself, which takes TAKES seconds or fails."""

    imports: list[int] = []
    fails: list[HpcstackError] = []
    takes = 1.0
    public = True

    def _import(self, key: str, base: Base, wanted: WantedImage) -> CachedImage:
        self.imports.append(wanted.user)
        time.sleep(self.takes)
        if self.fails:
            raise self.fails.pop(0)
        folder = self.cache.new_folder()
        (folder / IMAGE).write_bytes(b"hsqs")
        entry = CachedImage(base.image, base.digest, wanted.platform, 4, public=self.public)
        self.cache.put(folder, key, entry)
        return entry


@pytest.fixture
def cache(tmp_path: Path) -> ImageCache:
    Importing.imports.clear()
    Importing.fails.clear()
    found = ImageCache(tmp_path / "cache")
    found.prepare()
    return found


def provider(cache: ImageCache, **how: Any) -> Importing:
    site = make_site(cache.top.parent)
    return Importing(cache, site, Answers(site, **how), Runner(), Progress())


def wanted(user: int = 61001, step: str = "", image: str = IMAGE_NAME) -> WantedImage:
    return WantedImage(image, "linux/amd64", user, step)


def at_once(
    cache: ImageCache, count: int, step: str = ""
) -> tuple[list[Provided | HpcstackError], list[Importing]]:
    """What COUNT users who ask at the same time get."""
    out: list[Provided | HpcstackError] = []
    providers = [provider(cache) for _ in range(count)]

    def work(number: int) -> None:
        try:
            out.append(providers[number].provide(wanted(61001 if step else 61001 + number, step)))
        except HpcstackError as error:
            out.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out, providers


def test_one_imports_and_the_others_wait(cache: ImageCache) -> None:
    given, _ = at_once(cache, 6)
    assert len(Importing.imports) == 1
    assert (
        sorted(one.how for one in given if isinstance(one, Provided))
        == ["imported"] + ["waited for"] * 5
    )
    assert provider(cache).provide(wanted()).how == "there"
    assert len(Importing.imports) == 1


def test_a_step_of_several_nodes_asks_the_registry_once(cache: ImageCache) -> None:
    given, providers = at_once(cache, 6, step="7+0+")
    assert len({one.path for one in given if isinstance(one, Provided)}) == 1
    assert len(given) == 6
    assert sum(one.registry.asked for one in providers) == 1  # type: ignore[attr-defined]
    other = provider(cache)
    other.provide(wanted(61002, "7+0+"))
    assert other.registry.asked == 1, "another user shows his own right"  # type: ignore[attr-defined]


def test_what_stopped_the_importer_is_told_to_who_waits(cache: ImageCache) -> None:
    Importing.fails.append(StoreError("the disk is full", "make room"))
    given, _ = at_once(cache, 4)
    assert len(Importing.imports) == 1
    assert all(isinstance(one, StoreError) for one in given)
    assert all("the disk is full" in str(one) for one in given)
    assert provider(cache).provide(wanted()).how == "imported", "who comes later tries again"


@pytest.mark.parametrize("error", [LoginRefused("refused"), HolderGone("gone")])
def test_what_one_login_may_not_do_another_goes_on_with(
    cache: ImageCache, error: HpcstackError
) -> None:
    Importing.fails.append(error)
    given, _ = at_once(cache, 3)
    assert len(Importing.imports) == 2
    assert sum(isinstance(one, Provided) for one in given) == 2
    assert sum(one is error for one in given) == 1


def test_a_user_whom_the_registry_refuses_gets_nothing(cache: ImageCache) -> None:
    provider(cache).provide(wanted())
    with pytest.raises(LoginRefused):
        provider(cache, error=LoginRefused("no")).provide(wanted())
    with pytest.raises(LoginRefused):
        provider(cache, error=LoginRefused("no")).provide(wanted(image=f"nvcr.io/a/b@{DIGEST}"))


def test_without_its_registry_only_a_digest_can_be_had(cache: ImageCache) -> None:
    provider(cache).provide(wanted())
    down = provider(cache, error=RegistryError("down"))
    with pytest.raises(RegistryError):
        down.provide(wanted())
    assert down.provide(wanted(image=f"nvcr.io/a/b@{DIGEST}")).how == "there"
    with pytest.raises(RegistryError):
        down.provide(wanted(image="nvcr.io/a/b@sha256:" + "2" * 64))


@pytest.mark.parametrize(
    "name",
    [
        "localhost:5000/a",
        "127.0.0.1/a/b",
        "10.0.0.1:80/a",
        "node1:5000/a",
        "registry.local/a/b",
        "[::1]:5000/a",
        "0x7f.1/a",
    ],
)
def test_a_registry_that_a_user_could_be_is_not_shared(tmp_path: Path, name: str) -> None:
    try:
        base = parse_registry_image(name)
    except HpcstackError:
        return  # it is no image at all
    with pytest.raises(NotShared, match="may be anybody's"):
        check_shareable(base, make_site(tmp_path))


def test_a_registry_that_the_site_names_is_shared(tmp_path: Path) -> None:
    site = make_site(tmp_path, registries={"10.0.0.1:5000": {"plain_http": True}})
    check_shareable(parse_registry_image("10.0.0.1:5000/a/b"), site)
    check_shareable(parse_registry_image("nvcr.io/a/b"), site)
    check_shareable(parse_registry_image("ubuntu"), site)


def test_an_image_is_pinned_by_its_digest() -> None:
    assert pin_digest(parse_registry_image(IMAGE_NAME), DIGEST).image == f"nvcr.io/a/b@{DIGEST}"


def test_a_right_is_not_renewed_while_the_registry_is_down(cache: ImageCache) -> None:
    class Private(Importing):
        def _import(self, key: str, base: Base, wanted: WantedImage) -> CachedImage:
            folder = self.cache.new_folder()
            (folder / IMAGE).write_bytes(b"hsqs")
            self.cache.put(
                folder, key, CachedImage(base.image, base.digest, wanted.platform, 4, public=False)
            )
            found = self.cache.entry(key)
            assert found
            return found

    site = make_site(cache.top.parent)
    first = Private(cache, site, Answers(site), Runner(), Progress()).provide(wanted())
    (mark,) = (cache.top / "grants").iterdir()
    day = 86400
    old = mark.stat().st_mtime - 6 * day
    os.utime(mark, (old, old))
    down = provider(cache, error=RegistryError("down"))
    named = wanted(image=f"nvcr.io/a/b@{DIGEST}", step="7+0+")
    assert down.provide(named).path == first.path
    assert mark.stat().st_mtime == old
    again = provider(cache, error=RegistryError("down"))
    assert again.provide(named).path == first.path
    assert again.registry.asked == 0, "told what the first node was told"  # type: ignore[attr-defined]
    assert mark.stat().st_mtime == old


def test_a_size_that_a_registry_claims_empties_no_cache(cache: ImageCache) -> None:
    provider(cache).provide(wanted())
    (path,) = (cache.top / "images").iterdir()
    os.utime(path / "used", (1, 1))
    with pytest.raises(NotShared, match="no room"):
        check_room(cache, 10_000, 1000, 2000, "k")
    with pytest.raises(NotShared, match="no room"):
        check_room(cache, 100_000, 0, 1 << 60, "k")
    assert check_room(cache, 30, 1000, 999, "k") == [] and path.exists(), (
        "nothing goes for what has not come"
    )
    assert [one.key for one in collect_cache(cache, 30, 1000, 999)] == [path.name]


def test_what_is_left_of_imports_makes_room(cache: ImageCache) -> None:
    left = cache.top / "partial/k.1/blobs"
    left.mkdir(parents=True)
    (left / "sha256-1").write_bytes(bytes(8192))
    (cache.top / "leases/import-k").touch()
    with pytest.raises(NotShared, match="no room"):
        check_room(cache, 30, 8000, 1000, "other")
    assert left.exists(), "somebody imports with it"
    assert check_room(cache, 30, 8000, 1000, "k") == [] and left.exists(), (
        "its own is no trouble to who goes on with it"
    )
    os.utime(cache.top / "leases/import-k", (1, 1))  # its holder was killed, and renews it no more
    assert check_room(cache, 30, 8000, 1000, "other") == []
    assert not left.exists()


def test_what_is_imported_now_needs_its_room_too(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcstack.imagecache.collect._free", lambda _: 5000)
    check_room(cache, 30, 0, 2000, "k")
    (cache.top / "incoming/other.json").write_text('{"done": 1, "total": 1000}')
    (cache.top / "leases/import-other").touch()
    with pytest.raises(NotShared, match="no room"):
        check_room(cache, 30, 0, 2000, "k")
    os.utime(cache.top / "leases/import-other", (1, 1))
    check_room(cache, 30, 0, 2000, "k")


def test_a_node_does_a_few_imports_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(IMPORTS):
            stack.enter_context(import_slot(tmp_path, number // IMPORTS_OF_ONE))
        with pytest.raises(NotShared, match="for all"), import_slot(tmp_path, 99):
            pass
    with import_slot(tmp_path, 1):
        pass
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir()), (
        "others could hold them open"
    )


def test_one_user_does_not_take_all_of_them(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for _ in range(IMPORTS_OF_ONE):
            stack.enter_context(import_slot(tmp_path, 1))
        with pytest.raises(NotShared, match="for you"), import_slot(tmp_path, 1):
            pass
        stack.enter_context(import_slot(tmp_path, 2))


def test_what_a_registry_told_one_user_is_nobody_elses(cache: ImageCache) -> None:
    Importing.fails.append(RegistryError("over the limit of pulls"))
    given, _ = at_once(cache, 4)
    assert len(Importing.imports) == 2
    assert sum(isinstance(one, Provided) for one in given) == 3


def test_why_an_image_is_not_shared_is_told_to_all_at_once(cache: ImageCache) -> None:
    Importing.fails.append(NotShared("no room"))
    given, _ = at_once(cache, 6)
    assert len(Importing.imports) == 1
    assert all(isinstance(one, NotShared) for one in given)


def test_the_nodes_of_a_step_wait_once_for_a_registry_that_is_down(cache: ImageCache) -> None:
    class Slow(Answers):
        def digest(self, base: Base) -> str:
            time.sleep(0.5)
            return super().digest(base)

    site, told = make_site(cache.top.parent), []
    asking = [Slow(site, error=RegistryError("down")) for _ in range(8)]

    def work(registry: Slow) -> None:
        with pytest.raises(RegistryError) as error:
            Importing(cache, site, registry, Runner(), Progress()).provide(wanted(step="7+0+"))
        told.append(str(error.value))

    threads = [threading.Thread(target=work, args=(registry,)) for registry in asking]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.asked for one in asking) == 1
    assert len(told) == 8
    assert all("down" in one for one in told)


@pytest.mark.parametrize("public", [True, False])
def test_an_image_that_is_collected_as_it_is_given_is_imported_again(
    cache: ImageCache, public: bool
) -> None:
    asked = provider(cache)
    asked.public = public
    asked.provide(wanted())
    grant = cache.grant

    def collected(key: str, entry: CachedImage, user: int) -> None:
        cache.remove(key)
        cache.grant = grant  # type: ignore[method-assign]
        grant(key, entry, user)

    cache.grant = collected  # type: ignore[method-assign]
    given = asked.provide(wanted())
    assert given.how == "imported"
    assert given.path.exists()
