"""The last lines of a log, and what comes to it while it is followed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.launch import log_tail
from hpcstack.launch.log_tail import follow_logs, read_last_lines


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("step", [1, 3, 1 << 16])
def test_the_last_lines(
    tmp_path: Path, end: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "STEP", step)
    log = tmp_path / "log"
    lines = [f"line {number}" for number in range(20)]
    log.write_text("\n".join(lines) + end)
    for count in (1, 3, 19, 20, 21):
        assert read_last_lines(log, count) == lines[-count:]
    assert read_last_lines(log, 0) == lines
    log.write_text("a\n\x1b[31mb\x1b[0m\n", encoding="utf-16")
    assert read_last_lines(log, 1) == ["b"]
    with pytest.raises(InputError, match="none: No such file"):
        read_last_lines(tmp_path / "none", 1)


def test_a_pipe_in_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="not an ordinary file"):
        read_last_lines(pipe, 1)
    job = Job(lambda: None)
    assert list(follow_logs(lambda: [pipe], job.is_over, 1, job.sleep)) == []


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_following_begins_with_the_last_lines(tmp_path: Path, count: int) -> None:
    log = tmp_path / "log"
    lines = ["one", "two", "three"]
    log.write_text("\n".join([*lines, ""]))
    job = Job()
    found = [line for _, line in follow_logs(lambda: [log], job.is_over, count, job.sleep)]
    assert found == (lines[-count:] if count else lines)


class Job:
    """A job that does one of its deeds at each look, and then has ended."""

    def __init__(self, *deeds: Callable[[], object]) -> None:
        self.deeds = list(deeds)
        self.asked = 0

    def sleep(self, _: float) -> None:
        if self.deeds:
            self.deeds.pop(0)()

    def is_over(self) -> bool:
        self.asked += 1
        return not self.deeds


def test_it_waits_for_the_log_follows_it_and_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def add(text: str) -> Callable[[], object]:
        return lambda: log.open("a").write(text)

    job = Job(*[lambda: None] * 20, add("one\nt"), add("wo\n"), *[lambda: None] * 20, add("three"))

    def find() -> list[Path]:
        return [log] if log.exists() else []

    said = [line for _, line in follow_logs(find, job.is_over, 50, job.sleep)]
    assert said == ["one", "two", "three"]
    assert job.asked < 10


def test_only_the_last_lines_come_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{number}\n" for number in range(9)))
    for count, first in ((2, ["7", "8"]), (0, [str(number) for number in range(9)])):
        job = Job()
        assert [
            line for _, line in follow_logs(lambda: [log], job.is_over, count, job.sleep)
        ] == first


def test_a_log_that_is_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of the first start\n")
    job = Job(lambda: log.write_text("again\n"), lambda: None)
    said = [line for _, line in follow_logs(lambda: [log], job.is_over, 50, job.sleep)]
    assert said == ["of the first start", "again"]


def test_the_logs_of_several_tasks_are_told_apart(tmp_path: Path) -> None:
    logs = [tmp_path / "a", tmp_path / "b"]
    for log in logs:
        log.write_text(f"of {log.name}\n")
    found = follow_logs(lambda: logs, lambda: True, 50, lambda _: None)
    assert list(itertools.islice(found, 9)) == [(logs[0], "of a"), (logs[1], "of b")]


def test_a_log_that_is_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")

    def replace() -> None:
        (tmp_path / "new").write_text("newer and longer\n")
        (tmp_path / "new").rename(log)

    job = Job(replace, lambda: None)
    said = [line for _, line in follow_logs(lambda: [log], job.is_over, 50, job.sleep)]
    assert said == ["old", "newer and longer"]


def test_a_log_that_is_gone_again_is_no_end(tmp_path: Path) -> None:
    job = Job(lambda: None)
    assert list(follow_logs(lambda: [tmp_path / "gone"], job.is_over, 50, job.sleep)) == []
