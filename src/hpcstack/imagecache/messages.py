"""What the service and who asks it say to each other: a JSON object a line, over a Unix socket.

Asked: {image, platform, step}. Said meanwhile: {heard}, at once, {says}, {done, total}, and
{challenge, host, image, repository}, which wants {authorization}, {refused, hint} or {cannot,
hint}. Said last: {path, digest, how}, or {error, hint, kind}.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError, LoginRefused, sanitize_for_terminal
from hpcstack.core.progress import Progress
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.imagecache.careful import CarefulRegistry
from hpcstack.imagecache.refusals import HolderGone, NotHere
from hpcstack.oci.tokens import HEADER, Authorization

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

MAX_LINE = 1 << 18  # a token of 64 KiB is the longest thing that is said


class Line:
    """One end of the connection.

    A message is heard whole within SECONDS, or not at all (None: there is no hurry).
    """

    def __init__(self, connection: socket.socket, seconds: float | None = None) -> None:
        self.connection, self.seconds = connection, seconds
        self.buffer, self.gone = b"", False
        self.lock = threading.Lock()

    def say(self, facts: Mapping[str, object], *, wait: bool = True) -> None:
        """OSError where nobody listens.

        Without WAIT also where who should does not keep up: he is gone then.
        """
        if self.gone:
            raise BrokenPipeError
        data = json.dumps(dict(facts)).encode() + b"\n"
        try:
            self.connection.settimeout(self.seconds if wait else 0)
            if wait:
                self.connection.sendall(data)
            elif self.connection.send(data) < len(data):
                raise BrokenPipeError
        except OSError:
            self.gone = True
            raise

    def hear(self) -> dict[str, Any]:
        """The next object. EOFError where the other end is gone, InputError for what is none,
        OSError where it takes too long.
        """
        until = time.monotonic() + self.seconds if self.seconds else None
        while b"\n" not in self.buffer and len(self.buffer) < MAX_LINE:
            left = until - time.monotonic() if until else None
            if left is not None and left <= 0:
                raise TimeoutError
            self.connection.settimeout(left)
            piece = self.connection.recv(1 << 16)
            if not piece:
                raise EOFError("the other end is gone")
            self.buffer += piece
        text, _, self.buffer = self.buffer.partition(b"\n")
        try:
            return parse_untrusted_json(text, MAX_LINE)
        except ValueError:
            raise InputError("this is not a message") from None


class Telling(Progress):
    """Progress, said to who asked; nothing where he is gone, or does not listen: others may wait
    for the import.
    """

    def __init__(self, line: Line) -> None:
        self.line = line

    def __call__(self, sentence: str) -> None:
        self._say({"says": sanitize_for_terminal(sentence)})

    def amount(self, what: str, done: int, total: int) -> None:
        del what
        self._say({"done": done, "total": total})

    def _say(self, facts: Mapping[str, object]) -> None:
        if not self.line.lock.acquire(blocking=False):  # he is being asked for his login
            return
        try:
            self.line.say(facts, wait=False)
        except OSError:
            return
        finally:
            self.line.lock.release()


class AskingRegistry(CarefulRegistry):
    """A registry whose challenges go to who asked: his login stays with him, and only what answers
    comes back.
    """

    def __init__(self, site: Site, line: Line) -> None:
        super().__init__(site)
        self.line = line

    def authorization(
        self, challenge: str, host: str, base: Base, repository: str
    ) -> Authorization:
        """What who asked answers to CHALLENGE. LoginRefused where he has no login that counts,
        NotHere where he cannot answer at all, HolderGone where he is gone: none of these is anybody
        else's.
        """
        try:
            with self.line.lock:
                asked = {
                    "challenge": challenge[:4096],
                    "host": host,
                    "image": base.image,
                    "repository": repository,
                }
                self.line.say(asked)
                answer = self.line.hear()
        except (OSError, EOFError):
            raise HolderGone(
                f"who asked for {base.image} is gone, and with him his login", "ask again"
            ) from None
        except InputError:
            answer = {}
        found, refused = answer.get("authorization"), answer.get("refused")
        if isinstance(found, str) and HEADER.fullmatch(found):
            return Authorization(found)
        hint = sanitize_for_terminal(str(answer.get("hint") or "hpcstack doctor"))[:2000]
        if isinstance(refused, str):
            raise LoginRefused(sanitize_for_terminal(refused)[:2000], hint)
        said = sanitize_for_terminal(
            str(answer.get("cannot") or "it said nothing that could be one")
        )[:2000]
        raise NotHere(
            f"{host} wants a login for {base.image}, and hpcstack could not answer: {said}", hint
        )
