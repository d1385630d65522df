"""Leases, as the store takes them: one builder for each key, whoever dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcstack.core import lease
from hpcstack.store.store import Store


def _hold(top: Path, ready: Path) -> None:
    with Store(top).lease("k"):
        ready.touch()
        time.sleep(60)


def _wait(path: Path) -> None:
    until = time.monotonic() + 10
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert path.exists()


def test_the_lease_of_a_killed_builder_is_taken_over(tmp_path: Path) -> None:
    holder = multiprocessing.get_context("fork").Process(
        target=_hold, args=(tmp_path, tmp_path / "ready")
    )
    holder.start()
    _wait(tmp_path / "ready")
    assert holder.pid
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    began = time.monotonic()
    with Store(tmp_path).lease("k"):
        assert time.monotonic() - began < 20
    assert list((tmp_path / "leases").glob("k*"))[1:] == []


def _count(top: Path, log: Path) -> None:
    with Store(top).lease("k"):
        with log.open("a") as file:
            file.write("in\n")
        time.sleep(0.05)
        with log.open("a") as file:
            file.write("out\n")


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    context, log = multiprocessing.get_context("fork"), tmp_path / "log"
    workers = [context.Process(target=_count, args=(tmp_path, log)) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert log.read_text() == "in\nout\n" * 6


def test_an_empty_lease_blocks_nobody_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a machine that lost its power may leave: a file whose content was not written."""
    monkeypatch.setattr("hpcstack.core.lease.PATIENCE_S", 1.0)
    store = Store(tmp_path)
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases/k").touch()
    told: list[str] = []
    with store.lease("k", told.append):
        assert told
        assert "the holder of" in told[0]


def test_what_stopped_all_of_us_is_nobodys_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server that answers nobody for minutes: the holder could not renew, and who waits
    could not look.
    """
    now = [0.0]
    monkeypatch.setattr("hpcstack.core.lease.time.monotonic", lambda: now[0])
    path = tmp_path / "k"
    path.write_text(str(lease.Holder("elsewhere", "boot", "1", "2", "3")))
    watch = lease.Watch(path)
    for now[0] in (1, 6, 11, 300, 305, 310):
        assert not watch.dead(path.read_text()), now[0]
    for now[0] in range(315, 370, 5):
        dead = watch.dead(path.read_text())
    assert dead, "watched for a minute, look by look"


def test_a_living_holder_is_waited_for_and_named(tmp_path: Path) -> None:
    holder = multiprocessing.get_context("fork").Process(
        target=_hold, args=(tmp_path, tmp_path / "ready")
    )
    holder.start()
    try:
        _wait(tmp_path / "ready")
        told: list[str] = []

        def waiting(owner: str) -> None:
            told.append(owner)
            holder.kill()

        with Store(tmp_path).lease("k", waiting):
            assert len(told) == 1
    finally:
        holder.kill()
        holder.join()


@pytest.mark.parametrize(
    ("refusal", "lives"), [(PermissionError, True), (ProcessLookupError, False)]
)
def test_a_process_that_proc_hides_is_not_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch, refusal: type[OSError], lives: bool
) -> None:
    """/proc with hidepid cannot be mounted for one test: a pid that /proc has not, and a kernel
    that says whose it is.
    """

    def kill(*_: int) -> None:
        raise refusal

    monkeypatch.setattr(os, "kill", kill)
    assert lease.is_alive(replace(lease.identify_process(), pid="4194999", start="123")) is lives
