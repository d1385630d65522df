"""The journal as a program reads it."""

from __future__ import annotations

import time


def as_journal(messages: list[str], at: float | None = None) -> str:
    """MESSAGES of the kernel as `journalctl -o short-unix` prints them: what follows a line break
    is indented.
    """
    head = f"{at or time.time():.6f} node1 kernel: "
    return "".join(
        head + message.replace("\n", "\n" + " " * len(head)) + "\n" for message in messages
    )
