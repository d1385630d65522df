"""What a run that was killed, or only stopped, has fetched, and the next one takes."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

from hpcstack.oci.download import LEFT, PIECE, Spools
from hpcstack.oci.manifest import Layer
from hpcstack.oci.resume import BLOBS, taking_over

DATA = random.Random(1).randbytes(5 * PIECE + 17)
NAME = f"sha256-{hashlib.sha256(DATA).hexdigest()}"
LAYER = Layer(NAME.replace("-", ":"), len(DATA), "application/vnd.oci.image.layer.v1.tar")


RUNS = contextlib.ExitStack()


def begin(work: Path) -> Path:
    """The folder of a run that never ends."""
    return RUNS.enter_context(taking_over(work))


def fetched(work: Path) -> tuple[bytes, list[int]]:
    """What comes of a blob by a run in WORK, and from where its source was asked."""
    asked: list[int] = []

    def source(_: Layer, start: int) -> Iterator[bytes]:
        asked.append(start)
        yield DATA[start:]

    spools = Spools(work / BLOBS, [LAYER], source, lambda *_: None)
    try:
        return b"".join(spools.pieces(LAYER)), asked
    finally:
        spools.close()


def test_the_next_run_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    first = begin(tmp_path / "k")
    (first / BLOBS / NAME).write_bytes(DATA[: 3 * PIECE])
    second = begin(tmp_path / "k")
    assert not any(first.iterdir())
    assert [path.name for path in (second / BLOBS).iterdir()] == [NAME + LEFT]
    assert fetched(second) == (DATA, [3 * PIECE])
    third = begin(tmp_path / "k")
    assert fetched(third) == (DATA, []), "all of it was there"


def test_who_was_stopped_and_writes_on_harms_nobody(tmp_path: Path) -> None:
    """Its lease was lost: what it writes goes into a file of its own, which the other has copied
    and checked.
    """
    first = begin(tmp_path / "k")
    with (first / BLOBS / NAME).open("wb") as file:
        file.write(DATA[: 3 * PIECE])
        file.flush()
        second = begin(tmp_path / "k")
        file.write(b"what the other side does not know of" * 1000)
        file.flush()
        data, _ = fetched(second)
        file.write(b"later")
        file.flush()
        assert data == DATA
        assert (second / BLOBS / NAME).read_bytes() == DATA


def test_of_several_the_longest_is_taken(tmp_path: Path) -> None:
    for name, size in (("k.1", 2), ("k.2", 4), ("k.3", 1), ("other.1", 5)):
        (tmp_path / name / BLOBS).mkdir(parents=True)
        (tmp_path / name / BLOBS / NAME).write_bytes(DATA[: size * PIECE])
    assert fetched(begin(tmp_path / "k"))[1] == [4 * PIECE]
    assert (tmp_path / "other.1").exists()


def test_what_is_read_twice_is_whole_each_time(tmp_path: Path) -> None:
    """The layers of an image whose links want two passes."""
    first = begin(tmp_path / "k")
    (first / BLOBS / NAME).write_bytes(DATA[: 3 * PIECE])
    second = begin(tmp_path / "k")
    asked: list[int] = []

    def source(_: Layer, start: int) -> Iterator[bytes]:
        asked.append(start)
        yield DATA[start:]

    spools = Spools(second / BLOBS, [LAYER], source, lambda *_: None)
    for _ in range(3):
        assert b"".join(spools.pieces(LAYER)) == DATA
    spools.close()
    assert asked == [3 * PIECE]
    assert (second / BLOBS / NAME).read_bytes() == DATA
