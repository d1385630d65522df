"""Read what an image that hpcstack did not build says of itself. Nothing of it is run."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hpcstack.core.characters import VARIABLE
from hpcstack.core.errors import InputError, format_count
from hpcstack.core.untrusted import UNSAFE, UNSAFE_IN_WORDS
from hpcstack.recipe.model import Base
from hpcstack.render.steps import HOME
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.lookup import find_inode, read_content
from hpcstack.squashfs.read import Squashfs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_TEXT = 4 << 20  # bytes of a file of metadata
MAX_PROGRAM = 64 << 20  # bytes of a shell
MAX_VALUES = 2000  # variables, or labels
# Where e_machine is in an ELF header, and what its values mean:
# https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html
MACHINE_OFFSET = 18
PLATFORMS = {0x3E: "linux/amd64", 0xB7: "linux/arm64"}
SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/env")
# What Apptainer sources of an image for its variables: Docker's, and a definition's %environment.
OF_DOCKER = "/.singularity.d/env/10-docker2singularity.sh"
OF_DEFINITION = "/.singularity.d/env/90-environment.sh"
OWN_LINE = f". {HOME}/compat.sh"  # which hpcstack writes there, and writes again
BASE_LABEL = "org.opencontainers.image.base.name"  # OCI image-spec, annotations.md
# Enroot writes an image's labels as comments before its /etc/rc (NVIDIA/enroot src/docker.sh,
# docker::configure).
# Use with fullmatch. A label's name has a dot in it, which other comments have not.
LABEL = re.compile(r"# ([A-Za-z0-9][A-Za-z0-9._/-]{0,200}) (.{1,4000})")
EXPORT = re.compile(r'export ([A-Za-z_][A-Za-z0-9_]*)="(.*)"')
# As hpcstack's import writes it.
PROVENANCE = re.compile(r"^# enroot-provenance: (?:docker://)?(\S+)$", re.MULTILINE)
# How an /etc/rc, as Enroot writes it, goes to the working directory and starts the command.
WORKDIR = re.compile(r"^cd (.+?) && unset OLDPWD \|\| exit 1$", re.MULTILINE)
START = re.compile(
    r'^if \[ \$# -gt 0 \]; then\n    exec (?P<entrypoint>.*?) ?"\$@"\n'
    r"else\n    exec (?P<whole>.*)\nfi\n?\Z",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Survey:
    """What an image says of itself.

    BASE is the image that it was made from, BASE_SAID_BY what says so; both are empty where nothing
    does. UNKNOWN is what could not be known, a sentence each. FILES are those of the programs asked
    for that the image has.
    """

    platform: str
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    workdir: str = ""
    base: str = ""
    base_said_by: str = ""
    unknown: tuple[str, ...] = ()
    files: frozenset[str] = field(default_factory=frozenset)


def survey_image(path: Path, programs: tuple[str, ...] = ()) -> Survey:
    """Return what the squashfs PATH says of itself, and which of PROGRAMS are on its own PATH.

    Raise InputError where it is no squashfs, or of a platform that is not supported.
    """
    try:
        with Squashfs(path) as image:
            return _survey_open(image, programs)
    except (Unreadable, OSError) as error:
        raise InputError(
            f"{path} cannot be read as an image: {error}",
            "name a squashfs, as enroot export makes one",
            page="adopt-an-image",
        ) from None


def _survey_open(image: Squashfs, programs: tuple[str, ...]) -> Survey:
    """Return the survey of an open IMAGE.

    The sentences on what is unknown go into the lock.
    """
    unknown = []
    rc = _read_text(image, "/etc/rc")
    started = read_rc(rc)
    environment = read_environment(_read_text(image, "/etc/environment"))
    scripts = [OF_DEFINITION]
    if started is None:
        # No image of Enroot's: there /etc/environment is the distribution's own, for logins.
        environment = {name: value.strip("\"'") for name, value in environment.items()}
        scripts.insert(0, OF_DOCKER)
    exported = Exports()
    for script in scripts:
        found = read_exports(_read_text(image, script))
        exported.values.update(found.values)
        exported.computed += found.computed
        if found.others:
            lines = format_count(found.others, "line")
            unknown.append(f"what {script} does beside exporting values: {lines}")
    if started is None and exported.values:
        environment = {}  # Apptainer's scripts say what it was made for
    environment = {**environment, **exported.values}
    computed = [name for name in exported.computed if name not in environment]
    if computed:
        names = ", ".join(computed)
        unknown.append(f"the variables {names}: a script computes their values")
    if not environment:
        unknown.append("its variables: it has no /etc/environment, where Enroot keeps them")

    labels = {**_read_apptainer_labels(image), **read_labels(rc)}
    if started is None:
        unknown.append(
            "its entrypoint and working directory: its /etc/rc is not as Enroot writes one"
        )

    base, said_by = find_base(labels, environment, rc)
    if not base:
        unknown.append("which image it was made from")
    unknown.append("how it was made: which packages were added, from where, and by which steps")

    folders = [folder for folder in environment.get("PATH", "").split(":") if folder]
    present = set()
    for name in programs:
        if any(_is_program(image, f"{folder}/{name}") for folder in folders):
            present.add(name)

    entrypoint, command, workdir = started or ((), (), "")
    return Survey(
        platform=_find_platform(image),
        environment=environment,
        labels=labels,
        entrypoint=entrypoint,
        command=command,
        workdir=workdir,
        base=base,
        base_said_by=said_by,
        unknown=tuple(unknown),
        files=frozenset(present),
    )


def _read_bytes(image: Squashfs, path: str, limit: int) -> bytes:
    """Return what the file PATH of IMAGE holds; empty for no file, or one larger than LIMIT."""
    try:
        found = find_inode(image, path)
        return read_content(image, found, limit) if found else b""
    except Unreadable:
        return b""


def _read_text(image: Squashfs, path: str) -> str:
    """Return the same as text, of a file of metadata."""
    return _read_bytes(image, path, MAX_TEXT).decode("utf-8", "replace")


def _is_program(image: Squashfs, path: str) -> bool:
    """Return whether the file PATH of IMAGE may be executed."""
    found = find_inode(image, path)
    return bool(found and found.mode & 0o111)


def _find_platform(image: Squashfs) -> str:
    """Return the platform of the image's shell. Raise InputError for one that is not supported."""
    for shell in SHELLS:
        header = _read_bytes(image, shell, MAX_PROGRAM)[: MACHINE_OFFSET + 2]
        if header.startswith(b"\x7fELF") and len(header) == MACHINE_OFFSET + 2:
            machine = int.from_bytes(header[MACHINE_OFFSET:], "little")
            if machine in PLATFORMS:
                return PLATFORMS[machine]
            raise InputError(
                f"the image is for a processor that is not supported (ELF machine {machine})",
                f"known: {', '.join(PLATFORMS.values())}",
                page="adopt-an-image",
            )
    raise InputError(
        "the image has no /bin/sh, so nothing says for which processor it is",
        "is it an image of a Linux?",
    )


def read_environment(text: str) -> dict[str, str]:
    """Return the variables of an /etc/environment as Enroot writes it.

    Each is a line NAME=VALUE without quotes. Lines of another form are left out.
    """
    found = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and VARIABLE.fullmatch(name) and not UNSAFE.search(value):
            found[name] = value
    return dict(list(found.items())[:MAX_VALUES])


@dataclass
class Exports:
    """What a script of Apptainer's sets: values, names whose values it computes, other lines."""

    values: dict[str, str] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)
    others: int = 0


def read_exports(text: str) -> Exports:
    """Return the variables that TEXT, a script of Apptainer's for an image, exports.

    Apptainer itself writes `export NAME="${NAME:-"VALUE"}"`, and people write
    `export NAME=VALUE` in a definition's %environment. Any other line is counted.
    """
    out = Exports()
    for line in text.splitlines()[:MAX_VALUES]:
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or stripped == OWN_LINE:
            continue
        match = EXPORT.fullmatch(stripped)
        if match and match[2].startswith(f"${{{match[1]}:-"):
            value = match[2].removeprefix(f"${{{match[1]}:-").removesuffix("}")
            pairs = [(match[1], value.removeprefix('"').removesuffix('"'))]
        else:
            pairs = _split_export(stripped)
        if not pairs:
            out.others += 1
        for name, value in pairs:
            if UNSAFE.search(value) or "$" in value or "`" in value:
                out.computed.append(name)
            else:
                out.values[name] = value
    return out


def _split_export(line: str) -> list[tuple[str, str]]:
    """Return (name, value) of each assignment in LINE; none where it is no plain `export`."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    pairs = [word.partition("=") for word in words[1:]]
    is_plain = words[:1] == ["export"] and all(
        sign and VARIABLE.fullmatch(name) for name, sign, _ in pairs
    )
    return [(name, value) for name, _, value in pairs] if is_plain else []


def read_labels(rc: str) -> dict[str, str]:
    """Return the labels that Enroot left at the beginning of /etc/rc as comments."""
    found = {}
    for line in rc.splitlines():
        match = LABEL.fullmatch(line)
        if match and "." in match[1] and not UNSAFE.search(match[2]):
            found[match[1]] = match[2]
        elif not line.startswith("#"):
            break
    return dict(list(found.items())[:MAX_VALUES])


def _read_apptainer_labels(image: Squashfs) -> dict[str, str]:
    """Return the labels that Apptainer keeps in the image; empty where it has none."""
    try:
        found = json.loads(_read_text(image, "/.singularity.d/labels.json") or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    pairs = ((str(name), str(value)) for name, value in list(found.items())[:MAX_VALUES])
    return {name: value for name, value in pairs if not UNSAFE.search(name + value)}


def read_rc(rc: str) -> tuple[tuple[str, ...], tuple[str, ...], str] | None:
    """Return (entrypoint, command, working directory) of an /etc/rc; None where they are not known.

    They are known of one that Enroot or hpcstack wrote.
    """
    workdir, start = WORKDIR.search(rc), START.search(rc)
    if not workdir or not start:
        return None
    try:
        folder = shlex.split(workdir[1])
        entrypoint = shlex.split(start["entrypoint"])
        whole = shlex.split(start["whole"])
    except ValueError:
        return None

    if len(folder) != 1 or UNSAFE.search(folder[0]):
        return None
    if any(UNSAFE_IN_WORDS.search(word) for word in whole):
        return None
    if whole[: len(entrypoint)] != entrypoint:
        return None

    command = whole[len(entrypoint) :]
    if not entrypoint and command == ["/bin/sh"]:  # what is written where an image names nothing
        command = []
    return tuple(entrypoint), tuple(command), folder[0]


def find_base(
    labels: Mapping[str, str], environment: Mapping[str, str], rc: str
) -> tuple[str, str]:
    """Return (the image that an image was made from, what says so); empty texts for none."""
    named = labels.get(BASE_LABEL, "")
    if _is_base(named):
        return named, f"its label {BASE_LABEL}"
    # Derived images of NVIDIA's name another product:
    # https://docs.nvidia.com/deeplearning/frameworks/pytorch-release-notes
    release = environment.get("NVIDIA_PYTORCH_VERSION", "")
    is_pytorch = environment.get("NVIDIA_PRODUCT_NAME") == "PyTorch"
    if is_pytorch and re.fullmatch(r"[0-9]{2}\.[0-9]{2}", release):
        return (
            f"nvcr.io/nvidia/pytorch:{release}-py3",
            "its variables NVIDIA_PRODUCT_NAME and NVIDIA_PYTORCH_VERSION",
        )
    imported = PROVENANCE.search(rc)
    if imported and _is_base(imported[1]):
        return imported[1], "the line of /etc/rc that an import left"
    return "", ""


def _is_base(text: str) -> bool:
    """Return whether TEXT can be a recipe's base: REGISTRY/REPOSITORY:TAG."""
    try:
        return bool(Base.model_validate({"image": text}).tag)
    except ValidationError:
        return False
