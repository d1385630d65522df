"""The licences of an image's packages, as the packages themselves state them.

Python's are in the METADATA of each distribution: `License-Expression` of PEP 639, else the field
`License` where it is a name and no text, else the classifiers. Debian's are in the copyright files
that follow https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/; of others nothing is
said, as nobody could read them without guessing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.lookup import find_inode, read_content
from hpcstack.squashfs.read import Squashfs
from hpcstack.store.python_metadata import MAX_METADATA, read_python_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from email.message import Message
    from pathlib import Path

    from hpcstack.squashfs.inode import Inode
    from hpcstack.store.artifact import Artifact

CLASSIFIER = "License :: "
LONGEST_NAME = 100  # letters; what is longer is a licence's text
MOST_NAMES = 50  # of one package
DEP5 = re.compile(r"\AFormat:\s*https?://\S*copyright-format/1\.0/?\s*$", re.MULTILINE)
SHORT_NAME = re.compile(r"^License:[ \t]*(\S.*)$", re.MULTILINE)


def read_licences(image: Path, artifact: Artifact) -> dict[str, tuple[str, ...]]:
    """Return {`pypi:NAME` or `deb:NAME`: the licences that it states} of the packages in IMAGE.

    Names are those of ARTIFACT. A package that states none is left out, and so are all if IMAGE
    cannot be read.
    """
    out: dict[str, tuple[str, ...]] = {}
    try:
        with Squashfs(image) as opened:
            out |= _read_python(opened, artifact.pip)
            out |= _read_debian(opened, artifact.apt)
    except (Unreadable, OSError):
        return {}
    return out


def _read_python(image: Squashfs, versions: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return what the distributions of VERSIONS state, {name: version}.

    Some bring others along in a folder of their own (`_vendor`): those are not what is installed.
    """
    from packaging.utils import canonicalize_name

    wanted = {canonicalize_name(name): name for name in versions}
    out: dict[str, tuple[str, ...]] = {}
    if not wanted:
        return {}
    for one in read_python_metadata(image).packages:
        if "/_vendor" in one.folder:
            continue
        name = wanted.get(canonicalize_name(one.fields.get("Name", "")))
        if name and f"pypi:{name}" not in out and one.fields.get("Version") == versions[name]:
            stated = list_stated_licences(one.fields)
            if stated:
                out[f"pypi:{name}"] = stated
    return out


def list_stated_licences(fields: Message) -> tuple[str, ...]:
    """Return the licences that FIELDS of a Python package's METADATA state."""
    expression = fields.get("License-Expression", "").strip()
    if expression and len(expression) <= LONGEST_NAME:
        return (expression,)
    stated = fields.get("License", "").strip()
    is_a_name = bool(stated) and "\n" not in stated and len(stated) <= LONGEST_NAME
    if is_a_name and stated.upper() != "UNKNOWN":
        return (stated,)
    classifiers = fields.get_all("Classifier") or []
    names = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith(CLASSIFIER)]
    return _bound(one for one in dict.fromkeys(names) if one != "OSI Approved")


def _read_debian(image: Squashfs, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    out = {}
    for name in names:
        plain = name.partition(":")[0]
        found = parse_copyright(_read_text(image, f"usr/share/doc/{plain}/copyright"))
        if found:
            out[f"deb:{name}"] = found
    return out


def parse_copyright(text: str) -> tuple[str, ...]:
    """Return the short names of the licences in TEXT, a copyright file of Debian's, sorted.

    Empty where it does not follow Debian's form.
    """
    if not DEP5.search(text):
        return ()
    return _bound(sorted({" ".join(name.split()) for name in SHORT_NAME.findall(text)}))


def _bound(names: Iterable[str]) -> tuple[str, ...]:
    """Return the NAMES that are no longer than a name is, and not more than any package has."""
    return tuple(one for one in names if len(one) <= LONGEST_NAME)[:MOST_NAMES]


def _read_text(image: Squashfs, path: str) -> str:
    """Return the text of PATH; empty where it is not there, no file, or too large."""
    found = find_inode(image, path)
    return _read_inode(image, found) if found else ""


def _read_inode(image: Squashfs, found: Inode) -> str:
    try:
        return read_content(image, found, MAX_METADATA).decode("utf-8", "replace")
    except Unreadable:
        return ""
