"""Find out whether an image can load the nodes' own libraries that a step brings into it.

A library names the symbol versions of glibc that it needs. If the image's glibc is older, a rank
cannot load the library, and NCCL goes on over sockets. A plugin for NCCL has interfaces of certain
versions. If the image's NCCL knows none of them, it goes on over sockets, too. So both are looked
up before nodes are asked for, in the copies of the libraries that this machine has.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from hpcstack.hardware.compatibility import parse_version
from hpcstack.hardware.nccl_plugins import list_loadable_interfaces
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
MOST_BYTES = 16 << 20  # that are read of a libc.so.6, which has about 2 MB
SAYS = re.compile(rb"GNU C Library [^\n]{0,200}version ([0-9]+\.[0-9]+)")
# Parts of the C library. They must all come from the image: one of another version ends every
# process.
NEVER = re.compile(r"(ld-linux.*|libc|libm|libpthread|libdl|librt)\.so(\.[0-9]+)*")
MACHINES = {"linux/amd64": "EM_X86_64", "linux/arm64": "EM_AARCH64"}
NCCL_OF_PIP = re.compile(r"nvidia[-_]nccl[-_]cu[0-9]+", re.IGNORECASE)
INTERFACE = re.compile(r"ncclNetPlugin_v([0-9]{1,3})")
MOST_LIBRARIES = 200  # that are looked at in a folder


class Wants(NamedTuple):
    """What an ELF file needs where it is loaded.

    `machine` is its processor as ELF names it, `glibc` the newest version that one of its symbols
    needs, or empty. `interfaces` are the N of each ncclNetPlugin_vN that it offers.
    """

    machine: str
    glibc: str
    interfaces: frozenset[int] = frozenset()


def find_misfit(brought: Sequence[Brought], image: Path, platform: str, nccl: str = "") -> str:
    """Return why an image cannot load what is BROUGHT; empty where it can, or nobody knows.

    IMAGE is for PLATFORM, and its NCCL has the version NCCL. Libraries that this machine does not
    have are not looked at.
    """
    image_glibc: str | None = None  # read once, and only where a library needs it
    loadable = list_loadable_interfaces(nccl)
    for one in brought:
        setting = f"fabric.injections.{one.name}"
        plugins: list[Path] = []
        interfaces: set[int] = set()
        for path in list_libraries_here(one.sources):
            if NEVER.fullmatch(path.name):
                return (
                    f"{setting}: {path} belongs to the node's C library, and no program of the "
                    "image would start with it: name the libraries of the fabric one by one in "
                    "site.yaml"
                )
            wants = read_wants(path)
            if wants is None:
                continue
            if wants.machine != MACHINES.get(platform, wants.machine):
                return f"{setting}: {path} is for another processor than {platform}"
            if wants.interfaces:
                plugins.append(path)
                interfaces |= wants.interfaces

            if not wants.glibc:
                continue
            if image_glibc is None:
                image_glibc = read_glibc(image)
            if image_glibc and parse_version(wants.glibc) > parse_version(image_glibc):
                return (
                    f"{setting}: {path} wants glibc {wants.glibc}, and the image has "
                    f"{image_glibc}: it cannot be loaded there. Take a newer version of the stack, "
                    "or let the site bring one that was built for an older system"
                )
        # A folder may hold an older plugin beside the one that is loaded, so it is enough if one
        # of them fits.
        if plugins and loadable and not interfaces & loadable:
            return (
                f"{setting}: {plugins[0]} is a plugin with {_symbols(interfaces)}, and the image's "
                f"NCCL {nccl} loads {_symbols(loadable)}: it would go on over sockets. Let the "
                "site bring a plugin that was built for this NCCL, and limit it to these images "
                "with `cuda`"
            )
    return ""


def find_nccl(artifact: Artifact) -> str:
    """Return the version of the NCCL that torch loads in the image of ARTIFACT.

    It is that of a Python package that brings one, else what the base image says; empty where
    neither does.
    """
    of_pip = [text for name, text in artifact.pip.items() if NCCL_OF_PIP.fullmatch(name)]
    return next(iter(of_pip), artifact.environment.get("NCCL_VERSION", ""))


def _symbols(interfaces: Iterable[int]) -> str:
    return ", ".join(f"ncclNetPlugin_v{number}" for number in sorted(interfaces))


def describe_not_here(brought: Sequence[Brought]) -> list[str]:
    """Return what is BROUGHT from nodes and does not exist on this machine, so is not looked at."""
    return [source for one in brought for source in one.sources if not Path(source).exists()]


def list_libraries_here(sources: Sequence[str]) -> Iterator[Path]:
    """Yield the library files among SOURCES, and those in folders among them that exist here."""
    for path in map(Path, sources):
        if is_library(str(path)):
            yield path
            continue
        try:
            found = sorted(one for one in path.iterdir() if is_library(one.name))
        except OSError:  # a configuration file, or a folder that only nodes have
            continue
        yield from found[:MOST_LIBRARIES]


def read_wants(path: Path) -> Wants | None:
    """Return what the library at PATH needs.

    None where it cannot be read, or is no ELF file: some are scripts for the linker.
    """
    from elftools.common.exceptions import ELFError

    try:
        with path.open("rb") as file:
            return _read_elf(file)
    except (OSError, ELFError):
        return None


def _read_elf(file: BinaryIO) -> Wants:
    """Return what the library in FILE needs. Raise ELFError where it is no ELF file."""
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
    newest = max(versions, key=parse_version, default="")
    return Wants(elf["e_machine"], newest, _read_interfaces(elf))


def _read_interfaces(elf: ELFFile) -> frozenset[int]:
    """Return the N of each ncclNetPlugin_vN that ELF defines itself."""
    from elftools.elf.sections import SymbolTableSection

    symbols = elf.get_section_by_name(".dynsym")
    if not isinstance(symbols, SymbolTableSection):
        return frozenset()
    own = (symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF")
    return frozenset(int(match[1]) for match in map(INTERFACE.fullmatch, own) if match)


def read_glibc(image: Path) -> str:
    """Return the version of glibc in IMAGE, e.g. `2.39`; empty where none is found."""
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
