"""The service on each node: it alone writes the cache. Who asks is known by the kernel, not by what he says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import sys
from collections import Counter
from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError, InputError, RegistryError, StoreError, visible
from hpcstack.imagecache.messages import AskingRegistry, Line, Telling
from hpcstack.imagecache.provide import Provider, WantedImage
from hpcstack.imagecache.refusals import NotShared
from hpcstack.oci.client import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.imagecache.layout import ImageCache
    from hpcstack.site.load import Site

KINDS = {"not shared": NotShared, "registry": RegistryError}
ASK_S = 60.0  # who has connected says what he wants, and answers a challenge, within this time
CLIENTS, CLIENTS_OF_ONE = 256, 32
PLATFORM, STEP = re.compile(r"linux/[a-z0-9/]{1,20}"), re.compile(r"[A-Za-z0-9._+-]{0,200}")


def listen(path: Path) -> socket.socket:
    """The socket PATH, to which anybody may connect. StoreError where it cannot be made, or somebody listens there."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0)
    try:
        with contextlib.suppress(FileNotFoundError):
            if _answers(path):
                raise StoreError(f"somebody listens on {path} already", "stop the other service first")
            path.unlink()
        found.bind(str(path))
        found.listen(1024)
    except OSError as error:
        tip = f"its folder must be there, and be this account's: {path.parent}"
        raise StoreError(f"the socket {path} was not made: {error.strerror or error}", tip) from None
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


def serve(listening: socket.socket, handle: Callable[[socket.socket, int], None]) -> None:
    """A process for each who connects to LISTENING, which does HANDLE(connection, user id); until SIGTERM."""
    load()  # once, and not in each process: it takes 0.1 s
    children: dict[int, int] = {}
    while True:
        try:
            connection, _ = listening.accept()
        except InterruptedError:
            continue
        user = peer(connection)
        _reap(children)
        crowd = Counter(children.values())[user] >= CLIENTS_OF_ONE if user else False
        try:
            child = -1 if crowd or len(children) >= CLIENTS else os.fork()
        except OSError:  # the machine has no more processes
            child = -1
        if child < 0:  # hung up on: who asks imports for himself
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
            handle(connection, user)
            status = 0
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(status)


def _reap(children: dict[int, int]) -> None:
    while children:
        try:
            child, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            children.clear()
            return
        if not child:
            return
        children.pop(child, None)


def peer(connection: socket.socket) -> int:
    """The user id at the other end, as the kernel knows it."""
    _, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


def answer(connection: socket.socket, user: int, cache: ImageCache, site: Site, runner: Runner) -> None:
    """One request of USER on CONNECTION."""
    line = Line(connection, ASK_S)
    try:
        wanted = read_request(line, user)
        line.say({"heard": wanted.image})
        given = Provider(cache, site, AskingRegistry(site, line), runner, Telling(line)).provide(wanted)
        reply: dict[str, object] = {"path": str(given.path), "digest": given.digest, "how": given.how}
    except EOFError:
        return
    except HpcstackError as error:
        kind = next((name for name, of in KINDS.items() if isinstance(error, of)), "failed")
        reply = {"error": visible(error.message), "hint": visible(error.hint), "kind": kind}
    except OSError as error:
        reply = {"error": f"the image cache: {error.strerror or error}", "hint": "tell the site", "kind": "not shared"}
    with contextlib.suppress(OSError), line.lock:
        line.say(reply)


def read_request(line: Line, user: int) -> WantedImage:
    """What USER wants. InputError for what cannot be meant."""
    asked = line.hear()
    image, platform, step = (asked.get(name) for name in ("image", "platform", "step"))
    if not (isinstance(image, str) and len(image) < 1000 and isinstance(platform, str) and isinstance(step, str)):
        raise InputError("this is not a request for an image")
    if not PLATFORM.fullmatch(platform) or not STEP.fullmatch(step):
        raise InputError(f"no platform or job step: {platform[:40]!r}, {step[:40]!r}")
    return WantedImage(image, platform, user, step)
