"""A requirements.txt as pip reads it, with the files that it includes.

pip-requirements-parser is pip's own reader as a library: encodings, comments, lines that go on, options.
What it does not understand is refused by line. The form:
https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

from __future__ import annotations

import re
import tempfile
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_bytes
from hpcstack.requirements.allowed_files import AllowedFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGEST = 16 << 20  # bytes of one file
ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".tbz")
# Digits of the hashes that pip takes (pip/_internal/utils/hashes.py, STRONG_HASHES)
HASHES = {"sha256": 64, "sha384": 96, "sha512": 128}
# An option of pip's behind a requirement: `--hash=...`, `--config-settings ...`
LOGIN = re.compile(r"//[^/\s@]+@")  # in a URL: no message repeats it
# A hash in the URL of an archive
OF_URL = re.compile(r"[#&](md5|sha1|sha224|sha256|sha384|sha512)=([^&]*)")
OPTION = re.compile(r"(?:^|\s)-{1,2}[A-Za-z]")


@dataclass(frozen=True)
class PipLine:
    """One requirement: line NUMBER of FILE.

    `text` is the line without comment and options. `requirement` is what it says of a package by name,
    None for one that only a path or a URL names: `folder`, one of the user's own, or `url`. `hashes` are
    those of which its file must have one.
    """

    file: Path
    number: int
    text: str
    requirement: Requirement | None = None
    folder: str = ""
    url: str = ""
    hashes: frozenset[str] = frozenset()
    is_editable: bool = False
    is_constraint: bool = False

    @property
    def allowed(self) -> AllowedFiles | None:
        """What its hashes allow; None where it has none."""
        if not self.hashes:
            return None
        name = self.requirement.name if self.requirement else ""
        if self.url:  # an archive has the version that it has
            return AllowedFiles(name, self.hashes, url=self.url)
        assert self.requirement
        return AllowedFiles(name, self.hashes, versions=self.requirement.specifier)

    @property
    def without_url_hash(self) -> str:
        """The line without the hash in its URL; empty where that has none, or the line no name."""
        said = self.requirement.url if self.requirement else None
        if not self.requirement or not said or not OF_URL.search(said):
            return ""
        plain = copy(self.requirement)
        plain.url = OF_URL.sub("", said)
        return str(plain)


@dataclass(frozen=True)
class PipOption:
    """A line of options that hold for all of the file: line NUMBER of FILE, TEXT."""

    file: Path
    number: int
    text: str


@dataclass(frozen=True)
class PipFile:
    """What a requirements.txt says, with all files that were read for it.

    `remote` are lines that include a file by its URL, which was not read.
    """

    files: tuple[Path, ...]
    lines: tuple[PipLine, ...]
    options: tuple[PipOption, ...]
    remote: tuple[PipOption, ...] = ()


def read_pip_file(path: Path, below: Path | None = None) -> PipFile:
    """Return what the requirements.txt PATH says, and the files that it includes.

    A file is read once, however often it is included; what is included by URL is left to who installs.
    With BELOW, only files in that folder are read. Raise InputError for a file that cannot be read, and
    for a line that pip would not take.
    """
    files: dict[Path, Path] = {}  # by what they lead to
    lines: list[PipLine] = []
    options: list[PipOption] = []
    remote: list[PipOption] = []
    waiting = [(path, False)]
    while waiting:
        file, is_constraint = waiting.pop(0)
        target = file.resolve()
        if target in files:
            continue
        files[target] = file
        refuse_outside(file, below)
        parsed = _parse(file)
        for one in parsed.invalid_lines:
            raise _make_refusal(file, one.line_number, one.line, _shorten(one.error_message))
        lines += (_read_line(file, one, is_constraint=is_constraint) for one in parsed.requirements)
        for one in parsed.options:
            included = list(_list_included(one.options))
            waiting += [
                (file.parent / name, is_constraint or is_of_constraints)
                for name, is_of_constraints in included
                if "://" not in name
            ]
            said = PipOption(file, one.line_number, one.line)
            if not included:
                options.append(said)
            if any("://" in name for name, _ in included):
                remote.append(said)
    return PipFile(tuple(files.values()), tuple(lines), tuple(options), tuple(remote))


def read_pip_line(text: str, file: Path, number: int) -> PipLine:
    """Return the requirement TEXT, which stands in line NUMBER of FILE: an entry of conda's `pip:`.

    Raise InputError where pip would not take it as one.
    """
    parsed = _parse_bytes(text.encode(), file)
    for one in parsed.invalid_lines:
        raise _make_refusal(file, number, text, _shorten(one.error_message))
    if parsed.options or len(parsed.requirements) != 1:
        raise _make_refusal(file, number, text, f"{text!r} is an option of pip, and no package")
    (found,) = parsed.requirements
    found.requirement_line.line_number = number
    return _read_line(file, found, is_constraint=False)


def refuse_outside(path: Path, below: Path | None) -> None:
    """Raise InputError where PATH leads out of BELOW: a recipe may be somebody else's."""
    if below is not None and not path.resolve().is_relative_to(below.resolve()):
        raise InputError(
            f"{path} leads out of {below}",
            "put the file itself into the project's folder",
            page="your-own-project",
        )


def _parse(file: Path) -> Any:
    try:
        content = read_bytes(file.resolve(), LARGEST)
    except OSError as error:
        raise InputError(
            f"{file}: {error.strerror}", "correct the file", page="your-own-project"
        ) from None
    return _parse_bytes(content, file)


def _parse_bytes(content: bytes, file: Path) -> Any:
    """Return CONTENT, of FILE, as the library's RequirementsFile."""
    from pip_requirements_parser import RequirementsFile

    # The library opens a file by itself: this one cannot change meanwhile, and is no pipe.
    with tempfile.NamedTemporaryFile(prefix="hpcstack-") as lent:
        lent.write(content)
        lent.flush()
        try:
            return RequirementsFile.from_file(lent.name)
        except (UnicodeDecodeError, LookupError) as error:
            raise InputError(
                f"{file}: {error}", "save it as UTF-8", page="your-own-project"
            ) from None


def _list_included(options: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield (file, whether it is one of constraints) that OPTIONS of a line include."""
    yield from ((name, False) for name in options.get("requirements", ()))
    yield from ((name, True) for name in options.get("constraints", ()))


def _read_line(file: Path, parsed: Any, *, is_constraint: bool) -> PipLine:
    """Return the requirement that the library has PARSED. Raise InputError for what has two meanings."""
    number, line = parsed.line_number, parsed.line
    is_editable = bool(parsed.is_editable)
    begins = OPTION.search(line)
    text = line if is_editable or not begins else line[: begins.start()].strip()

    url = parsed.link.url if parsed.link else ""
    url = url.partition(" @ ")[2].strip() or url  # core @ ../core, as uv takes it
    is_archive = url.partition("#")[0].lower().endswith(ARCHIVES)
    is_remote = "://" in url and not url.startswith("file:")
    folder = url if url and not is_remote and not is_archive else ""
    if folder.startswith("file:"):
        folder = unquote(urlsplit(folder).path)
    requirement = None
    if not folder and not is_editable:
        requirement = _read_requirement(text, parsed)

    hashes = _read_hashes(file, parsed, url)
    bare_url = "" if folder else url.partition("#")[0]
    is_unnamed = requirement is None and not bare_url
    if hashes and is_unnamed:
        raise _make_refusal(file, number, line, "a folder has no hash")
    return PipLine(
        file, number, text, requirement, folder, bare_url, hashes, is_editable, is_constraint
    )


def _read_requirement(text: str, parsed: Any) -> Requirement | None:
    """Return what TEXT says of a package by name; of a bare wheel, its file's name says it."""
    try:
        return Requirement(text)
    except InvalidRequirement:
        return Requirement(f"{parsed.name} @ {text.partition(' ;')[0]}") if parsed.name else None


def _read_hashes(file: Path, parsed: Any, url: str) -> frozenset[str]:
    """Return the hashes of a line's options and of its URL, in small letters.

    Where both have some, a file must be in both. Raise InputError for a form that pip does not take,
    and for a kind of hash that nobody could check.
    """
    number, line = parsed.line_number, parsed.line
    given = {str(one).lower() for one in parsed.hash_options or ()}
    fragment = OF_URL.search(url)
    of_url = {f"{fragment[1]}:{fragment[2].lower()}"} if fragment else set()
    for one in (*given, *of_url):
        kind, _, digits = one.partition(":")
        is_whole = len(digits) == HASHES.get(kind) and re.fullmatch("[0-9a-f]+", digits)
        if not is_whole:
            raise _make_refusal(
                file, number, line, f"{one!r} is no hash that pip takes: sha256:, and its 64 digits"
            )
    if given and of_url and not given & of_url:
        raise _make_refusal(file, number, line, "its URL and --hash name two hashes")
    return frozenset(of_url or given)


def _shorten(message: str) -> str:
    """Return why a line is not taken, in one line, by the library's MESSAGE."""
    message = message.removeprefix("pip_requirements_parser: error: ")
    message = message.removeprefix("Invalid requirement: :")
    return " ".join(message.partition("\n")[0].split())


def _make_refusal(file: Path, number: int, line: str, why: str) -> InputError:
    said = LOGIN.sub("//", f"{line.strip()}: {why}")
    return InputError(
        f"{file}:{number}: {said}",
        "correct the line: hpcstack reads it as pip install -r does",
        page="your-own-project",
    )
