"""What an image says of itself, wherever it comes from: read here and nowhere else, bounded, and
refused by its name.

A config becomes lines of definition files, /etc/environment, scripts that start containers, and
terminals. A variable's value with a line end in it would be a section of a definition file; so
nothing that ends a line or commands a terminal comes in. Labels are for people and are often
written over several lines: there it becomes a blank.

The fields: https://github.com/opencontainers/image-spec/blob/main/config.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hpcstack.core.characters import VARIABLE
from hpcstack.core.errors import InputError
from hpcstack.core.untrusted import UNSAFE, Nonsense, name_character

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_MANIFEST, MAX_CONFIG, MAX_OTHER = 4 << 20, 1 << 20, 1 << 20  # bytes; an index is a manifest
MAX_ITEMS, MAX_NAME, MAX_VALUE, MAX_TEXTS = (
    4096,
    256,
    128 << 10,
    1 << 20,
)  # execve(2) takes 128 KiB a string
MAX_PATH = 4096
LISTS = ("Env", "Entrypoint", "Cmd", "Labels")
ADVICE = "do not use this image, or ask its author to fix it"


def config_of(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The config of the image NAME with what hpcstack takes of it: {os, architecture, rootfs,
    config}.

    InputError names the image and the field that holds what no format can say, or too much of it;
    Nonsense for one that is no config.
    """
    inner = found.get("config") or {}
    if not isinstance(inner, dict):
        raise Nonsense("an image config of other types")
    out: dict[str, Any] = {
        **{key: _texts(inner, key) for key in ("Env", "Entrypoint", "Cmd")},
        **{key: _text(inner, key) for key in ("WorkingDir", "User")},
        "Labels": _labels(inner.get("Labels") or {}),
    }
    out["Env"] = [entry for entry in out["Env"] if not _unsayable(entry.partition("=")[0])]
    for where, text in _said(out):
        if match := UNSAFE.search(text):
            if "\ud800" <= match[0] <= "\udfff":
                raise Nonsense("half characters, which cannot be written down")
            raise InputError(
                f"{name} is not taken: {where} contains {name_character(match[0])}", ADVICE
            )
    _bounded(out, name)
    rootfs = found.get("rootfs")
    return {
        **{
            key: _word(found.get(key), other)
            for key, other in (("os", "linux"), ("architecture", "amd64"))
        },
        "rootfs": rootfs if isinstance(rootfs, dict) else {},
        "config": {key: value for key, value in out.items() if value},
    }


def _unsayable(name: str) -> bool:
    """Whether no runtime can say a variable of that NAME: an exported function of bash, say. One
    that begins with `-` would be an option to it. What is no honest name at all is refused later.
    """
    return VARIABLE.fullmatch(name) is None and UNSAFE.search(name) is None


def _texts(inner: Mapping[str, Any], field: str) -> list[str]:
    found = inner.get(field) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Nonsense(f"an image config whose {field} is not a list of texts")
    return list(found)


def _text(inner: Mapping[str, Any], field: str) -> str:
    found = inner.get(field) or ""
    if not isinstance(found, str):
        raise Nonsense(f"an image config whose {field} is not text")
    return found


def _labels(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(
        isinstance(value, str | None) for value in found.values()
    ):
        raise Nonsense("an image config whose labels are no texts")
    return {_shown(name): _shown(value or "") for name, value in found.items()}


def _shown(text: str) -> str:
    """TEXT as a label: it is for people, is often written over several lines, and no image is
    refused for it.
    """
    return re.sub(rf"(?:{UNSAFE.pattern}|\t)+", " ", text)


def _word(found: object, otherwise: str) -> str:
    """The name of a platform's part; what is none would only be shown."""
    if isinstance(found, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", found):
        return found
    return "?" if found else otherwise


def _said(out: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(what it is, the text) of all that a config says."""
    for entry in out["Env"]:
        name = entry.partition("=")[0]
        yield (
            ("a variable's name" if UNSAFE.search(name) else f"its variable {name[:MAX_NAME]}"),
            entry,
        )
    for field in ("Entrypoint", "Cmd"):
        yield from ((f"its {field}", word) for word in out[field])
    for name, value in out["Labels"].items():
        yield from (("a label's name", name), (f"its label {name[:MAX_NAME]}", value))
    yield "its WorkingDir", out["WorkingDir"]
    yield "its User", out["User"]


def _bounded(out: Mapping[str, Any], name: str) -> None:
    names = [entry.partition("=")[0] for entry in out["Env"]]
    texts = [text for _, text in _said(out)]
    too_much = (
        (
            any(len(out[key]) > MAX_ITEMS for key in LISTS),
            f"more than {MAX_ITEMS} entries in a field",
        ),
        (
            any(len(one) > MAX_NAME for one in (*names, *out["Labels"])),
            f"a name of more than {MAX_NAME} characters",
        ),
        (
            any(len(text) > MAX_VALUE for text in texts),
            f"a text of more than {MAX_VALUE} characters",
        ),
        (sum(map(len, texts)) > MAX_TEXTS, f"more than {MAX_TEXTS} characters"),
        (len(out["WorkingDir"].encode()) > MAX_PATH, f"a WorkingDir of more than {MAX_PATH} bytes"),
    )
    for wrong, what in too_much:
        if wrong:
            raise InputError(f"{name} is not taken: its config has {what}", ADVICE)
