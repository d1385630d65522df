"""Show the progress of long work.

On a terminal these are bars and a clock, elsewhere plain lines. Machines read JSON lines in a file
(--events).

Tested in tests/unit/cli/test_verbs.py.
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
from hpcstack.core.progress import Progress, Say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress as Display
    from rich.progress import TaskID

EVERY_S = 10.0  # seconds between two plain lines about one amount


class Lines(Progress):
    """Plain lines by SAY, and events as JSON lines in FILE, if there is one.

    Downloads report their amounts from several threads.
    """

    def __init__(self, say: Say, file: IO[str] | None) -> None:
        self.say = say
        self.file = file
        self.began = time.monotonic()
        self.told: dict[str, tuple[float, int]] = {}  # {what: (when it was last shown, how much)}
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
        of_all = f" of {total / 1e6:.0f}" if total else ""
        self.say(f"{what}: {done / 1e6:.0f}{of_all} MB")

    def event(self, kind: str, **facts: object) -> None:
        if not self.file:
            return

        seconds = round(time.monotonic() - self.began, 3)
        line = json.dumps({"event": kind, "seconds": seconds, **facts})
        with self.lock:
            self.file.write(line + "\n")
            self.file.flush()


class Bars(Lines):
    """A clock with what is being done, and a bar for each amount."""

    def __init__(self, bars: Display, doing: str, file: IO[str] | None) -> None:
        def say(text: str) -> None:
            # printed by the display's own console, which keeps the bars below it
            line = f"* {sanitize_for_terminal(text)}"
            bars.console.print(line, markup=False, highlight=False)

        super().__init__(say, file)
        self.bars = bars
        # {what: its bar}; the empty name has the clock
        self.tasks = {"": bars.add_task(_escape_markup(doing), total=None)}

    def __call__(self, sentence: str) -> None:
        super().__call__(sentence)
        self.bars.update(self.tasks[""], description=_escape_markup(sentence))

    def amount(self, what: str, done: int, total: int) -> None:
        super().amount(what, done, total)
        task = self._find_task(what, total)
        self.bars.update(task, completed=done, visible=not total or done < total)

    def _find_task(self, what: str, total: int) -> TaskID:
        with self.lock:
            if what not in self.tasks:
                self.tasks[what] = self.bars.add_task(_escape_markup(what), total=total or None)
            return self.tasks[what]

    def show(self, what: str, done: int, total: int) -> None:
        """Print no line: the bars show the amount."""


def _escape_markup(text: str) -> str:
    """Return TEXT with rich's markup, such as [bold], taken as it stands."""
    return text.replace("[", "\\[")


@contextlib.contextmanager
def draw_progress(doing: str, say: Say, events: str) -> Iterator[Progress]:
    """Yield the progress of one command, which is DOING something.

    SAY prints a plain line. EVENTS is the path of a file for JSON lines, or empty. Raise InputError
    where it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open_events(events)) if events else None
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


def _open_events(path: str) -> IO[str]:
    from hpcstack.core.outputs import open_output

    try:
        return open_output(Path(path))
    except OSError as error:
        raise InputError(f"--events {path}: {error.strerror}") from None
