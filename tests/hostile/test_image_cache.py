"""A user who fills the image cache, which all users of the cluster share: row T9."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.core.errors import RegistryError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.imagecache import collect, layout, serve
from hpcstack.imagecache.collect import (
    Going,
    check_room,
    check_share,
    choose_expired,
    collect_cache,
    sweep_cache,
    sweep_unswept,
)
from hpcstack.imagecache.layout import IMAGE, STEP_S, CachedImage, ImageCache
from hpcstack.imagecache.provide import Provider, WantedImage
from hpcstack.imagecache.refusals import NotShared
from hpcstack.oci.client import Registry
from hpcstack.recipe.model import Base

ATTACKER, OTHER = 61001, 61002
DIGEST = "sha256:" + "1" * 64


@pytest.fixture
def cache(tmp_path: Path) -> ImageCache:
    found = ImageCache(tmp_path / "cache")
    found.prepare()
    return found


class Refusing(Registry):
    """A registry that has nothing."""

    def digest(self, base: Base) -> str:
        raise RegistryError("there is no such image", "name another")


def list_files(cache: ImageCache) -> list[str]:
    return sorted(
        str(path.relative_to(cache.top)) for path in cache.top.rglob("*") if path.is_file()
    )


def put(cache: ImageCache, key: str, size: int, importer: int, idle_days: float) -> None:
    folder = cache.new_folder()
    (folder / IMAGE).write_bytes(bytes(size))
    entry = CachedImage(f"nvcr.io/a/b@{key}", DIGEST, "linux/amd64", size, True, importer)
    cache.put(folder, key, entry)
    used = time.time() - idle_days * 86400
    os.utime(cache.top / "images" / key / "used", (used, used))


def test_t9_requests_for_nothing_leave_a_bounded_number_of_files(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a job step of its own, as fast as he can."""
    monkeypatch.setattr(layout, "STEPS_OF_ONE", 10)
    site = make_site(cache.top.parent)
    provider = Provider(cache, site, Refusing(site), Runner(), Progress())
    for user, count in ((OTHER, 5), (ATTACKER, 50)):
        for number in range(count):
            wanted = WantedImage("nvcr.io/a/b:1", "linux/amd64", user, f"{number}+0+")
            with pytest.raises(RegistryError):
                provider.provide(wanted)
    left = [name for name in list_files(cache) if not name.startswith("leases/.")]
    assert len([name for name in left if name.startswith(f"steps/{ATTACKER}-")]) == 10
    assert len([name for name in left if name.startswith(f"steps/{OTHER}-")]) == 5
    assert len(left) == 15
    # The newest of his own are known: a real job's nodes are told what its first node was told.
    last = WantedImage("nvcr.io/a/b:1", "linux/amd64", ATTACKER, "49+0+")
    with pytest.raises(RegistryError, match="told to the first node"):
        provider.provide(last)


def test_t9_what_requests_leave_goes_though_nothing_is_imported(cache: ImageCache) -> None:
    cache.write_step(f"{ATTACKER}-a", {"digest": DIGEST}, ATTACKER)
    (cache.top / "failed/k").write_text("{}")
    for name in (f"steps/{ATTACKER}-a", "failed/k"):
        old = time.time() - STEP_S - 10
        os.utime(cache.top / name, (old, old))
    sweep_unswept(cache)
    assert [name for name in list_files(cache) if not name.startswith("leases/.")] == []


def test_t9_one_node_of_many_sweeps(cache: ImageCache) -> None:
    assert [cache.is_unswept() for _ in range(3)] == [True, False, False]
    os.utime(cache.top / "leases/.swept", (1, 1))
    assert cache.is_unswept()


def test_t9_the_service_sweeps(
    cache: ImageCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again, each time in a process of its own, and while nobody asks."""
    monkeypatch.setattr(serve, "LOOK_S", 0.1)
    monkeypatch.setattr(serve, "REAP_S", 0.1)
    swept = tmp_path / "swept"
    child = os.fork()
    if not child:
        try:
            sweep = write_process(swept)
            with serve.listen_on(tmp_path / "socket") as listening:
                serve.serve_socket(listening, lambda _line, _user: "gone", sweep=sweep)
        finally:
            os._exit(1)
    try:
        for _ in range(100):
            processes = swept.read_text().split() if swept.exists() else []
            if len(processes) >= 3:
                break
            time.sleep(0.1)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert len(set(processes)) >= 3
    assert str(child) not in processes


def write_process(path: Path) -> Callable[[], None]:
    def sweep() -> None:
        with path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        raise OSError("the disk is full")  # which ends this process, and not the service

    return sweep


def test_t9_imports_that_fail_leave_a_few_layers_each_user(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PARTIALS_OF_ONE", 3)

    def fail(key: str, user: int) -> None:
        with pytest.raises(RegistryError), cache.importing(key, user):
            (cache.top / "partial" / key).mkdir(exist_ok=True)
            (cache.top / "partial" / key / "layer").write_bytes(bytes(100))
            raise RegistryError("it ends in the middle", "try again")

    fail("other", OTHER)
    for number in range(10):
        fail(f"k{number}", ATTACKER)
        time.sleep(0.01)
    kept = {path.name for path in (cache.top / "partial").iterdir() if path.is_dir()}
    assert kept == {"other", "k7", "k8", "k9"}
    with cache.importing("k9", ATTACKER):  # gone on with, and this time it becomes an image
        (cache.top / "partial/k9/layer").unlink()
        (cache.top / "partial/k9").rmdir()
    assert not list((cache.top / "partial").glob("k9*"))


def test_t9_what_is_imported_now_is_not_taken_away(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PARTIALS_OF_ONE", 1)
    with cache.importing("running", ATTACKER):
        (cache.top / "partial/running").mkdir()
        (cache.top / "leases/import-running").touch()
        with cache.importing("another", ATTACKER):
            pass
        assert (cache.top / "partial/running").is_dir()


def test_t9_who_imports_much_takes_nothing_of_others(cache: ImageCache) -> None:
    put(cache, "others", 600, OTHER, idle_days=5)
    put(cache, "his-old", 150, ATTACKER, idle_days=3)
    put(cache, "his-new", 150, ATTACKER, idle_days=0)
    # The cache holds 1,000 bytes. He wants 200 more; the longest unused is somebody else's.
    assert [one.key for one in collect_cache(cache, 30, 1000, 200, ATTACKER)] == ["his-old"]
    for coming in (260, 900):
        with pytest.raises(NotShared, match="more than 25% of it would be imported for you"):
            check_room(cache, 30, 1000, coming, "k", ATTACKER)
    # Everybody else goes on as before, also with a first image that is large.
    assert check_room(cache, 30, 1000, 450, "k", 61003) == []
    assert [one.key for one in collect_cache(cache, 30, 1000, 450, 61003)] == ["others"]


def test_t9_a_first_image_is_not_nearly_all_of_the_cache(cache: ImageCache) -> None:
    for number in range(9):
        put(cache, f"other{number}", 100, OTHER, idle_days=2)
    with pytest.raises(NotShared):
        check_room(cache, 30, 1000, 950, "k", ATTACKER)
    assert collect_cache(cache, 30, 1000, 950, ATTACKER) == []


def test_t9_imports_at_the_same_time_count_together(cache: ImageCache) -> None:
    """On ten nodes, each of which would have room for its own."""
    put(cache, "other0", 450, OTHER, idle_days=2)
    put(cache, "other1", 450, OTHER, idle_days=2)
    for number in range(3):
        key = f"k{number}"
        (cache.top / f"partial/{key}.of-{ATTACKER}").touch()
        (cache.top / f"leases/import-{key}").touch()
        (cache.top / f"incoming/{key}.json").write_text('{"done": 0, "total": 100}')
    with pytest.raises(NotShared):
        check_room(cache, 30, 800, 100, "k4", ATTACKER)
    assert check_room(cache, 30, 800, 100, "k4", 61003) == []

    # And what has come all the same is not put there.
    put(cache, "his", 200, ATTACKER, idle_days=0)
    with pytest.raises(NotShared, match="is full"):
        check_share(cache, 1000, 100, ATTACKER)
    check_share(cache, 1000, 100, 61003)


def test_t9_small_images_are_bounded_by_their_number(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "IMAGES_OF_ONE", 3)
    for number in range(3):
        put(cache, f"his{number}", 1, ATTACKER, idle_days=3 - number)
    assert [one.key for one in choose(cache, ATTACKER)] == ["his0"]
    assert check_room(cache, 30, 1000, 1, "k", ATTACKER) == []
    assert [one.key for one in collect_cache(cache, 30, 1000, 1, ATTACKER)] == ["his0"]
    put(cache, "his3", 1, ATTACKER, idle_days=0)
    for key in ("his1", "his2"):
        os.utime(cache.top / f"images/{key}/used")
    with pytest.raises(NotShared, match="3 images have been imported for you"):
        check_room(cache, 30, 1000, 1, "k", ATTACKER)
    assert check_room(cache, 30, 1000, 1, "k", OTHER) == []


def choose(cache: ImageCache, importer: int) -> list[Going]:
    return choose_expired(cache.entries(), cache.now(), 30, 1000, 1, importer)


def test_t9_what_one_leaves_behind_another_goes_on_with(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has another's layers removed by asking for the same image; the sweep bounds, too."""
    monkeypatch.setattr(layout, "PARTIALS_OF_ONE", 2)
    for number in range(5):
        (cache.top / f"partial/k{number}").mkdir()
        mark = cache.top / f"partial/k{number}.of-{ATTACKER}"
        mark.touch()
        os.utime(mark, (1_800_000_000 + number, 1_800_000_000 + number))
    (cache.top / f"partial/k0.of-{OTHER}").touch()
    sweep_cache(cache)
    left = {path.name for path in (cache.top / "partial").iterdir() if path.is_dir()}
    assert left == {"k0", "k3", "k4"}


def test_t9_what_cannot_be_removed_holds_up_no_other_part_of_the_sweep(cache: ImageCache) -> None:
    (cache.top / "steps/a").mkdir()
    os.utime(cache.top / "steps/a", (1, 1))
    (cache.top / "failed/k").write_text("{}")
    os.utime(cache.top / "failed/k", (1, 1))
    sweep_cache(cache)
    assert not (cache.top / "failed/k").exists()
    os.utime(cache.top / "leases/.now", (1, 1))
    far = time.time() + 30 * 86400
    (cache.top / "leases/.swept").touch()
    os.utime(cache.top / "leases/.swept", (far, far))
    assert cache.is_unswept()


@pytest.mark.parametrize("importer", [0, OTHER])
def test_t9_a_share_is_no_limit_for_root_or_in_an_empty_cache(
    cache: ImageCache, importer: int
) -> None:
    put(cache, "a", 700, importer, idle_days=2)
    assert check_room(cache, 30, 2000, 700, "k", importer) == []
    assert choose_expired(cache.entries(), cache.now(), 30, 2000, 700, importer) == []
    assert len(choose_expired(cache.entries(), cache.now(), 30, 1000, 700, importer)) == 1


def test_t9_who_asked_first_is_known_from_its_file(cache: ImageCache) -> None:
    put(cache, "k", 10, ATTACKER, idle_days=0)
    found = cache.entry("k")
    assert found
    assert found.importer == ATTACKER
    (cache.top / "images/k/importer").unlink()  # of an older hpcstack
    found = cache.entry("k")
    assert found
    assert found.importer == 0
