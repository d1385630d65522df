"""What each test function costs: a pytest plugin (`-p support.durations`).

A row is a test function with all its parameters, or a fixture that several tests share, which
would otherwise count as whichever test happens to want it first. A row says how many tests it is,
the seconds of CPU (its own and those of the programs that it started and waited for), and the
seconds that it waited. What daemons do for a test (Slurm's, the registry's, the Docker engine's)
is waiting here; the line below the table says what the whole machine was busy for.

`--costs-to FILE` writes all rows as a table with tabs, the costliest first. `--costs N` prints the
first N.

A row of more than `LIMIT` seconds of CPU needs a reason in tests/costly.yaml, or the run fails.
The clock is reported and decides nothing: it is a matter of what else the machine does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]
REASONS = REPO / "tests/costly.yaml"
LIMIT = 5.0  # seconds of CPU
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Moment:
    """Seconds since some beginning: of the clock, and of CPU of this process and its children."""

    clock: float
    cpu: float

    @classmethod
    def now(cls) -> Moment:
        used = os.times()
        cpu = used.user + used.system + used.children_user + used.children_system
        return cls(time.monotonic(), cpu)

    def __sub__(self, other: Moment) -> Moment:
        return Moment(self.clock - other.clock, self.cpu - other.cpu)


@dataclass
class Cost:
    """What a row of the table adds up to."""

    name: str
    tests: int = 0
    cpu: float = 0.0
    clock: float = 0.0

    @property
    def waited(self) -> float:
        return max(0.0, self.clock - self.cpu)


@dataclass
class Costs:
    rows: dict[str, Cost] = field(default_factory=dict)

    def add(self, name: str, clock: float, cpu: float, tests: int = 0) -> None:
        row = self.rows.setdefault(name, Cost(name))
        row.tests += tests
        row.clock += clock
        row.cpu += cpu

    def in_order(self) -> list[Cost]:
        """The rows, the longest first: CPU and waiting, since a lane is held for both."""
        return sorted(self.rows.values(), key=lambda row: (-row.clock, row.name))


def function_of(nodeid: str) -> str:
    """`tests/unit/test_a.py::test_b` of `tests/unit/test_a.py::test_b[parameter]`."""
    return nodeid.partition("[")[0]


def read_reasons(path: Path = REASONS) -> dict[str, str]:
    """{function or fixture: why it may take more than `LIMIT` seconds of CPU}."""
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})


def find_unexplained(costs: Costs, reasons: dict[str, str]) -> list[Cost]:
    return [row for row in costs.in_order() if row.cpu > LIMIT and row.name not in reasons]


def read_machine_cpu() -> float:
    """Seconds for which all processors of this machine were busy since it started."""
    numbers = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = (int(number) for number in numbers[:7])
    return (user + nice + system + irq + softirq) / TICKS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", type=int, default=10, metavar="N", help="print the N costliest functions"
    )
    parser.addoption(
        "--costs-to", default="", metavar="FILE", help="write what all functions cost into FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    begins_workers = bool(getattr(config.option, "tx", None))
    if not begins_workers:
        config.pluginmanager.register(Meter(), "meter of the tests")
    if not is_worker:
        config.pluginmanager.register(Accounts(config), "accounts of the tests")


class Meter:
    """Measures, in the process in which tests run, and writes it into their reports."""

    def __init__(self) -> None:
        self.mark = Moment.now()
        self.shared: list[tuple[str, float, float]] = []  # (fixture, clock, CPU) of this phase
        self.depth = 0

    def pytest_runtest_logstart(self) -> None:
        self.mark = Moment.now()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function" or self.depth:
            return (yield)
        began = Moment.now()
        self.depth += 1
        try:
            return (yield)
        finally:
            self.depth -= 1
            spent = Moment.now() - began
            where = fixturedef.baseid or "tests"
            self.shared.append((f"{where}::fixture {fixturedef.argname}", spent.clock, spent.cpu))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report: Any = yield
        spent = Moment.now() - self.mark
        report.shared_costs = self.shared
        report.clock = spent.clock - sum(clock for _, clock, _ in self.shared)
        report.cpu = spent.cpu - sum(cpu for _, _, cpu in self.shared)
        self.shared = []
        self.mark = Moment.now()
        return report


class Accounts:
    """Adds up what reports say, and shows it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.costs = Costs()
        self.began = Moment.now()
        self.busy_before = read_machine_cpu()
        self.unexplained: list[Cost] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = function_of(report.nodeid)
        ended = report.when == "teardown"
        self.costs.add(name, report.clock, report.cpu, tests=1 if ended else 0)
        for fixture, clock, cpu in report.shared_costs:
            self.costs.add(fixture, clock, cpu)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        if where := self.config.getoption("--costs-to"):
            lines = [
                f"{row.cpu:.2f}\t{row.waited:.2f}\t{row.tests}\t{row.name}\n"
                for row in self.costs.in_order()
            ]
            Path(where).write_text(
                "cpu\twaited\ttests\tfunction\n" + "".join(lines), encoding="utf-8"
            )
        self.unexplained = find_unexplained(self.costs, read_reasons())
        if self.unexplained and session.exitstatus == 0:
            session.exitstatus = 1
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        say = terminalreporter.write_line
        rows = self.costs.in_order()
        cpu = sum(row.cpu for row in rows)
        waited = sum(row.waited for row in rows)
        terminalreporter.write_sep("=", "what the tests cost, by function")
        say("   CPU s  waited s  tests  function")
        for row in rows[: self.config.getoption("--costs")]:
            say(f"{row.cpu:8.1f}  {row.waited:8.1f}  {row.tests:5d}  {row.name}")
        busy = read_machine_cpu() - self.busy_before
        clock = (Moment.now() - self.began).clock
        say(
            f"{cpu:8.1f}  {waited:8.1f}  in all; the machine: {busy:.0f} s of CPU "
            f"in {clock:.0f} s on {os.cpu_count()} processors"
        )
        for row in self.unexplained:
            say(f"FAILED: {row.name} takes {row.cpu:.1f} s of CPU, and {LIMIT:.0f} s is the limit")
            say(
                f"  TIP: make it cheaper, or say why it may cost that in {REASONS.relative_to(REPO)}"
            )
