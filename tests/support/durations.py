"""What each test function costs: a pytest plugin (`-p support.durations`), and a table.

A row is a test function with all its parameters, or a fixture that several tests share, which
would otherwise count as whichever test happens to want it first. A row says how many tests it is,
the seconds of CPU (its own and those of the programs that it started and waited for), and the
seconds that it waited. What daemons do for a test (Slurm's, the registry's, the Docker engine's)
is waiting here.

`--costs-to FILE` writes the rows, with tabs between. Then

    python -m support.durations [--first N] [--to FILE] [--guard] FILE...

adds up the rows of all FILEs and prints the first N, the longest first; `--to` writes all. With `--guard` it ends with
1 where a row takes clearly more than LIMIT seconds of CPU (ROOM) and tests/costly.yaml does not say
why, or where that file names what is no longer there. A row that takes a little more is noted. The
clock is reported and decides nothing: it is a matter of what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.nodeids import function_of

REPO = Path(__file__).resolve().parents[2]
REASONS = REPO / "tests/costly.yaml"
LIMIT = 5.0  # seconds of CPU
# CPU time is more where other programs share the machine's memory and caches: what takes up to this
# much more is noted, and fails nothing.
ROOM = 1.5
read_clock = time.monotonic  # tests put other clocks in its place
HEADER = "cpu\twaited\ttests\tfunction\n"


@dataclass(frozen=True)
class Moment:
    """Seconds since some beginning: of the clock, and of CPU of this process and its children."""

    clock: float
    cpu: float

    @classmethod
    def now(cls) -> Moment:
        used = os.times()
        cpu = used.user + used.system + used.children_user + used.children_system
        return cls(read_clock(), cpu)

    def __sub__(self, other: Moment) -> Moment:
        return Moment(self.clock - other.clock, self.cpu - other.cpu)


@dataclass
class Cost:
    """A row: a function or a shared fixture, and what its tests add up to."""

    name: str
    tests: int = 0
    cpu: float = 0.0
    waited: float = 0.0

    @property
    def clock(self) -> float:
        return self.cpu + self.waited


# -- measuring


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs-to", default="", metavar="FILE", help="write what each test function costs"
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
        self.depth = 0  # fixtures that are being made: one may ask for another

    def pytest_runtest_logstart(self) -> None:
        self.mark = Moment.now()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        is_shared = fixturedef.scope != "function"
        if not is_shared or self.depth:
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
    """Adds up what reports say, and writes it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.rows: dict[str, Cost] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        ended = report.when == "teardown"
        self._add(function_of(report.nodeid), report.clock, report.cpu, tests=1 if ended else 0)
        for fixture, clock, cpu in report.shared_costs:
            self._add(fixture, clock, cpu)

    def _add(self, name: str, clock: float, cpu: float, tests: int = 0) -> None:
        row = self.rows.setdefault(name, Cost(name))
        row.tests += tests
        row.cpu += cpu
        row.waited += max(0.0, clock - cpu)

    def pytest_sessionfinish(self) -> None:
        if where := self.config.getoption("--costs-to"):
            write_rows(self.rows.values(), Path(where))


# -- the table


def sort_rows(rows: Iterable[Cost]) -> list[Cost]:
    """ROWS, the longest first: CPU and waiting, since a worker is held for both."""
    return sorted(rows, key=lambda row: (-row.clock, row.name))


def write_rows(rows: Iterable[Cost], path: Path) -> None:
    lines = [
        f"{row.cpu:.2f}\t{row.waited:.2f}\t{row.tests}\t{row.name}\n" for row in sort_rows(rows)
    ]
    path.write_text(HEADER + "".join(lines), encoding="utf-8")


def read_rows(paths: Iterable[Path]) -> list[Cost]:
    """The rows of the files PATHS, each function once."""
    rows: dict[str, Cost] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").removeprefix(HEADER).splitlines():
            cpu, waited, tests, name = line.split("\t")
            row = rows.setdefault(name, Cost(name))
            row.cpu += float(cpu)
            row.waited += float(waited)
            row.tests += int(tests)
    return sort_rows(rows.values())


def read_reasons(path: Path = REASONS) -> dict[str, str]:
    """{function or fixture: why it may take more than LIMIT seconds of CPU}."""
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})


def find_wrong_costs(
    rows: Iterable[Cost], reasons: dict[str, str], above: float = LIMIT * ROOM
) -> list[str]:
    """What the guard says of ROWS: a line for each ABOVE so many seconds that has no reason."""
    return [
        f"{row.name} takes {row.cpu:.1f} s of CPU, and {LIMIT:.0f} s is the limit"
        for row in rows
        if row.cpu > above and not reasons.get(row.name)
    ]


def find_stale_reasons(reasons: Iterable[str]) -> list[str]:
    """What the guard says of REASONS whose function or fixture is not there."""
    stale = []
    for name in reasons:
        path, _, function = name.partition("::")
        defined = f"def {function.removeprefix('fixture ')}("
        file = REPO / path
        if file.is_dir():
            file = file / "conftest.py"
        if not file.exists() or defined not in file.read_text(encoding="utf-8"):
            stale.append(f"{name} is in {REASONS.name}, and nowhere else")
    return stale


def show_rows(rows: list[Cost], first: int) -> None:
    print("   CPU s  waited s  tests  function")
    for row in rows[:first]:
        print(f"{row.cpu:8.1f}  {row.waited:8.1f}  {row.tests:5d}  {row.name}")
    cpu, waited, tests = (
        sum(getattr(row, name) for row in rows) for name in ("cpu", "waited", "tests")
    )
    print(f"{cpu:8.1f}  {waited:8.1f}  {tests:5d}  in all, in {len(rows)} rows")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="support.durations")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--first", type=int, default=20)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--guard", action="store_true")
    options = parser.parse_args(arguments)
    rows = read_rows(options.files)
    show_rows(rows, options.first)
    if options.to:
        write_rows(rows, options.to)
    if not options.guard:
        return 0

    reasons = read_reasons()
    for line in find_wrong_costs(rows, reasons, above=LIMIT):
        print(f"NOTE: {line}")
    wrong = find_wrong_costs(rows, reasons) + find_stale_reasons(reasons)
    for line in wrong:
        print(f"FAILED: {line}")
    if wrong:
        print(f"  TIP: make it cheaper, or say why it may cost that in {REASONS.relative_to(REPO)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
