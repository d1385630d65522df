"""List the packages of an image, and say what of them could not be listed.

An image lists its own packages where its programs can: what dpkg, rpm, conda and the python3 on its
PATH say is in /opt/hpcstack/packages, and in asked.txt which of them have listed or failed
(images/lib.sh). What they do not say is read here from the image's files, without running anything
of it: a database of dpkg or apk, that of rpm by this machine's rpm, and the METADATA of all
Pythons. What can be had in neither way is `unlisted`, a line each.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from hpcstack.core.errors import BuildError, format_count
from hpcstack.core.untrusted import UNSAFE
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR, FILE
from hpcstack.squashfs.lookup import find_inode, read_content, stream_content
from hpcstack.squashfs.read import Squashfs
from hpcstack.store.python_metadata import read_python_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.process import Runner
    from hpcstack.squashfs.inode import Inode

LISTS = "/opt/hpcstack/packages"
DPKG = "/var/lib/dpkg"
RPM = ("/usr/lib/sysimage/rpm", "/var/lib/rpm")  # Fedora's and SUSE's place, and the older one
APK = ("/lib/apk/db/installed", "/usr/lib/apk/db/installed")
RPM_FORMAT = "%{NAME}=%{EVR}\\n"
RPM_S = 120  # that this machine's rpm may take
# The files of rpm's databases: sqlite, ndb and Berkeley.
RPM_FILES = (
    b"rpmdb.sqlite", b"rpmdb.sqlite-wal", b"rpmdb.sqlite-shm", b"Packages.db", b"Index.db", b"Packages",
)  # fmt: skip
MAX_FILE = 64 << 20  # bytes of a database of dpkg's or apk's
MAX_RPM = 512 << 20  # bytes of rpm's database
LONGEST_NAME = 200  # characters of a Python package's name, and of its version
MAX_ELSEWHERE = 8 << 20  # characters that are written down of Python packages elsewhere
LONGEST_UNLISTED = 400  # characters of a line
MOST_UNLISTED = 100  # lines
INSTALLED = ("install ok installed", "hold ok installed")  # dpkg's words for it


@dataclass
class PackageLists:
    """The packages of an image: {name: version}."""

    apt: dict[str, str] = field(default_factory=dict)
    pip: dict[str, str] = field(default_factory=dict)  # of the python3 on its PATH
    conda: dict[str, str] = field(default_factory=dict)  # {name: VERSION=BUILD}
    other: dict[str, str] = field(default_factory=dict)  # of rpm and apk
    # {folder: {name: version}} of Python packages that are not in `pip`
    elsewhere: dict[str, dict[str, str]] = field(default_factory=dict)
    unlisted: list[str] = field(default_factory=list)


class InstalledDeb(NamedTuple):
    """A package of dpkg's, and the source that it was built from."""

    version: str
    source: str
    source_version: str


def read_package_lists(image: Path, runner: Runner) -> PackageLists:
    """Return the packages of IMAGE, a squashfs. Raise BuildError where it cannot be read at all."""
    try:
        with Squashfs(image) as opened:
            return _Look(opened, runner).list_all()
    except (Unreadable, OSError) as error:
        raise BuildError(
            f"the packages of the image cannot be read: {error}", f"is {image} damaged?"
        ) from None


def bound_lines(lines: list[str]) -> list[str]:
    """Return LINES on what could not be listed, fit for an image's record, each once.

    They name folders of a base, which may be called anything. Of many, the first are kept, and how
    many more there are is said.
    """
    clean = (UNSAFE.sub("?", line)[:LONGEST_UNLISTED] for line in lines if line)
    fit = list(dict.fromkeys(clean))
    more = len(fit) - MOST_UNLISTED
    if more > 0:
        return [*fit[:MOST_UNLISTED], f"and {more} more"]
    return fit


def parse_versions(text: str, sign: str) -> dict[str, str]:
    """Return {name: version} of TEXT, which has a NAME SIGN VERSION a line."""
    pairs = (UNSAFE.sub("?", line).partition(sign) for line in text.split("\n") if sign in line)
    return {name: version for name, _, version in pairs}


def parse_dpkg_status(text: str, *, has_status: bool = True) -> tuple[dict[str, InstalledDeb], int]:
    """Return ({package: what is installed of it}, how many stanzas are torn) of dpkg's status file.

    Without HAS_STATUS, a package counts as installed because it is there.
    https://man7.org/linux/man-pages/man5/deb-control.5.html, `Source`
    """
    out: dict[str, InstalledDeb] = {}
    torn = 0
    for stanza in filter(str.strip, text.split("\n\n")):
        found = re.findall(r"^(Package|Status|Version|Source): *(\S.*)$", stanza, re.MULTILINE)
        said: dict[str, str] = dict(found)
        name, version = said.get("Package"), said.get("Version")
        if has_status and name and said.get("Status", INSTALLED[0]) not in INSTALLED:
            continue  # its configuration alone may be left

        source = re.fullmatch(r"(\S+)(?: \((\S+)\))?\s*", said.get("Source", name or ""))
        is_whole = "Status" in said or not has_status
        if not name or not version or not source or not is_whole:
            torn += 1
            continue
        out[name] = InstalledDeb(version, source[1], source[2] or version)
    return out, torn


class _Look:
    """One look at the packages of an open IMAGE. `unlisted` is what could not be listed so far."""

    def __init__(self, image: Squashfs, runner: Runner) -> None:
        self.image, self.runner = image, runner
        self.unlisted: list[str] = []
        # {program of the image: `listed` or `failed`}; one that it does not have is not named
        self.asked = dict(
            line.split(" ", 1) for line in self._list_of("asked").split("\n") if " " in line
        )

    def list_all(self) -> PackageLists:
        """Return all packages of the image, and what could not be listed."""
        apt = self._list_dpkg()
        pip = self._list_python()
        conda = parse_versions(self._list_of("conda"), "=")
        other = {**self._list_rpm(), **self._list_apk()}
        elsewhere = self._list_other_pythons(pip)
        return PackageLists(apt, pip, conda, other, elsewhere, bound_lines(self.unlisted))

    def _list_of(self, name: str) -> str:
        """Return a list that the image wrote down itself; empty where it has none."""
        return self._read(f"{LISTS}/{name}.txt") or ""

    def _read(self, path: str) -> str | None:
        """Return the text of PATH; None where it is not there, no file, or cannot be read."""
        found = find_inode(self.image, path)
        if found is None:
            return None
        try:
            return read_content(self.image, found, MAX_FILE).decode("utf-8", "replace")
        except Unreadable:
            return None

    # -- dpkg

    def _list_dpkg(self) -> dict[str, str]:
        """Return what the image's dpkg has listed, else what its database says."""
        listed = parse_versions(self._list_of("apt"), "=")
        if listed or self.asked.get("dpkg-query") == "listed":
            return listed
        if self.asked.get("dpkg-query") == "failed":
            self.unlisted.append(
                f"dpkg-query: it fails in the image; its packages are those of {DPKG}/status"
            )
        out: dict[str, str] = {}
        if find_inode(self.image, f"{DPKG}/status"):
            out |= self._read_dpkg(f"{DPKG}/status", has_status=True)

        # Images without a shell keep a file a package:
        # https://github.com/GoogleContainerTools/distroless
        folder = find_inode(self.image, f"{DPKG}/status.d")
        if folder and folder.kind == DIR:
            for name in sorted(self.image.listing(folder)):
                if not name.endswith(b".md5sums"):
                    path = f"{DPKG}/status.d/{os.fsdecode(name)}"
                    out |= self._read_dpkg(path, has_status=False)
        return out

    def _read_dpkg(self, path: str, *, has_status: bool) -> dict[str, str]:
        """Return the packages of the file PATH of dpkg's."""
        text = self._read(path)
        if text is None:
            self.unlisted.append(f"{path}: packages of dpkg, which cannot be read")
            return {}
        found, torn = parse_dpkg_status(text, has_status=has_status)
        if torn:
            count = format_count(torn, "package")
            self.unlisted.append(f"{path}: {count} of dpkg, of which it does not say what they are")
        return {UNSAFE.sub("?", name): UNSAFE.sub("?", one.version) for name, one in found.items()}

    # -- rpm and apk

    def _list_rpm(self) -> dict[str, str]:
        """Return what the image's rpm has listed, else what this machine's says of its database."""
        listed = parse_versions(self._list_of("rpm"), "=")
        if listed or self.asked.get("rpm") == "listed":
            return listed
        for place in RPM:
            folder = find_inode(self.image, place)
            if folder is None or folder.kind != DIR or not self.image.listing(folder):
                continue
            try:
                return self._ask_rpm(folder)
            except (Unreadable, OSError, ValueError) as error:
                self.unlisted.append(f"{place}: the packages of rpm cannot be listed: {error}")
                break  # the other place may be a link to this one
        return {}

    def _ask_rpm(self, folder: Inode) -> dict[str, str]:
        """Return what this machine's rpm says of the database in FOLDER of the image.

        Raise ValueError where there is none, where it fails, and where it lists nothing.
        """
        if not self.runner.has("rpm"):
            raise ValueError(
                "no rpm of the image lists them, and this machine has none (install rpm)"
            )
        with TemporaryDirectory(prefix="hpcstack-rpm-") as name:
            self._copy_database(folder, Path(name))
            argv = ["rpm", "--dbpath", name, "--query", "--all", "--queryformat", RPM_FORMAT]
            env = {**os.environ, "HOME": name, "LC_ALL": "C"}
            done = self.runner.output(argv, env=env, timeout=RPM_S)
        if done.status:
            said = done.tail[-1] if done.tail else f"exit {done.status}"
            raise ValueError(f"rpm says: {said.replace(name, 'its folder')}")
        listed = parse_versions(done.stdout, "=")
        if not listed:
            raise ValueError("rpm finds no package in its database")
        return listed

    def _copy_database(self, folder: Inode, to: Path) -> None:
        """Write rpm's database in FOLDER of the image into the folder TO.

        Raise ValueError where it is larger than any can be.
        """
        left = MAX_RPM
        for name, entry in self.image.listing(folder).items():
            file = self.image.inode(entry.reference)
            if name not in RPM_FILES or file.kind != FILE:
                continue
            left -= file.size
            if left < 0:
                raise ValueError(f"its database is larger than {MAX_RPM >> 20} MiB")
            with (to / name.decode()).open("wb") as copy:
                copy.writelines(stream_content(self.image, file))

    def _list_apk(self) -> dict[str, str]:
        """Return the packages of apk: https://wiki.alpinelinux.org/wiki/Apk_spec, `installed`."""
        place = next((one for one in APK if find_inode(self.image, one)), "")
        if not place:
            return {}
        text = self._read(place)
        if text is None:
            self.unlisted.append(f"{place}: the packages of apk, which cannot be read")
            return {}

        out: dict[str, str] = {}
        torn = 0
        for stanza in filter(str.strip, text.split("\n\n")):
            said = dict(line.split(":", 1) for line in stanza.split("\n") if line[1:2] == ":")
            if "P" in said and "V" in said:
                out[UNSAFE.sub("?", said["P"])] = UNSAFE.sub("?", said["V"])
            else:
                torn += 1
        if torn:
            count = format_count(torn, "package")
            self.unlisted.append(f"{place}: {count} of apk, of which it does not say what they are")
        return out

    # -- Python

    def _list_python(self) -> dict[str, str]:
        """Return what the image's python3 has listed: those packages that it sees."""
        self.unlisted += self._list_of("unlisted").split("\n")
        if self.asked.get("python3") == "failed":
            self.unlisted.append(
                "python3: it fails in the image; which Python packages it sees is not known"
            )
        return parse_versions(self._list_of("pip"), "==")

    def _list_other_pythons(self, known: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Return {folder: {name: version}} of the Python packages that are not KNOWN.

        They are those of virtual environments, of conda and of other Pythons, and copies that a
        package brings along.
        """
        from packaging.utils import canonicalize_name

        try:
            metadata = read_python_metadata(self.image)
        except Unreadable as error:
            self.unlisted.append(f"Python packages: the image cannot be walked through: {error}")
            return {}

        self.unlisted += metadata.unread
        versions = {canonicalize_name(name): version for name, version in known.items()}
        out: dict[str, dict[str, str]] = {}
        left = MAX_ELSEWHERE
        for one in metadata.packages:
            name, version = (
                UNSAFE.sub("?", one.fields.get(key) or "") for key in ("Name", "Version")
            )
            if not name or not version or max(len(name), len(version)) > LONGEST_NAME:
                self.unlisted.append(f"{one.path}: it names no package")
                continue
            if versions.get(canonicalize_name(name)) == version:
                continue
            left -= len(one.folder) + len(name) + len(version)
            if left < 0:
                self.unlisted.append("Python packages: there are more than are written down")
                break
            out.setdefault(one.folder, {})[name] = version
        return out
