"""What a launch compares instead of an image's bytes, and whose records count at a site that names
its publishers.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hpcstack.core.errors import StoreError
from hpcstack.core.progress import Progress
from hpcstack.naming.names import ChosenImage
from hpcstack.publish.read_images import check_published
from hpcstack.releases.layout import CURRENT, STATE
from hpcstack.releases.seal import renew_seal, take_seal
from hpcstack.store.signing import Statement
from support.modules import Place

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHUfkB1mHZxcXqFSq3cXlW4rLvZ8m3nJt8xqPDwD0yqM site"


def released(place: Place) -> ChosenImage:
    return place.names().find_image("pytorch-24.11")


def replace_image(image: Path, content: bytes) -> None:
    """IMAGE with other bytes of the same size and time, as somebody who may write to the store
    would.
    """
    before = image.stat()
    fresh = image.with_name("fresh")
    fresh.write_bytes(content)
    os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))
    fresh.rename(image)


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("how", ["replaced", "written", "touched"])
def test_an_image_that_was_replaced_is_seen(tmp_path: Path, how: str, required: bool) -> None:
    """N11: launch looked at no bytes; it looks at the file that somebody has read."""
    place = Place(tmp_path)
    place.publish()
    if required:
        signatures = place.site.signatures.model_copy(update={"required": True, "keys": (KEY,)})
        place.site = place.site.model_copy(update={"signatures": signatures})
    found = released(place)
    artifact = found.artifact
    assert (found.why, found.doubt) == ("release pytorch/24.11-r1 in testing", "")
    content = artifact.image.read_bytes()
    artifact.image.chmod(0o644)
    if how == "replaced":
        replace_image(artifact.image, content[::-1])
    elif how == "written":
        before = artifact.image.stat()
        artifact.image.write_bytes(content[::-1])
        os.utime(artifact.image, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(artifact.image)
    if required:
        with pytest.raises(StoreError, match="has changed since it was read on"):
            released(place)
    else:
        assert (
            "the image of pytorch/24.11-r1 has changed since it was read on"
            in released(place).doubt
        )
    (checked,) = check_published(place.site, place.store, Progress())
    if how == "touched":
        assert (checked.wrong, checked.renewed) == ("", True)
        assert (released(place).why, released(place).doubt) == (
            "release pytorch/24.11-r1 in testing",
            "",
        )
    else:
        assert "and was published with" in checked.wrong
        assert not checked.renewed


def test_a_launch_reads_next_to_nothing_of_an_image(tmp_path: Path) -> None:
    """The bar is 50 ms and a megabyte for an image of 20 GB; this one is as large, and all holes."""
    place = Place(tmp_path)
    place.publish()
    artifact = released(place).artifact
    artifact.image.chmod(0o644)
    os.truncate(artifact.image, 20 << 30)
    record = Path(artifact.folder) / "artifact.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "size": 20 << 30}))
    seal = place.store.top / "releases/pytorch/24.11-r1/seal.json"
    about = artifact.image.stat()
    new = {"size": about.st_size, "mtime_ns": about.st_mtime_ns, "ctime_ns": about.st_ctime_ns}
    seal.write_text(json.dumps({**json.loads(seal.read_text()), **new}))
    began, read = time.monotonic(), bytes_read()
    assert (released(place).why, released(place).doubt) == (
        "release pytorch/24.11-r1 in testing",
        "",
    )
    assert bytes_read() - read < 1 << 20
    assert time.monotonic() - began < 0.5  # 0.01 s on a quiet machine


def bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


def test_a_seal_is_of_the_bytes_that_were_published(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish()
    seal = place.store.top / "releases/pytorch/24.11-r1/seal.json"
    seal.write_text(json.dumps({**json.loads(seal.read_text()), "sha256": "0" * 64}))
    assert "is not the one that was read when it was published" in released(place).doubt


def test_who_signs_bytes_alone_signs_no_stack_and_no_lock() -> None:
    """N11: what is wanted comes of the caller, and empty never equals it."""
    signed, wanted = Statement("a" * 64), Statement("a" * 64, "pytorch-24.11", "b" * 64)
    assert "stack unknown" in signed.differs(wanted)
    assert "lock sha256 unknown" in signed.differs(wanted)


def test_what_is_not_what_was_built_is_not_published(tmp_path: Path) -> None:
    place = Place(tmp_path)
    artifact = place.artifact(place.stack())
    artifact.image.chmod(0o644)
    replace_image(artifact.image, artifact.image.read_bytes()[::-1])
    with pytest.raises(StoreError, match="is not what was built"):
        place.publisher.publish(place.stack(), artifact, "testing", None, {})


def test_a_release_of_before_there_were_seals_is_launched(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish()
    (place.store.top / "releases/pytorch/24.11-r1/seal.json").unlink()
    assert (released(place).why, released(place).doubt) == (
        "release pytorch/24.11-r1 in testing",
        "",
    )
    (checked,) = check_published(place.site, place.store, Progress())
    assert checked.renewed
    assert (place.store.top / "releases/pytorch/24.11-r1/seal.json").exists()


def current_ledger(place: Place, name: str) -> Path:
    return (place.site.module_root / STATE / name / CURRENT / "ledger.json").resolve()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to somebody else")
@pytest.mark.parametrize("what", ["ledger.json", "release.json", "seal.json"])
def test_records_count_where_a_publisher_has_written_them(tmp_path: Path, what: str) -> None:
    """`modules.publishers`: another who may write there, a member of the group, say, publishes
    nothing.
    """
    place = Place(tmp_path)
    place.publish()
    path = current_ledger(place, "pytorch") if what == "ledger.json" else next(tmp_path.rglob(what))
    os.chown(path, 65534, 65534)
    released(place)  # nobody is named: whoever may write there is believed
    released(place.with_publishers("nobody"))
    with pytest.raises(StoreError, match="belongs to nobody, who is no publisher of this site"):
        released(place.with_publishers("daemon"))


def test_a_seal_that_was_taken_away_is_missed_where_publishers_are_named(tmp_path: Path) -> None:
    """The group's folders let any member do that."""
    place = Place(tmp_path)
    place.publish()
    (place.store.top / "releases/pytorch/24.11-r1/seal.json").unlink()
    careful = place.with_publishers("root", str(os.geteuid()))
    assert "has no seal from its publisher" in released(careful).doubt


def test_who_is_no_publisher_renews_no_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His seal would be believed by nobody, and would keep everybody from launching."""
    place = Place(tmp_path)
    place.publish()
    place = place.with_publishers("a-name-that-nobody-has")
    monkeypatch.setattr(os, "geteuid", lambda: 4747)
    assert not place.site.sharing.may_publish
    seal = take_seal(released_image(place))
    assert not renew_seal(place.store, "pytorch", "24.11-r1", seal)


def released_image(place: Place) -> Path:
    return next((place.store.top / "images").glob("*/image.sqsh"))


def test_publishing_again_renews_the_seal_of_an_image_that_was_built_again(tmp_path: Path) -> None:
    """To the same bytes: the file is another one, and what was published is as it was."""
    place = Place(tmp_path)
    place.publish()
    image = released_image(place)
    replace_image(image, image.read_bytes())
    assert "has changed" in released(place).doubt
    place.publish()
    assert (released(place).why, released(place).doubt) == (
        "release pytorch/24.11-r1 in testing",
        "",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to somebody else")
def test_two_publishers_are_both_believed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish()
    place.publish("miniforge-26.3")
    for name, user in (("pytorch", 1), ("miniforge", 65534)):
        os.chown(current_ledger(place, name), user, user)
    both = place.with_publishers("daemon", "nobody", "a-name-that-nobody-has").tree
    assert {both.ledger(name).name for name in both.names()} == {"pytorch", "miniforge"}
    one = place.with_publishers("daemon").tree
    assert one.ledger("pytorch").entries
    with pytest.raises(StoreError, match="no publisher of this site"):
        one.ledger("miniforge")


def publish_three(place: Place) -> None:
    """Three releases, whose images were read in March, January and February."""
    for number in range(3):
        place.publish(content=f"image {number}".encode())
    for number, day in ((1, "2026-03-01"), (2, "2026-01-01"), (3, "2026-02-01")):
        path = place.store.top / f"releases/pytorch/24.11-r{number}/seal.json"
        path.write_text(
            path.read_text().replace(json.loads(path.read_text())["read"], f"{day}T00:00:00+00:00")
        )


def test_a_few_images_a_night_are_those_that_were_read_longest_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """admin 4: `verify --all` for cron, at a rate, over some nights."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = Place(tmp_path)
    publish_three(place)
    nights = [
        [one.release for one in check_published(place.site, place.store, Progress(), most=1)]
        for _ in range(3)
    ]
    assert nights == [["pytorch/24.11-r2"], ["pytorch/24.11-r3"], ["pytorch/24.11-r1"]]


def test_an_image_that_is_wrong_keeps_none_of_the_others_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seal is not renewed, nor is any by who may not write it: it was read night after night,
    and no other.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = Place(tmp_path)
    publish_three(place)
    wrong = place.store.artifact(place.tree.ledger("pytorch").entry("24.11-r2").key)
    assert wrong
    replace_image(wrong.image, b"image X")
    nights = [
        [one.release for one in check_published(place.site, place.store, Progress(), most=1)]
        for _ in range(3)
    ]
    assert nights == [["pytorch/24.11-r2"], ["pytorch/24.11-r3"], ["pytorch/24.11-r1"]]


def test_a_look_at_one_name_forgets_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = Place(tmp_path)
    place.publish()
    place.publish("miniforge-26.3", b"other")
    for name in ("pytorch", "miniforge"):
        check_published(place.site, place.store, Progress(), name=name)
    (memory,) = (tmp_path / "state").rglob("read-images/*.json")
    assert len(json.loads(memory.read_text())) == 2


def test_reading_keeps_to_a_rate(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"x" * 300_000)
    began = time.monotonic()
    take_seal(image, bytes_a_second=1_000_000)
    assert time.monotonic() - began >= 0.3
