"""Check that each rank has the fabric's libraries from its node, where site.yaml wants that.

A rank could have the image's own instead, or none. The loader itself is asked what NCCL has loaded
(dlinfo), since NCCL does not report a plugin that cannot be loaded as an error: it goes on over
sockets. A library that nothing has loaded yet is loaded here.
"""

from __future__ import annotations

import ctypes
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.result import FAIL, PASS, Result, Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

RTLD_NOLOAD = 4  # bits/dlfcn.h: do not load the library, only find it if it is loaded
RTLD_DI_LINKMAP = 2  # dlfcn.h: ask for the library's struct link_map
PLUGIN = "libnccl-net"  # NCCL loads it by itself, before it connects to another node
NEXT = (
    "check fabric.injections in site.yaml, which says what is brought in: can this image load that "
    "build?"
)


class LinkMap(ctypes.Structure):
    """The beginning of struct link_map in link.h."""

    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


@dataclass(frozen=True)
class LoadedLibrary:
    """Where the loader found the library `name`; `path` is empty where it gave an `error`.

    `before`: it was already loaded when this check looked for it.
    """

    name: str
    path: str = ""
    before: bool = False
    error: str = ""


def check_fabric_injected(context: Context) -> Result:
    """Check that each rank has every library that the site names from its node."""
    wanted = context.request.injected
    if not wanted:
        raise Skip("site.yaml brings no libraries of the nodes into a step on such nodes")
    mine = [find_library(name) for name in wanted]
    everyone = context.all((socket.gethostname(), mine))
    by_nccl = context.backend == "nccl" and context.nodes > 1
    return judge_loaded(everyone, context.request.injected_at, by_nccl=by_nccl)


def find_library(name: str) -> LoadedLibrary:
    """Return where this process has the library NAME, which is loaded if it is not yet."""
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_LAZY | RTLD_NOLOAD)
        return LoadedLibrary(name, find_path_of(library), before=True)
    except OSError:
        pass  # not loaded yet
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_LAZY | os.RTLD_LOCAL)
        return LoadedLibrary(name, find_path_of(library))
    except OSError as error:
        return LoadedLibrary(name, error=str(error)[:300])


def find_path_of(library: ctypes.CDLL) -> str:
    """Return the path that the loader opened LIBRARY by. Raise OSError where it does not say."""
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    row = ctypes.POINTER(LinkMap)()
    if dlinfo(library._handle, RTLD_DI_LINKMAP, ctypes.byref(row)):
        raise OSError(f"dlinfo knows nothing of {library._name}")
    return os.fsdecode(row.contents.name or b"")


def judge_loaded(everyone: list[Any], place: str, *, by_nccl: bool) -> Result:
    """Judge what EVERYONE found: (host, its LoadedLibrary objects) of each rank.

    PLACE: the folder in the container that holds the node's libraries. BY_NCCL: the ranks are on
    several nodes and have met by NCCL, so NCCL has already looked for its plugin.
    """
    wanted = f"each of {len(everyone)} rank(s) has the node's own, below {place}"
    bad = []
    for host, found in everyone:
        for one in found:
            if one.error:
                bad.append(f"{host}: {one.name} cannot be loaded: {one.error}")
            elif not one.path.startswith(f"{place}/"):
                bad.append(f"{host}: {one.name} is the image's own, {one.path}")
            elif by_nccl and one.name.startswith(PLUGIN) and not one.before:
                bad.append(
                    f"{host}: NCCL has not loaded {one.name}, which can be loaded from {one.path}"
                )
    if bad:
        measured = bad[0]
        if len(bad) > 1:
            measured += f" (and {len(bad) - 1} more)"
        return Result(FAIL, measured, wanted, evidence="; ".join(bad[:8]), remedy=NEXT)

    libraries = [one for _, found in everyone for one in found]
    paths = ", ".join(dict.fromkeys(one.path for one in libraries))
    how = "loaded by this check, where nothing had"
    if all(one.before for one in libraries):
        how = "already loaded"
    return Result(PASS, f"{paths}: {how}", wanted)
