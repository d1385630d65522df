"""How long work is shown: bars and a clock on a terminal, plain lines elsewhere, JSON lines in a
file for machines.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hpcstack.core.errors import InputError, sanitize_for_terminal
from hpcstack.core.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress as Display
    from rich.progress import TaskID

EVERY_S = 10.0  # between two plain lines about one amount


class Lines(Progress):
    """Plain lines, and events into FILE where one is asked for."""

    def __init__(self, say: Callable[[str], None], file: IO[str] | None) -> None:
        self.say, self.file, self.began = say, file, time.monotonic()
        self.told: dict[str, tuple[float, int]] = {}
        self.lock = threading.Lock()

    def __call__(self, sentence: str) -> None:
        self.say(sentence)
        self.event("says", text=sentence)

    def amount(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        with self.lock:
            last, before = self.told.get(what, (self.began, 0))
            if now - last < EVERY_S or done == before:
                return
            self.told[what] = (now, done)
        self.show(what, done, total)
        self.event("amount", what=what, done=done, total=total)

    def show(self, what: str, done: int, total: int) -> None:
        self.say(f"{what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    def event(self, kind: str, **facts: object) -> None:
        if self.file:
            line = json.dumps(
                {"event": kind, "seconds": round(time.monotonic() - self.began, 3), **facts}
            )
            with self.lock:
                self.file.write(line + "\n")
                self.file.flush()


class Bars(Lines):
    """A bar for each amount, and a clock."""

    def __init__(self, bars: Display, doing: str, file: IO[str] | None) -> None:
        super().__init__(
            lambda text: bars.console.print(
                f"* {sanitize_for_terminal(text)}", markup=False, highlight=False
            ),
            file,
        )
        self.bars, self.tasks = bars, {"": bars.add_task(_plain(doing), total=None)}

    def __call__(self, sentence: str) -> None:
        super().__call__(sentence)
        self.bars.update(self.tasks[""], description=_plain(sentence))

    def amount(self, what: str, done: int, total: int) -> None:
        super().amount(what, done, total)
        task = self._task(what, total)
        self.bars.update(task, completed=done, visible=done < total)

    def _task(self, what: str, total: int) -> TaskID:
        with self.lock:
            if what not in self.tasks:
                self.tasks[what] = self.bars.add_task(_plain(what), total=total or None)
            return self.tasks[what]

    def show(self, what: str, done: int, total: int) -> None:
        """The bars show it."""


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


@contextlib.contextmanager
def draw_progress(doing: str, say: Callable[[str], None], events: str) -> Iterator[Progress]:
    """The progress of one command."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open(events)) if events else None
        if not sys.stderr.isatty():
            yield Lines(say, file)
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            yield Bars(bars, doing, file)


def _open(path: str) -> IO[str]:
    try:
        return Path(path).open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--events {path}: {error.strerror}") from None
