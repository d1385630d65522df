"""What a long run of the tests is doing, for people who wait: a pytest plugin (`-p
support.progress`).

On a terminal there is one line for each test that is running, and one for the whole. In a log there
is a line every ten seconds: how many tests have run, which ones are running and for how long. A
failure is told when it happens, in both.

`--failures-to FILE` writes the names of the tests that failed, one a line, so that `pytest @FILE`
runs just these.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table

# Where this process's lines go. While a test runs in it, pytest has another file in the place of 1.
OUTPUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
LOG_INTERVAL = 10.0  # seconds between two lines of a log
TERMINAL_INTERVAL = 0.5
SHOWN = 4  # running tests that a line of a log names, the longest first


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failures-to",
        default="",
        metavar="FILE",
        help="write the names of failed tests into FILE",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        config.pluginmanager.register(Progress(config), "progress of the tests")


class Progress:
    """Counts tests, and tells of them from a thread of its own."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.began = time.monotonic()
        self.total = 0
        self.ended = 0
        self.failed: list[str] = []
        self.running: dict[str, float] = {}  # {test: when it began}
        self.console = Console(file=OUTPUT, highlight=False)
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._tell, daemon=True)

    # -- what pytest and xdist say

    def pytest_sessionstart(self) -> None:
        self.thread.start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self.total = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        with self.lock:
            self.running[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell_failure(report)
        if report.when == "teardown":
            with self.lock:
                self.ended += 1
                self.running.pop(report.nodeid, None)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letter a test: what is going on is told otherwise."""
        if report.failed:
            return ("failed" if report.when == "call" else "error", "", "FAILED")
        if report.skipped:
            return ("skipped", "", "SKIPPED")
        return ("passed", "", "PASSED") if report.when == "call" else ("", "", "")

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        self.stop.set()
        self.thread.join()
        yield
        if where := self.config.getoption("--failures-to"):
            names = sorted(dict.fromkeys(self.failed))
            Path(where).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")

    # -- what people see

    def _tell_failure(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self.failed.append(name)
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(getattr(crash, "message", "")).partition("\n")[0][:200]
        self.console.print(f"FAILED {name} ({report.when}): {why}", markup=False, soft_wrap=True)

    def _tell(self) -> None:
        if self.console.is_terminal:
            with Live(
                self._lines(), console=self.console, transient=True, auto_refresh=False
            ) as live:
                while not self.stop.wait(TERMINAL_INTERVAL):
                    live.update(self._lines(), refresh=True)
            return
        while not self.stop.wait(LOG_INTERVAL):
            self.console.print(self._line(), markup=False, soft_wrap=True)

    def _sum(self) -> str:
        failures = f", {len(self.failed)} failed" if self.failed else ""
        total = self.total or "?"
        return f"[{time.monotonic() - self.began:4.0f} s] {self.ended} of {total}{failures}"

    def _running(self) -> list[tuple[str, float]]:
        """(test, seconds) of what runs, the longest first: one test a worker."""
        now = time.monotonic()
        with self.lock:
            return [(name, now - began) for name, began in self.running.items()]

    def _line(self) -> str:
        longest = [
            f"{name.rpartition('/')[2]} {seconds:.0f} s"
            for name, seconds in self._running()[:SHOWN]
        ]
        return f"{self._sum()}; " + ("; ".join(longest) if longest else "tests are collected")

    def _lines(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row("", self._sum())
        for name, seconds in self._running():
            table.add_row(f"{seconds:4.0f} s", name)
        return table
