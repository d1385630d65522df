"""What long work reports while it runs.

The class here reports nothing. Those of the command line print lines, bars, or events for machines.

Tested in tests/unit/imagecache/test_provide.py.
"""

from __future__ import annotations

from collections.abc import Callable

# What takes one sentence for people. A Progress is one, and so is the command line's `say`.
Say = Callable[[str], None]


class Progress:
    """Takes reports of work: a sentence by a call, how far it is, and events for machines."""

    def __call__(self, sentence: str) -> None: ...

    def amount(self, what: str, done: int, total: int) -> None:
        """Report that DONE of TOTAL bytes of WHAT are done; called often.

        TOTAL is 0 where nobody knows it.
        """

    def event(self, kind: str, **facts: object) -> None:
        """Report that something of KIND has happened, with FACTS: one line of `--events`."""
