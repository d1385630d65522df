"""List the packages of an image, and say what of them could not be listed.

An image lists its own packages where its programs can: what dpkg, rpm, conda and the python3 on its
PATH say is in /opt/hpcstack/packages, and which of them have failed (images/lib.sh). What they do
not say is read here from the image's files, without running anything of it: a database of dpkg or
apk, that of rpm by this machine's rpm, and the METADATA of all Pythons. What can be had in neither
way is `unlisted`, a line each.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from hpcstack.core.errors import BuildError
from hpcstack.core.untrusted import UNSAFE
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR, FILE
from hpcstack.squashfs.lookup import find_inode, read_content
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.walk import walk_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.core.process import Runner
    from hpcstack.squashfs.inode import Inode

LISTS = "/opt/hpcstack/packages"
DPKG = "/var/lib/dpkg"
RPM = ("/usr/lib/sysimage/rpm", "/var/lib/rpm")  # Fedora's and SUSE's place, and the older one
APK = ("/lib/apk/db/installed", "/usr/lib/apk/db/installed")
RPM_FORMAT = "%{NAME}=%{EVR}\\n"
RPM_S = 120  # that this machine's rpm may take
MAX_FILE = 64 << 20  # bytes of a database of dpkg's or apk's
MAX_RPM = 512 << 20  # bytes of a file of rpm's database
MAX_METADATA = 4 << 20  # bytes; some have a readme in them
MOST_FILES = 20_000  # of METADATA in one image
METADATA = re.compile(
    rb"(?:.*/)?[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info|egg/EGG-INFO/PKG-INFO)"
)
ENDS = (b"/METADATA", b"/PKG-INFO", b".egg-info")
IF_FAILED = {  # what is known where a program of the image fails
    "dpkg-query": f"it fails in the image; its packages are those of {DPKG}/status",
    "python3": "it fails in the image; which Python packages it sees is not known",
}
LONGEST_UNLISTED = 400  # characters of such a line
MOST_UNLISTED = 100  # lines on what of an image's packages could not be listed


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


class PythonMetadata(NamedTuple):
    """A METADATA file of a Python package; TEXT is None where it cannot be read."""

    folder: str  # in which the package lies
    path: str
    text: str | None


def read_package_lists(image: Path, runner: Runner) -> PackageLists:
    """Return the packages of IMAGE, a squashfs.

    Raise BuildError where it cannot be read at all.
    """
    out = PackageLists()
    try:
        with Squashfs(image) as opened:
            out.apt = _list_dpkg(opened, out.unlisted)
            out.pip = parse_versions(_read_list(opened, "pip"), "==")
            out.conda = parse_versions(_read_list(opened, "conda"), "=")
            out.other = _list_rpm(opened, out.unlisted, runner) | _list_apk(opened, out.unlisted)
            out.unlisted += _read_list(opened, "unlisted").split("\n")
            out.unlisted += _list_failures(opened)
            out.elsewhere = _list_other_pythons(opened, out.pip, out.unlisted)
    except (Unreadable, OSError) as error:
        raise BuildError(
            f"the packages of the image cannot be read: {error}", f"is {image} damaged?"
        ) from None
    out.unlisted = bound_lines(out.unlisted)
    return out


def bound_lines(lines: list[str]) -> list[str]:
    """Return LINES on what could not be listed, fit for an image's record.

    They name folders of a base, which may be called anything. Of many, the first are kept, and how
    many more there are is said.
    """
    fit = [UNSAFE.sub("?", line)[:LONGEST_UNLISTED] for line in lines if line]
    more = len(fit) - MOST_UNLISTED
    if more > 0:
        return [*fit[:MOST_UNLISTED], f"and {more} more"]
    return fit


def parse_versions(text: str, sign: str) -> dict[str, str]:
    """Return {name: version} of TEXT, which has a NAME SIGN VERSION a line."""
    pairs = (UNSAFE.sub("?", line).partition(sign) for line in text.split("\n") if sign in line)
    return {name: version for name, _, version in pairs}


def _list_failures(image: Squashfs) -> list[str]:
    """Return a line for each program of the image that did not list what is installed.

    Of rpm nothing is said here: this machine's does the same.
    """
    failed = _read_list(image, "failed").split("\n")
    return [f"{name}: {said}" for name, said in IF_FAILED.items() if name in failed]


def _read_list(image: Squashfs, name: str) -> str:
    """Return a list that the image wrote down itself; empty where it has none."""
    return _read_optional(image, f"{LISTS}/{name}.txt") or ""


def _read_optional(image: Squashfs, path: str) -> str | None:
    """Return the text of PATH; None where it is not there, no file, or cannot be read."""
    found = find_inode(image, path)
    if found is None:
        return None
    return _read_text(image, found, MAX_FILE)


def _read_text(image: Squashfs, file: Inode, limit: int) -> str | None:
    try:
        return read_content(image, file, limit).decode("utf-8", "replace")
    except Unreadable:
        return None


# -- dpkg


def _list_dpkg(image: Squashfs, unlisted: list[str]) -> dict[str, str]:
    """Return what the image's dpkg has listed, else what its database says."""
    listed = parse_versions(_read_list(image, "apt"), "=")
    if listed:
        return listed

    out: dict[str, str] = {}
    if find_inode(image, f"{DPKG}/status"):
        status = _read_optional(image, f"{DPKG}/status")
        if status is None:
            unlisted.append(f"{DPKG}/status: the packages of dpkg, which cannot be read")
        else:
            out = {name: one.version for name, one in parse_dpkg_status(status).items()}
            if status.strip() and not out:
                unlisted.append(f"{DPKG}/status: no package of dpkg can be told from it")

    # Images without a shell keep a file a package: https://github.com/GoogleContainerTools/distroless
    folder = find_inode(image, f"{DPKG}/status.d")
    if folder and folder.kind == DIR:
        for name in sorted(image.listing(folder)):
            if name.endswith(b".md5sums"):
                continue
            path = f"{DPKG}/status.d/{os.fsdecode(name)}"
            found = parse_dpkg_status(_read_optional(image, path) or "", has_status=False)
            out |= {name: one.version for name, one in found.items()}
            if not found:
                unlisted.append(f"{path}: a package of dpkg, which cannot be read")
    return out


def parse_dpkg_status(text: str, *, has_status: bool = True) -> dict[str, InstalledDeb]:
    """Return {package: what is installed of it} of TEXT, dpkg's status file.

    Without HAS_STATUS, a package counts as installed because it is there.
    https://man7.org/linux/man-pages/man5/deb-control.5.html, `Source`
    """
    out = {}
    for stanza in text.split("\n\n"):
        found = re.findall(r"^(Package|Status|Version|Source): *(\S.*)$", stanza, re.MULTILINE)
        fields: dict[str, str] = dict(found)
        name, version = fields.get("Package"), fields.get("Version")
        is_installed = fields.get("Status") in ("install ok installed", "hold ok installed")
        if not name or not version or (has_status and not is_installed):
            continue  # its configuration alone may be left
        match = re.fullmatch(r"(\S+)(?: \((\S+)\))?\s*", fields.get("Source", name))
        if match:
            out[name] = InstalledDeb(version, match[1], match[2] or version)
    return out


# -- rpm and apk


def _list_rpm(image: Squashfs, unlisted: list[str], runner: Runner) -> dict[str, str]:
    """Return what the image's rpm has listed, else what this machine's says of its database."""
    listed = parse_versions(_read_list(image, "rpm"), "=")
    if listed:
        return listed
    for place in RPM:
        folder = find_inode(image, place)
        if folder is None or folder.kind != DIR or not image.listing(folder):
            continue
        if not runner.has("rpm"):
            unlisted.append(
                f"{place}: the packages of rpm: the image's own rpm does not list them, and this "
                "machine has none (install rpm)"
            )
            break
        try:
            return _ask_rpm(image, folder, runner)
        except (Unreadable, OSError, ValueError) as error:
            unlisted.append(f"{place}: the packages of rpm, which cannot be listed: {error}")
            break
    return {}


def _ask_rpm(image: Squashfs, folder: Inode, runner: Runner) -> dict[str, str]:
    """Return what this machine's rpm says of the database in FOLDER of the image.

    Raise ValueError where it fails, or lists nothing.
    """
    with TemporaryDirectory(prefix="hpcstack-rpm-") as name:
        for entry_name, entry in image.listing(folder).items():
            file = image.inode(entry.reference)
            if file.kind == FILE:
                data = read_content(image, file, MAX_RPM)
                Path(name, os.fsdecode(entry_name)).write_bytes(data)
        argv = ["rpm", "--dbpath", name, "--query", "--all", "--queryformat", RPM_FORMAT]
        done = runner.output(argv, env={**os.environ, "HOME": name, "LC_ALL": "C"}, timeout=RPM_S)
    if done.status:
        said = done.tail[-1] if done.tail else f"exit {done.status}"
        raise ValueError(f"rpm says: {said.replace(name, 'its folder')}")
    listed = parse_versions(done.stdout, "=")
    if not listed:
        raise ValueError("rpm finds no package in it")
    return listed


def _list_apk(image: Squashfs, unlisted: list[str]) -> dict[str, str]:
    """Return the packages of apk: https://wiki.alpinelinux.org/wiki/Apk_spec, `installed`."""
    out: dict[str, str] = {}
    for place in APK:
        if find_inode(image, place) is None:
            continue
        text = _read_optional(image, place)
        if text is None:
            unlisted.append(f"{place}: the packages of apk, which cannot be read")
            break
        for stanza in text.split("\n\n"):
            said = dict(line.split(":", 1) for line in stanza.split("\n") if line[1:2] == ":")
            if "P" in said and "V" in said:
                out[UNSAFE.sub("?", said["P"])] = UNSAFE.sub("?", said["V"])
        if text.strip() and not out:
            unlisted.append(f"{place}: no package of apk can be told from it")
        break  # the other place may be a link to this one
    return out


# -- Python


def _list_other_pythons(
    image: Squashfs, known: Mapping[str, str], unlisted: list[str]
) -> dict[str, dict[str, str]]:
    """Return {folder: {name: version}} of the Python packages that are not KNOWN.

    They are those of virtual environments, of conda and of other Pythons, and copies that a package
    brings along.
    """
    from packaging.utils import canonicalize_name

    versions = {canonicalize_name(name): version for name, version in known.items()}
    out: dict[str, dict[str, str]] = {}
    for one in read_python_metadata(image):
        if one.text is None:
            unlisted.append(f"{one.path}: it cannot be read")
            continue
        fields = HeaderParser().parsestr(one.text.partition("\n\n")[0])
        name, version = (UNSAFE.sub("?", fields.get(key) or "") for key in ("Name", "Version"))
        if not name or not version:
            # of a package that is known, too: pip's list has it by its folder's name
            unlisted.append(f"{one.path}: it names no package")
        elif versions.get(canonicalize_name(name)) != version:
            out.setdefault(one.folder, {})[name] = version
    return out


def read_python_metadata(image: Squashfs) -> Iterator[PythonMetadata]:
    """Yield each METADATA of a Python package in IMAGE once, whatever its names.

    The last one says so where there are more than MOST_FILES: its path is empty, and its text None.
    """
    read: set[int] = set()  # numbers of files
    for path in walk_paths(image):
        if not path.endswith(ENDS) or not METADATA.fullmatch(path):
            continue
        found = image.find(path)
        if found is None or found.kind == DIR or found.number in read:
            continue
        if len(read) >= MOST_FILES:
            yield PythonMetadata("", f"more than {MOST_FILES} files of Python's METADATA", None)
            return
        read.add(found.number)
        text = UNSAFE.sub("?", os.fsdecode(path).encode("utf-8", "replace").decode())
        folder = text.rpartition(".")[0] if text.endswith(".egg-info") else text
        parts = folder.split("/")
        depth = 1 if text.endswith(".egg-info") else 3 if "/EGG-INFO/" in text else 2
        where = "/" + "/".join(parts[:-depth])
        target = find_inode(image, os.fsdecode(path)) or found
        yield PythonMetadata(where, f"/{text}", _read_text(image, target, MAX_METADATA))
