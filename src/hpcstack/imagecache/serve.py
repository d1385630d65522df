"""The service on each node, which alone writes the cache.

The kernel says which user is at the other end of a connection; what a client says of itself does
not count.
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
    from hpcstack.core.progress import Say
    from hpcstack.imagecache.layout import ImageCache
    from hpcstack.site.load import Site

KINDS = {"not shared": NotShared, "registry": RegistryError}
ASK_S = 60.0  # a client must say what it wants, and answer a challenge, within this time
CLIENTS, CLIENTS_OF_ONE = 256, 32  # connections at once, of all users and of each
SWEEPER = -1  # in place of a user id: the process that sweeps
LOOK_S = 60.0  # between two looks at whether some node has swept the cache lately
REAP_S = 5.0  # seconds until ended requests are counted if no new one comes
PLATFORM = re.compile(r"linux/[a-z0-9/]{1,20}")
STEP = re.compile(r"[A-Za-z0-9._+-]{0,200}")


def listen_on(path: Path) -> socket.socket:
    """Listen on the Unix socket PATH, to which anybody may connect.

    A socket that a dead service has left is replaced. Raise StoreError if the socket cannot be
    made, or another process listens on it.
    """
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0)  # connecting takes the right to write to the socket's file
    try:
        with contextlib.suppress(FileNotFoundError):
            if _answers(path):
                raise StoreError(
                    f"somebody listens on {path} already",
                    "stop the other service first",
                    page="set-up-the-image-cache",
                )
            path.unlink()
        found.bind(str(path))
        found.listen(1024)
    except OSError as error:
        raise StoreError(
            f"the socket {path} was not made: {error.strerror or error}",
            f"its folder must exist, and belong to this account: {path.parent}",
            page="set-up-the-image-cache",
        ) from None
    finally:
        os.umask(before)
    return found


def _answers(path: Path) -> bool:
    """Return whether a process listens on PATH. Raise FileNotFoundError if there is no socket."""
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
    sweep: Callable[[], None] | None = None,
) -> None:
    """Serve each client that connects to LISTENING in a process of its own, until SIGTERM.

    The process calls HANDLE(connection, user id), and its exit status stands for the outcome that
    HANDLE returns, one of OUTCOMES. These are counted in COUNTERS. SWEEP is called every LOOK_S, in
    a process of its own: whether or not anything is imported, what requests leave goes.
    """
    preload_client()  # here once, and not in each process, where it would take 0.1 s
    counters = counters or Counters()
    listening.settimeout(REAP_S)  # so that the counters become true even if nobody asks any more
    children: dict[int, int] = {}  # process id: user id
    looked = -LOOK_S
    while True:
        _reap(children, counters)
        counters.write()
        if sweep and time.monotonic() - looked >= LOOK_S:
            looked = time.monotonic()
            _start_sweep(sweep, listening, children)
        try:
            connection, _ = listening.accept()
        except (InterruptedError, TimeoutError):
            continue
        connection.settimeout(None)
        user = find_peer(connection)

        _reap(children, counters)
        too_many = len(children) >= CLIENTS
        if user:  # not root
            too_many = too_many or Counter(children.values())[user] >= CLIENTS_OF_ONE
        child = -1
        if not too_many:
            with contextlib.suppress(OSError):  # the machine may have no more processes
                child = os.fork()
        if child < 0:  # hang up: the client then imports for itself
            counters.count("turned away")
            connection.close()
            continue
        if child:
            children[child] = user
            connection.close()
            continue

        # The child answers this one request, and must never return into the caller's code.
        status = 1
        try:
            listening.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            status = name_outcome(handle(connection, user))
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(status)


def _start_sweep(
    sweep: Callable[[], None], listening: socket.socket, children: dict[int, int]
) -> None:
    """Call SWEEP in a process of its own, one of CHILDREN, unless the last one still runs."""
    if SWEEPER in children.values():
        return
    child = -1
    with contextlib.suppress(OSError):  # the machine may have no more processes
        child = os.fork()
    if child > 0:
        children[child] = SWEEPER
    if child:
        return

    status = 1
    try:
        listening.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sweep()
        status = 0
    except (HpcstackError, OSError) as error:
        sys.stderr.write(f"hpcstack: the image cache is not swept: {error}\n")
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


def _reap(children: dict[int, int], counters: Counters) -> None:
    """Count the requests whose processes have ended, and drop them from CHILDREN."""
    while children:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            children.clear()
            return
        if not child:
            return
        if children.pop(child, None) != SWEEPER:
            counters.count_ended(status)


def find_peer(connection: socket.socket) -> int:
    """Return the id of the user at the other end, as the kernel knows it (SO_PEERCRED, unix(7))."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _process, user, _group = struct.unpack("iII", credentials)
    return int(user)


def answer_request(
    connection: socket.socket,
    user: int,
    cache: ImageCache,
    site: Site,
    runner: Runner,
    log: Say,
) -> str:
    """Answer one request of USER on CONNECTION, and write one line about it to LOG.

    Return how it ended, one of OUTCOMES.
    """
    line = Line(connection, ASK_S)
    began = time.monotonic()
    what = "a request that was not understood"
    try:
        wanted = read_image_request(line, user)
        of_step = ""
        if wanted.step:
            of_step = f", step {wanted.step}"
        what = f"{wanted.image} ({wanted.platform}{of_step})"
        line.say({"heard": wanted.image})
        provider = Provider(cache, site, AskingRegistry(site, line), runner, Telling(line))
        given = provider.provide(wanted)
        reply: dict[str, object] = {
            "path": str(given.path),
            "digest": given.digest,
            "how": given.how,
        }
        outcome = given.how
        why = ""
    except EOFError:
        return "gone"
    except HpcstackError as error:
        outcome = next((name for name, of in KINDS.items() if isinstance(error, of)), "failed")
        why = sanitize_for_terminal(error.message)
        reply = {"error": why, "hint": sanitize_for_terminal(error.hint), "kind": outcome}
    except OSError as error:
        outcome = "not shared"
        why = f"the image cache: {error.strerror or error}"
        reply = {"error": why, "hint": "tell the site's administrators", "kind": outcome}

    with contextlib.suppress(OSError), line.lock:
        line.say(reply)

    seconds = time.monotonic() - began
    entry = f"user {user}: {what}: {outcome}, {seconds:.2f} s"
    if why:
        entry += f": {why}"
    # One line, whatever line breaks the user has put into the image's name.
    log(" ".join(sanitize_for_terminal(entry).split()))
    return outcome


def read_image_request(line: Line, user: int) -> WantedImage:
    """Read what USER wants. Raise InputError for what is not a valid request."""
    asked = line.hear()
    image, platform, step = (asked.get(name) for name in ("image", "platform", "step"))
    if not isinstance(image, str) or len(image) >= 1000:
        raise InputError("this is not a request for an image")
    if not isinstance(platform, str) or not isinstance(step, str):
        raise InputError("this is not a request for an image")
    if not PLATFORM.fullmatch(platform) or not STEP.fullmatch(step):
        raise InputError(f"not a valid platform or job step: {platform[:40]!r}, {step[:40]!r}")
    return WantedImage(image, platform, user, step)
