"""Layers from registries that are busy, break off, lie or stall; and what an earlier, killed run
has left.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcstack.build.base import import_image
from hpcstack.build.workbench import Workbench
from hpcstack.core.errors import RegistryError, StoreError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.oci import download, rate
from hpcstack.oci.client import Registry
from hpcstack.site.load import Site
from hpcstack.store.cache import cache_of
from support.faulty import Faults, serving
from support.layers import folder, held, layout, member, sha, tar, zipped

pytestmark = pytest.mark.squashfs
BIG = os.urandom(3 << 20)
LAYERS = [zipped(tar([folder("d"), member("d/big", BIG)])), zipped(tar([member("top", b"t")]))]
Import = Callable[[], Path]


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    places = {
        "store": tmp_path / "store",
        "lock_dir": tmp_path / "locks",
        "module_root": tmp_path / "modules",
    }
    return Site.model_validate({**places, "build": {"cachedir": str(tmp_path / "cache")}})


@pytest.fixture
def imported(
    tmp_path: Path, faults: Faults, site: Site, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Import]:
    monkeypatch.setattr(download, "BACK_OFF", 0.01)
    with serving(layout(tmp_path / "image", LAYERS), faults) as address:
        reached = site.model_copy(update={"registries": Site.model_validate(
            {**site.model_dump(include={"store", "lock_dir", "module_root"}), "registries": {address: {"plain_http": True}}}
        ).registries})  # fmt: skip

        def run() -> Path:
            registry = Registry(reached, timeout=1.0)
            return import_image(
                f"{address}/demo:1",
                "linux/amd64",
                tmp_path / "out.sqsh",
                Workbench(reached, registry, Runner(), Progress()),
            ).path

        yield run


@pytest.mark.parametrize(
    "coming",
    [
        ["429", "429"],
        ["500", "503", "502"],
        ["cut", "cut", "cut"],
        ["stall"],
        ["cut", "500", "cut"],
        ["cut", "no range"],
    ],
    ids=" ".join,
)
def test_what_passes_is_overcome(imported: Import, faults: Faults, coming: list[str]) -> None:
    faults.coming = list(coming)
    found = held(imported())
    assert found["d/big"] == ("file", BIG)
    assert found["top"] == ("file", b"t")
    if coming[0] == "cut":
        assert any(ranges for _, ranges in faults.asked), "it goes on where it broke off"


@pytest.mark.parametrize(
    ("always", "says"),
    [
        ("500", "answered 500"),
        ("429", "answered 429"),
        ("401", "refuses"),
        ("404", "has no"),
        ("wrong", "do not match sha256|is damaged"),
    ],
)
def test_what_does_not_pass_is_told_and_leaves_nothing(
    imported: Import,
    faults: Faults,
    tmp_path: Path,
    always: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpcstack.oci.client.BACK_OFF", 0.01)
    faults.always = always
    with pytest.raises(RegistryError, match=says):
        imported()
    assert not (tmp_path / "out.sqsh").exists()
    assert not list(tmp_path.glob(".out*"))
    faults.always = ""
    assert held(imported())["d/big"] == ("file", BIG)


def test_a_registry_that_drips_is_given_up(
    imported: Import, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N19: one that gave a byte every three seconds kept an import for ever.

    Five minutes are half a second here.
    """
    monkeypatch.setattr(rate, "PERIOD_S", 0.1)
    faults.always = "drip"
    began = time.monotonic()
    with pytest.raises(RegistryError, match=r"sent \d+ bytes in 0 seconds"):
        imported()
    assert time.monotonic() - began < 15
    assert not (tmp_path / "out.sqsh").exists()
    monkeypatch.setattr(rate, "PERIOD_S", 60.0)
    faults.always = ""
    assert held(imported())["d/big"] == ("file", BIG)


def test_who_takes_his_time_is_not_taken_for_a_slow_registry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate, "PERIOD_S", 0.05)
    pieces = iter([b"x"] * 20 + [b""])
    for _ in rate.watch_rate(lambda: next(pieces), "a registry"):
        time.sleep(0.01)


@pytest.mark.parametrize("left", ["half", "wrong", "whole", "too long"])
def test_what_a_killed_run_has_fetched_is_used_if_it_is_right(
    imported: Import, faults: Faults, site: Site, tmp_path: Path, left: str
) -> None:
    data, index = LAYERS[0], (tmp_path / "image/index.json").read_text()
    digest = index.split('"digest": "')[1].partition('"')[0]
    part = (
        cache_of(site).top
        / "partial"
        / digest.replace(":", "-")
        / "blobs"
        / sha(data).replace(":", "-")
    )
    part.parent.mkdir(parents=True)
    part.write_bytes(
        {"half": data[: 1 << 20], "wrong": bytes(1 << 20), "whole": data, "too long": data + b"x"}[
            left
        ]
    )
    assert held(imported())["d/big"] == ("file", BIG)
    ranges = [ranges for digest, ranges in faults.asked if digest == sha(data)]
    assert (
        ranges
        == {
            "half": ["bytes=1048576-"],
            "wrong": ["bytes=1048576-", ""],
            "whole": [],
            "too long": [""],
        }[left]
    )
    assert not part.parent.exists()


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    imported: Import, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SPARE", 1 << 60)
    with pytest.raises(StoreError, match="needs about"):
        imported()
    assert faults.asked == []


def random_layers(count: int) -> list[bytes]:
    return [tar([member(f"f{number}", os.urandom(400_000))]) for number in range(count)]


SMALL = tar([member("again", b"x")])


@pytest.mark.parametrize(
    "order",
    [
        lambda big: [SMALL, *big, SMALL],
        lambda big: [*big[:3], SMALL, big[3], SMALL, *big[4:]],
        lambda big: [*big, tar([member("a", b"1"), member("a", b"2")])],
        lambda big: [tar([member("a", b"1"), member("a", b"2")]), *big],
    ],
    ids=[
        "the lowest again on top",
        "one again in the middle",
        "twice read from the top",
        "twice read from below",
    ],
)
def test_no_order_of_layers_holds_up_the_one_that_is_read(
    tmp_path: Path,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    order: Callable[[list[bytes]], list[bytes]],
) -> None:
    """With a window that each layer is larger than, as real layers are larger than the real one."""
    monkeypatch.setattr(download, "WINDOW", 1 << 16)
    monkeypatch.setattr(download, "PIECE", 1 << 14)
    monkeypatch.setattr("hpcstack.oci.client.PIECE", 1 << 14, raising=False)
    monkeypatch.setattr("hpcstack.oci.decompress.AHEAD", 1)
    with serving(layout(tmp_path / "image", order(random_layers(7))), Faults()) as address:
        reached = Site.model_validate({
            **site.model_dump(include={"store", "lock_dir", "module_root"}), "registries": {address: {"plain_http": True}}
        })  # fmt: skip
        done: list[Path] = []

        def run() -> None:
            registry = Registry(reached, timeout=5.0)
            done.append(import_image(
                f"{address}/demo:1", "linux/amd64", tmp_path / "out.sqsh",
                Workbench(reached, registry, Runner(), Progress()),
            ).path)  # fmt: skip

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(60)
        assert done, "the import hangs"
        assert {f"f{number}" for number in range(7)} <= set(held(done[0]))
