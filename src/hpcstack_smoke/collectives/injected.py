"""Whether each rank has the fabric's libraries from its node, as site.yaml wants, and not the
image's own or none.

What NCCL has loaded is asked of the loader itself (dlinfo), since a plugin that cannot be loaded is
no error to NCCL: it goes on over sockets. What nothing has loaded yet is loaded here.
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

RTLD_NOLOAD = 4  # bits/dlfcn.h: only what is there already
RTLD_DI_LINKMAP = 2  # dlfcn.h: the loader's own row of a library
PLUGIN = "libnccl-net"  # what NCCL itself loads, before it talks to another node
NEXT = (
    "fabric.injections in site.yaml says what is brought: is it the build that this image can load?"
)


class LinkMap(ctypes.Structure):
    """The beginning of struct link_map, link.h."""

    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


@dataclass(frozen=True)
class LoadedLibrary:
    """Where the loader found the library NAME; empty with the loader's ERROR.

    `before`: somebody had loaded it.
    """

    name: str
    path: str = ""
    before: bool = False
    error: str = ""


def check(context: Context) -> Result:
    """Each rank has every library that the site names from its node."""
    wanted = context.request.injected
    if not wanted:
        raise Skip("site.yaml brings no libraries of the nodes' own into a step on such nodes")
    mine = [find_library(name) for name in wanted]
    everyone = context.all((socket.gethostname(), mine))
    return judge_loaded(
        everyone,
        context.request.injected_at,
        by_nccl=context.backend == "nccl" and context.nodes > 1,
    )


def find_library(name: str) -> LoadedLibrary:
    """Where this process has the library NAME, which is loaded if it is not there."""
    try:
        return LoadedLibrary(
            name, path_of(ctypes.CDLL(name, mode=os.RTLD_LAZY | RTLD_NOLOAD)), before=True
        )
    except OSError:
        pass
    try:
        return LoadedLibrary(name, path_of(ctypes.CDLL(name, mode=os.RTLD_LAZY | os.RTLD_LOCAL)))
    except OSError as error:
        return LoadedLibrary(name, error=str(error)[:300])


def path_of(library: ctypes.CDLL) -> str:
    """The path that the loader opened LIBRARY by."""
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    row = ctypes.POINTER(LinkMap)()
    if dlinfo(library._handle, RTLD_DI_LINKMAP, ctypes.byref(row)):
        raise OSError(f"dlinfo says nothing of {library._name}")
    return os.fsdecode(row.contents.name or b"")


def judge_loaded(everyone: list[Any], place: str, *, by_nccl: bool) -> Result:
    """EVERYONE: (host, what it found) of each rank. PLACE: where the node's libraries lie. BY_NCCL:
    NCCL has been at work between nodes, as it is since ranks have met by it, and has looked for its
    plugin.
    """
    count = len(everyone)
    wanted = f"each of {count} rank(s) has the node's own, below {place}"
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
        several = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return Result(FAIL, f"{bad[0]}{several}", wanted, evidence="; ".join(bad[:8]), remedy=NEXT)
    paths = ", ".join(dict.fromkeys(one.path for _, found in everyone for one in found))
    loaded = all(one.before for _, found in everyone for one in found)
    how = "already loaded" if loaded else "loaded by this check, where nothing had"
    return Result(PASS, f"{paths}: {how}", wanted)
