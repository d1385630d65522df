"""The licences of an image's packages, as the packages themselves state them.

Python's are in the METADATA of each distribution: `License-Expression` of PEP 639, else the field
`License` where it is a name and no text, else the classifiers. Debian's are in the copyright files
that follow https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/; of others nothing is
said, as nobody could read them without guessing.
"""

from __future__ import annotations

import re
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.lookup import find_inode, read_content
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.walk import walk_paths

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hpcstack.store.artifact import Artifact

MAX_METADATA = 4 << 20  # bytes; some have a readme in them
METADATA = re.compile(rb"(?:.*/)?[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO)")
CLASSIFIER = "License :: "
LONGEST_NAME = 100  # letters; what is longer is a licence's text
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


def _read_python(image: Squashfs, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    wanted = {_canonical(name): name for name in names}
    out = {}
    for path in walk_paths(image) if wanted else ():
        if not METADATA.fullmatch(path):
            continue
        text = _read_text(image, path.decode("utf-8", "surrogateescape"))
        fields = HeaderParser().parsestr(text.partition("\n\n")[0])
        name = wanted.get(_canonical(fields.get("Name", "")))
        found = parse_python_licences(text)
        if name and found:
            out[f"pypi:{name}"] = found
    return out


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_python_licences(metadata: str) -> tuple[str, ...]:
    """Return the licences that METADATA of a Python distribution states."""
    fields = HeaderParser().parsestr(metadata.partition("\n\n")[0])
    expression = fields.get("License-Expression", "").strip()
    if expression:
        return (expression,)
    stated = fields.get("License", "").strip()
    is_a_name = bool(stated) and "\n" not in stated and len(stated) <= LONGEST_NAME
    if is_a_name and stated.upper() != "UNKNOWN":
        return (stated,)
    classifiers = fields.get_all("Classifier") or []
    names = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith(CLASSIFIER)]
    return tuple(dict.fromkeys(one for one in names if one != "OSI Approved"))


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
    return tuple(sorted({" ".join(name.split()) for name in SHORT_NAME.findall(text)}))


def _read_text(image: Squashfs, path: str) -> str:
    """Return the text of PATH; empty where it is not there, no file, or too large."""
    try:
        found = find_inode(image, path)
        return read_content(image, found, MAX_METADATA).decode("utf-8", "replace") if found else ""
    except Unreadable:
        return ""
