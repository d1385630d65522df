"""What long work says while it runs.

This one says nothing; the command line's shows lines, bars and events.
"""

from __future__ import annotations


class Progress:
    """Call it with a sentence; tell it how far something is; tell it what happened, for machines."""

    def __call__(self, sentence: str) -> None: ...

    def amount(self, what: str, done: int, total: int) -> None:
        """DONE of TOTAL bytes of WHAT; called often."""

    def event(self, kind: str, **facts: object) -> None:
        """One line of `--events`."""
