"""Whether an image can load the libraries of the nodes' own that a step brings, as far as this
machine shows them.

A library says which symbol versions of glibc it wants; an image whose glibc is older refuses it
when a rank loads it, and NCCL then goes on over sockets. A plugin of NCCL's says which interfaces
it has; an NCCL that knows none of them goes on over sockets, too. So both are asked before nodes
are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from hpcstack.hardware.compatibility import parse_version
from hpcstack.hardware.nccl_plugins import loadable_interfaces
from hpcstack.site.injection import is_library
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.lookup import find_inode, read_content
from hpcstack.squashfs.read import Squashfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from elftools.elf.elffile import ELFFile

    from hpcstack.site.injection import Brought
    from hpcstack.store.artifact import Artifact

# Where distributions keep the C library, the links among them followed.
C_LIBRARIES = (
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/aarch64-linux-gnu/libc.so.6",
    "/lib64/libc.so.6",
    "/usr/lib/libc.so.6",
)
MOST_BYTES = 16 << 20  # of a libc.so.6: 2 MB
SAYS = re.compile(rb"GNU C Library [^\n]{0,200}version ([0-9]+\.[0-9]+)")
# What runs a program comes from the image, with all of its parts: one of another version ends every
# process.
NEVER = re.compile(r"(ld-linux.*|libc|libm|libpthread|libdl|librt)\.so(\.[0-9]+)*")
MACHINES = {"linux/amd64": "EM_X86_64", "linux/arm64": "EM_AARCH64"}
NCCL_OF_PIP = re.compile(r"nvidia[-_]nccl[-_]cu[0-9]+", re.IGNORECASE)
INTERFACE = re.compile(r"ncclNetPlugin_v([0-9]{1,3})")
MOST_LIBRARIES = 200  # of a folder


class Wants(NamedTuple):
    """What an ELF file wants of where it is loaded. `glibc`: the newest version that a symbol of it
    names, or empty; `interfaces`: the N of each ncclNetPlugin_vN that it has.
    """

    machine: str
    glibc: str
    interfaces: frozenset[int] = frozenset()


def find_misfit(brought: Sequence[Brought], image: Path, platform: str, nccl: str = "") -> str:
    """Why IMAGE, of PLATFORM and with the NCCL of version NCCL, cannot load what is BROUGHT; empty
    where it can, or this machine has no such library.
    """
    has: str | None = None
    loadable = loadable_interfaces(nccl)
    for one in brought:
        plugins: list[Path] = []
        interfaces: set[int] = set()
        for path in libraries_here(one.sources):
            if NEVER.fullmatch(path.name):
                return (
                    f"fabric.injections.{one.name}: {path} belongs to the node's C library, and no "
                    f"program of the "
                    "image would start with it: name the libraries of the fabric one by one in "
                    "site.yaml"
                )
            wants = read_wants(path)
            if wants is None:
                continue
            if wants.machine != MACHINES.get(platform, wants.machine):
                return (
                    f"fabric.injections.{one.name}: {path} is for another processor than {platform}"
                )
            if wants.interfaces:
                plugins.append(path)
                interfaces |= wants.interfaces
            if not wants.glibc:
                continue
            if has is None:
                has = read_glibc(image)
            if has and parse_version(wants.glibc) > parse_version(has):
                return (
                    f"fabric.injections.{one.name}: {path} wants glibc {wants.glibc}, and the "
                    f"image has {has}: it "
                    "cannot be loaded there. Take a newer version of the stack, or let the site "
                    "bring one that was "
                    "built for an older system"
                )
        # A folder may have an older plugin beside the one that is loaded: none of them must fit.
        if plugins and loadable and not interfaces & loadable:
            return (
                f"fabric.injections.{one.name}: {plugins[0]} is a plugin with "
                f"{_symbols(interfaces)}, and the "
                f"image's NCCL {nccl} loads {_symbols(loadable)}: it would go on over sockets. Let "
                f"the site bring a "
                "plugin that was built for this NCCL, and limit it to these images with `cuda`"
            )
    return ""


def nccl_of(artifact: Artifact) -> str:
    """The version of the NCCL that torch loads in the image of ARTIFACT: of a package of Python's
    that brings one, else what the base says; empty where neither does.
    """
    of_pip = [text for name, text in artifact.pip.items() if NCCL_OF_PIP.fullmatch(name)]
    return next(iter(of_pip), artifact.environment.get("NCCL_VERSION", ""))


def _symbols(interfaces: Iterable[int]) -> str:
    return ", ".join(f"ncclNetPlugin_v{number}" for number in sorted(interfaces))


def not_here(brought: Sequence[Brought]) -> list[str]:
    """What is BROUGHT from nodes and is not on this machine, so that nobody has looked at it."""
    return [source for one in brought for source in one.sources if not Path(source).exists()]


def libraries_here(sources: Sequence[str]) -> Iterator[Path]:
    """The libraries' files among SOURCES and in their folders, as far as they can be seen from
    here.
    """
    for path in map(Path, sources):
        if is_library(str(path)):
            yield path
            continue
        try:
            found = sorted(one for one in path.iterdir() if is_library(one.name))
        except OSError:  # a file of configuration, or a folder that only nodes have
            continue
        yield from found[:MOST_LIBRARIES]


def read_wants(path: Path) -> Wants | None:
    """What the library at PATH wants; None where it cannot be read, or is no ELF file (a linker's
    script).
    """
    from elftools.common.exceptions import ELFError

    try:
        with path.open("rb") as file:
            return _wants(file)
    except (OSError, ELFError):
        return None


def _wants(file: BinaryIO) -> Wants:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    elf = ELFFile(file)
    versions = [
        auxiliary.name.removeprefix("GLIBC_")
        for section in elf.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, auxiliaries in section.iter_versions()
        for auxiliary in auxiliaries
        if re.fullmatch(r"GLIBC_[0-9.]+", auxiliary.name)
    ]
    return Wants(elf["e_machine"], max(versions, key=parse_version, default=""), _interfaces(elf))


def _interfaces(elf: ELFFile) -> frozenset[int]:
    """The interfaces of NCCL's that ELF has itself."""
    from elftools.elf.sections import SymbolTableSection

    symbols = elf.get_section_by_name(".dynsym")
    if not isinstance(symbols, SymbolTableSection):
        return frozenset()
    own = (symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF")
    return frozenset(int(match[1]) for match in map(INTERFACE.fullmatch, own) if match)


def read_glibc(image: Path) -> str:
    """The version of glibc in IMAGE, e.g. `2.39`; empty where it has none, or none that says so."""
    try:
        with Squashfs(image) as opened:
            for place in C_LIBRARIES:
                file = find_inode(opened, place)
                if file is None:
                    continue
                said = SAYS.search(read_content(opened, file, MOST_BYTES))
                return said[1].decode() if said else ""
    except (OSError, Unreadable):
        return ""
    return ""
