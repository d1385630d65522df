"""The messages between the service and its clients: one JSON object a line, over a Unix socket.

1. The client asks: {image, platform, step}.
2. The service replies {heard} at once, and then, while it works, {says} and {done, total}.
3. It may ask {challenge, host, image, repository}. The client answers {authorization},
   {refused, hint} or {cannot, hint}.
4. Last, the service sends {path, digest, how}, or {error, hint, kind}.

Tested in tests/unit/imagecache/test_serve.py.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from hpcstack.core.budget import Budget
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

MAX_LINE = 1 << 18  # bytes; the longest thing in a message is a token of 64 KiB


class Line:
    """One end of the connection.

    The other end must send each message completely, and take each, within SECONDS; None is for
    ever.
    """

    def __init__(self, connection: socket.socket, seconds: float | None = None) -> None:
        self.connection, self.seconds = connection, seconds
        self.buffer, self.gone = b"", False
        self.lock = threading.Lock()

    def say(self, facts: Mapping[str, object], *, wait: bool = True) -> None:
        """Send FACTS as a message. Raise OSError if the other end is gone.

        Without WAIT, it also counts as gone if it does not keep up with what it is sent.
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
        """Return the next message.

        Raise EOFError if the other end is gone, OSError if it takes too long, and InputError for
        what is not a message.
        """
        budget = Budget("the other end", InputError, "", MAX_LINE, seconds=self.seconds or 0.0)
        while b"\n" not in self.buffer:
            self.connection.settimeout(budget.seconds_left)
            piece = self.connection.recv(1 << 16)
            if not piece:
                raise EOFError("the other end is gone")
            if budget.is_late:
                raise TimeoutError
            budget.count_bytes(len(piece))
            self.buffer += piece
        text, _, self.buffer = self.buffer.partition(b"\n")
        try:
            return parse_untrusted_json(text, MAX_LINE)
        except ValueError:
            raise InputError("this is not a message") from None


class Telling(Progress):
    """Progress that is sent to the client.

    If the client is gone or does not listen, the import goes on: others may be waiting for it.
    """

    def __init__(self, line: Line) -> None:
        self.line = line

    def __call__(self, sentence: str) -> None:
        self._say({"says": sanitize_for_terminal(sentence)})

    def amount(self, what: str, done: int, total: int) -> None:
        del what
        self._say({"done": done, "total": total})

    def _say(self, facts: Mapping[str, object]) -> None:
        """Send FACTS, or drop them."""
        # While another thread asks the client for its login, progress is dropped and not mixed in.
        if not self.line.lock.acquire(blocking=False):
            return
        try:
            self.line.say(facts, wait=False)
        except OSError:
            return
        finally:
            self.line.lock.release()


class AskingRegistry(CarefulRegistry):
    """A registry client that passes challenges on to the service's client.

    The user's login stays on that side; only the answer to the challenge comes back.
    """

    def __init__(self, site: Site, line: Line) -> None:
        super().__init__(site)
        self.line = line

    def authorization(
        self, challenge: str, host: str, base: Base, repository: str
    ) -> Authorization:
        """Return the client's answer to CHALLENGE.

        Raise LoginRefused if its login is refused, NotHere if it cannot answer at all, HolderGone
        if it is gone. None of these says anything about other users.
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
                f"whoever asked for {base.image} is gone, and the login with them", "ask again"
            ) from None
        except InputError:
            answer = {}

        found = answer.get("authorization")
        if isinstance(found, str) and HEADER.fullmatch(found):
            return Authorization(found)

        hint = sanitize_for_terminal(str(answer.get("hint") or "hpcstack doctor"))[:2000]
        refused = answer.get("refused")
        if isinstance(refused, str):
            raise LoginRefused(sanitize_for_terminal(refused)[:2000], hint)

        reason = str(answer.get("cannot") or "it sent no valid answer")
        reason = sanitize_for_terminal(reason)[:2000]
        raise NotHere(
            f"{host} wants a login for {base.image}, and the hpcstack that asked could not give "
            f"one: {reason}",
            hint,
        )
