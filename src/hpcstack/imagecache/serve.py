"""The service on each node: it alone writes the cache.

Who asks is known by the kernel, not by what he says.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from hpcstack.core.errors import (
    HpcstackError,
    InputError,
    RegistryError,
    StoreError,
    sanitize_for_terminal,
)
from hpcstack.imagecache.counters import Counters, name_outcome
from hpcstack.imagecache.messages import AskingRegistry, Line, Telling
from hpcstack.imagecache.provide import Provider, WantedImage
from hpcstack.imagecache.refusals import NotShared
from hpcstack.oci.client import preload_client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.imagecache.layout import ImageCache
    from hpcstack.site.load import Site

KINDS = {"not shared": NotShared, "registry": RegistryError}
ASK_S = 60.0  # who has connected says what he wants, and answers a challenge, within this time
CLIENTS, CLIENTS_OF_ONE = 256, 32
REAP_S = 5.0  # seconds between two looks at which requests have ended, where nobody asks
PLATFORM, STEP = re.compile(r"linux/[a-z0-9/]{1,20}"), re.compile(r"[A-Za-z0-9._+-]{0,200}")


def listen_on(path: Path) -> socket.socket:
    """The socket PATH, to which anybody may connect.

    StoreError where it cannot be made, or somebody listens there.
    """
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0)
    try:
        with contextlib.suppress(FileNotFoundError):
            if _answers(path):
                raise StoreError(
                    f"somebody listens on {path} already", "stop the other service first"
                )
            path.unlink()
        found.bind(str(path))
        found.listen(1024)
    except OSError as error:
        tip = f"its folder must be there, and be this account's: {path.parent}"
        raise StoreError(
            f"the socket {path} was not made: {error.strerror or error}", tip
        ) from None
    finally:
        os.umask(before)
    return found


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            raise
        except OSError:
            return False
    return True


def serve_socket(
    listening: socket.socket,
    handle: Callable[[socket.socket, int], str],
    counters: Counters | None = None,
) -> None:
    """A process for each who connects to LISTENING, which does HANDLE(connection, user id) and ends
    as that says, by one of OUTCOMES; until SIGTERM. COUNTERS are kept, by default in nobody's
    sight.
    """
    preload_client()  # once, and not in each process: it takes 0.1 s
    counters = counters or Counters()
    listening.settimeout(REAP_S)  # so that the counters are true where nobody asks any more
    children: dict[int, int] = {}
    while True:
        _reap(children, counters)
        counters.write()
        try:
            connection, _ = listening.accept()
        except (InterruptedError, TimeoutError):
            continue
        connection.settimeout(None)
        user = find_peer(connection)
        _reap(children, counters)
        crowd = Counter(children.values())[user] >= CLIENTS_OF_ONE if user else False
        try:
            child = -1 if crowd or len(children) >= CLIENTS else os.fork()
        except OSError:  # the machine has no more processes
            child = -1
        if child < 0:  # hung up on: who asks imports for himself
            counters.count("turned away")
            connection.close()
            continue
        if child:
            children[child] = user
            connection.close()
            continue
        status = 1
        try:
            listening.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            status = name_outcome(handle(connection, user))
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(status)


def _reap(children: dict[int, int], counters: Counters) -> None:
    while children:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            children.clear()
            return
        if not child:
            return
        children.pop(child, None)
        counters.count_ended(status)


def find_peer(connection: socket.socket) -> int:
    """The user id at the other end, as the kernel knows it."""
    _, user, _ = struct.unpack(
        "iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return int(user)


def answer_request(
    connection: socket.socket,
    user: int,
    cache: ImageCache,
    site: Site,
    runner: Runner,
    log: Callable[[str], None],
) -> str:
    """One request of USER on CONNECTION, with a line to LOG; how it ended, one of OUTCOMES."""
    line, began, what = (
        Line(connection, ASK_S),
        time.monotonic(),
        "a request that was not understood",
    )
    try:
        wanted = read_image_request(line, user)
        what = f"{wanted.image} ({wanted.platform}{f', step {wanted.step}' if wanted.step else ''})"
        line.say({"heard": wanted.image})
        given = Provider(cache, site, AskingRegistry(site, line), runner, Telling(line)).provide(
            wanted
        )
        reply: dict[str, object] = {
            "path": str(given.path),
            "digest": given.digest,
            "how": given.how,
        }
        outcome, why = given.how, ""
    except EOFError:
        return "gone"
    except HpcstackError as error:
        outcome = next((name for name, of in KINDS.items() if isinstance(error, of)), "failed")
        why = sanitize_for_terminal(error.message)
        reply = {"error": why, "hint": sanitize_for_terminal(error.hint), "kind": outcome}
    except OSError as error:
        outcome, why = "not shared", f"the image cache: {error.strerror or error}"
        reply = {"error": why, "hint": "tell the site", "kind": outcome}
    with contextlib.suppress(OSError), line.lock:
        line.say(reply)
    seconds = time.monotonic() - began
    told = f"user {user}: {what}: {outcome}, {seconds:.2f} s{f': {why}' if why else ''}"
    log(
        " ".join(sanitize_for_terminal(told).split())
    )  # one line, whatever line breaks the user has put into it
    return outcome


def read_image_request(line: Line, user: int) -> WantedImage:
    """What USER wants. InputError for what cannot be meant."""
    asked = line.hear()
    image, platform, step = (asked.get(name) for name in ("image", "platform", "step"))
    if not (
        isinstance(image, str)
        and len(image) < 1000
        and isinstance(platform, str)
        and isinstance(step, str)
    ):
        raise InputError("this is not a request for an image")
    if not PLATFORM.fullmatch(platform) or not STEP.fullmatch(step):
        raise InputError(f"no platform or job step: {platform[:40]!r}, {step[:40]!r}")
    return WantedImage(image, platform, user, step)
