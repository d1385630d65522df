"""What the service and who asks it say to each other: a JSON object a line, over a Unix socket.

Asked: {image, platform, step}. Said meanwhile: {says}, {done, total}, and {challenge, host, image, repository}, which
wants {authorization} or {refused, hint}. Said last: {path, digest, how}, or {error, hint, kind}.
"""

from __future__ import annotations

import json
import threading
from typing import IO, TYPE_CHECKING, Any

from hpcstack.core.errors import InputError, RegistryError
from hpcstack.core.progress import Progress
from hpcstack.imagecache.refusals import HolderGone
from hpcstack.oci.client import Registry
from hpcstack.oci.tokens import HEADER

if TYPE_CHECKING:
    import socket

    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

MAX_LINE = 1 << 18  # a token of 64 KiB is the longest thing that is said


class Line:
    """One end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.file: IO[bytes] = connection.makefile("rb")
        self.lock = threading.Lock()

    def say(self, **facts: object) -> None:
        """OSError where nobody listens."""
        self.connection.sendall(json.dumps(facts).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """The next object. EOFError where the other end is gone, InputError for what is none."""
        text = self.file.readline(MAX_LINE)
        if not text:
            raise EOFError("the other end is gone")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise InputError("this is not a message")
        return found


class Telling(Progress):
    """Progress, said to who asked; nothing where he is gone: others may wait for the same import."""

    def __init__(self, line: Line) -> None:
        self.line = line

    def __call__(self, sentence: str) -> None:
        self._say(says=sentence)

    def amount(self, what: str, done: int, total: int) -> None:
        del what
        self._say(done=done, total=total)

    def _say(self, **facts: object) -> None:
        try:
            with self.line.lock:
                self.line.say(**facts)
        except OSError:
            return


class AskingRegistry(Registry):
    """A registry whose challenges go to who asked: his login stays with him, and only what answers comes back."""

    def __init__(self, site: Site, line: Line) -> None:
        super().__init__(site)
        self.line = line

    def authorization(self, challenge: str, host: str, base: Base, repository: str) -> str:
        try:
            with self.line.lock:
                self.line.say(challenge=challenge[:4096], host=host, image=base.image, repository=repository)
                answer = self.line.hear()
        except (OSError, EOFError):
            raise HolderGone(f"who asked for {base.image} is gone, and with him his login", "ask again") from None
        found = answer.get("authorization")
        if isinstance(found, str) and HEADER.fullmatch(found):
            return found
        said = answer.get("refused") or f"{host} wants a login for {base.image}, and hpcstack did not answer"
        raise RegistryError(str(said)[:2000], str(answer.get("hint") or "hpcstack doctor")[:2000])
