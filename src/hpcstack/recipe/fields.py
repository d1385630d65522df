"""The kinds of text that a recipe holds.

Each refuses what could not survive a shell, Lua or a definition file, or what a runtime would
change.

Tested in tests/unit/recipe/test_model.py.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from hpcstack.core.characters import CONTROL

# The distribution specification's grammar of a name. It has no `..`, which urllib3 would fold
# (https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests).
REPOSITORY = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
NAME = r"^[a-z0-9]+(?:[._+-][a-z0-9]+)*$"
VERSION = r"^[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+)*$"
VARIANT = r"^(?:[a-z0-9]+(?:[._+-][a-z0-9]+)*)?$"
APT = re.compile(r"^[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+)?$")
DNF = re.compile(r"^[A-Za-z0-9][A-Za-z0-9+._-]*(?:=[A-Za-z0-9.+:~^_-]+)?$")
COMMAND = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
LABEL = re.compile(r"^[A-Za-z0-9]+(?:[._/-][A-Za-z0-9]+)*$")
# No password and no token can be part of it: an https URL has no `@`, an ssh URL a user at most.
GIT = re.compile(
    r"^(?:https://|file:///|ssh://(?:[A-Za-z0-9._-]+@)?|[A-Za-z0-9._-]+@(?=[A-Za-z0-9.-]+:))"
    r"[A-Za-z0-9._~/:+%-]+$"
)
COMMIT = re.compile(r"^[0-9a-f]{40}$")
# What nearly all requirements look like: a project, and versions it may have.
_SPECIFIER = r"(?:==|>=|<=|<|>|!=|~=)[0-9]+(?:\.[0-9]+)+"
PLAIN_REQUIREMENT = re.compile(
    rf"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:{_SPECIFIER}(?:,{_SPECIFIER})*)?$"
)
CONDA = re.compile(
    r"^[A-Za-z0-9_.-]+(?:(?:\s*(?:[=<>!~]=?|==)\s*)[A-Za-z0-9_.*+!|,<>=~-]+(?:=[A-Za-z0-9_.*]+)?)?$"
)
CHANNEL = re.compile(r"^(?:[a-z0-9._-]+(?:/[a-z0-9._-]+)*|(?:https|file)://[A-Za-z0-9._~/:%-]+)$")
# Commands that a wrapper on PATH must not hide.
SHADOWS = {"python", "python3", "pip", "sh", "bash", "env", "srun", "sbatch", "apptainer", "enroot"}
IN_SCRIPTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")  # all but tabs and newlines
MAX_SCRIPT = 1 << 18
MAX_REQUIREMENT = 1000
# Places in an image that hpcstack or the kernel fills.
RESERVED = ("/opt/hpcstack", "/proc", "/sys", "/dev", "/mnt")


class Model(BaseModel):
    """The base of all models of recipes and site.yaml: frozen, and it refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


def check_one_line(text: str) -> str:
    """Return TEXT, which goes into shells and modulefiles.

    Raise ValueError for newlines and other control characters.
    """
    if CONTROL.search(text):
        raise ValueError("newlines and control characters are not allowed here")
    return _encodable(text)


def check_script(text: str) -> str:
    """Return TEXT of several lines, which reaches bash as a file.

    Raise ValueError for control characters but tabs and newlines, and for more than MAX_SCRIPT
    characters.
    """
    if IN_SCRIPTS.search(text):
        raise ValueError("control characters are not allowed here")
    if len(text) > MAX_SCRIPT:
        raise ValueError(f"longer than {MAX_SCRIPT} characters")
    return _encodable(text)


def _encodable(text: str) -> str:
    """Return TEXT. Raise ValueError where UTF-8 cannot hold it: JSON can write half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half a character (a lone surrogate) is not allowed here") from None
    return text


def check_value_of_variable(text: str) -> str:
    """Return TEXT, a variable's value. Raise ValueError where a runtime would change it."""
    if found := re.search(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", check_one_line(text)):
        raise ValueError(
            f"Enroot would replace {found[0]} when the container starts; write the value itself"
        )
    if re.fullmatch(r"[\"'].*[\"']\s*", text):
        raise ValueError(
            "Enroot would take away the quotes around the value; write it without them"
        )
    if "\\" in text:
        raise ValueError("Enroot takes backslashes out of values; write it without them")
    return text


def check_part_of_variable(text: str) -> str:
    """Return TEXT, a part of a variable's value, whatever comes before and after it."""
    if check_value_of_variable(text)[:1] in ("'", '"') or text[-1:] in ("'", '"'):
        raise ValueError("a part neither begins nor ends with a quote: Enroot would take it away")
    return text


def check_value_of_label(text: str) -> str:
    """Return TEXT, a label's value. Raise ValueError where a definition file would change it."""
    if "{{" in check_one_line(text) or "}}" in text:
        raise ValueError("{{ and }} are build arguments to Apptainer, and cannot be in a label")
    if text != text.strip() or not text:
        raise ValueError("a label is not empty and neither begins nor ends with a blank")
    return text


def check_absolute(text: str) -> str:
    """Return TEXT, an absolute path of the image. Raise ValueError for any other."""
    parts = check_one_line(text).split("/")
    if not text.startswith("/") or any(part in ("", ".", "..") for part in parts[1:]):
        raise ValueError(
            "write an absolute path of the image, without '.', '..', '//' or a '/' at its end"
        )
    if any(text == place or text.startswith(f"{place}/") for place in RESERVED):
        raise ValueError("this place belongs to hpcstack or to the kernel")
    return text


def check_prefix(text: str) -> str:
    """Return TEXT, a folder of the image that goes on PATH. Raise ValueError for any other."""
    if ":" in check_absolute(text):
        raise ValueError("a ':' would split PATH")
    return text


def check_requirement(text: str) -> str:
    """Return TEXT, a pip requirement that an index can answer. Raise ValueError for any other."""
    if PLAIN_REQUIREMENT.fullmatch(text):
        return text  # as nearly all are: the parser is slow to load, and has nothing to add
    from packaging.requirements import InvalidRequirement, Requirement

    if len(text) > MAX_REQUIREMENT:
        raise ValueError(f"longer than {MAX_REQUIREMENT} characters")
    try:
        parsed = Requirement(check_one_line(text))
    except RecursionError:
        raise ValueError(
            "not a pip requirement, e.g. deepspeed==0.16.2: nested too deeply"
        ) from None
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"not a pip requirement, e.g. deepspeed==0.16.2: {reason}") from None
    if parsed.url:
        raise ValueError("a URL cannot be locked as a version can; use packages.source for git")
    return text


def check_apt(text: str) -> str:
    """Return TEXT, NAME or NAME=VERSION of a Debian package. Raise ValueError for any other."""
    if not APT.fullmatch(text):
        raise ValueError("not an apt package, e.g. infiniband-diags or infiniband-diags=50.0-2")
    return text


def check_dnf(text: str) -> str:
    """Return TEXT, NAME or NAME=VERSION-RELEASE of an rpm package. ValueError for any other."""
    if not DNF.fullmatch(text):
        raise ValueError("not a dnf package, e.g. git or git=2.43.5-1.el9")
    return text


def check_conda(text: str) -> str:
    """Return TEXT, a match spec of a conda package. Raise ValueError for any other."""
    if not CONDA.fullmatch(check_one_line(text)):
        raise ValueError("not a conda package, e.g. numpy, numpy=2.1 or numpy>=2,<3")
    return text


def check_channel(text: str) -> str:
    """Return TEXT, a conda channel's name or URL. Raise ValueError for any other."""
    if not CHANNEL.fullmatch(check_one_line(text)):
        raise ValueError("not a conda channel, e.g. conda-forge or https://conda.example.org/hpc")
    return text


def check_git(text: str) -> str:
    """Return TEXT, a repository's URL without a secret. Raise ValueError for any other."""
    if not GIT.fullmatch(check_one_line(text)):
        raise ValueError(
            "write https://HOST/PATH, ssh://HOST/PATH or file:///PATH, without a password or token"
        )
    return text


def check_commit(text: str) -> str:
    """Return TEXT, a whole commit id or nothing. Raise ValueError for any other."""
    if text and not COMMIT.fullmatch(text):
        raise ValueError("write all 40 hex digits of the commit; a tag or branch goes into `ref`")
    return text


def check_command(text: str) -> str:
    """Return TEXT, a command that may get a wrapper on PATH. Raise ValueError for any other."""
    if not COMMAND.fullmatch(text):
        raise ValueError("not a command's name: letters, digits and . _ + -")
    if text in SHADOWS:
        how = ""
        if text in ("python", "python3"):
            how = "; if that is meant, say module: {python: true}"
        raise ValueError(f"a wrapper named {text} would shadow the host's own {text}{how}")
    return text


Line = Annotated[str, AfterValidator(check_one_line)]
Script = Annotated[str, AfterValidator(check_script)]
Value = Annotated[str, AfterValidator(check_value_of_variable)]
Part = Annotated[str, AfterValidator(check_part_of_variable)]
Label = Annotated[str, AfterValidator(check_value_of_label)]
ImagePath = Annotated[str, AfterValidator(check_absolute)]
Prefix = Annotated[str, AfterValidator(check_prefix)]
Requirement = Annotated[str, AfterValidator(check_requirement)]
AptPackage = Annotated[str, AfterValidator(check_apt)]
DnfPackage = Annotated[str, AfterValidator(check_dnf)]
CondaPackage = Annotated[str, AfterValidator(check_conda)]
Channel = Annotated[str, AfterValidator(check_channel)]
GitUrl = Annotated[str, AfterValidator(check_git)]
Commit = Annotated[str, AfterValidator(check_commit)]
Command = Annotated[str, AfterValidator(check_command)]


def check_mount(text: str) -> str:
    """Return TEXT, SOURCE:TARGET as every runtime can mount it.

    Raise ValueError for what one of them would take for something else.
    """
    if not re.fullmatch(r"/[^:,$`\"'\\\s]*:/[^:,$`\"'\\\s]*", text):
        raise ValueError(
            f"{text!r} is not SOURCE:TARGET of two absolute paths without blanks, quotes, $ or ','"
        )
    return text


Mount = Annotated[str, AfterValidator(check_mount)]
