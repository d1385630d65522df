"""Read an image's config, wherever the image comes from. Nothing else reads one.

What a config says ends up in definition files, in /etc/environment, in scripts that start
containers, and on terminals. A variable whose value contains a line end could add a section to a
definition file. So a config is refused if anything in it ends a line or controls a terminal, or if
it is too large. A word of the entrypoint or the command may have several lines, as a script behind
`sh -c` has: it is in shell scripts and JSON only, quoted. Labels, which are for people and often
have several lines, are cleaned instead: such characters become a blank.

The fields: https://github.com/opencontainers/image-spec/blob/main/config.md.

Tested in tests/hostile/test_registries.py and tests/hostile/test_layers.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hpcstack.core.characters import VARIABLE
from hpcstack.core.errors import InputError
from hpcstack.core.untrusted import UNSAFE, UNSAFE_IN_WORDS, Nonsense, name_character

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Bytes of a document of a registry or an archive. MAX_MANIFEST is for indexes, too.
MAX_MANIFEST = 4 << 20
MAX_CONFIG = 1 << 20
MAX_OTHER = 1 << 20

MAX_ITEMS = 4096  # entries of a list
MAX_NAME = 256  # characters of a variable's or label's name
MAX_VALUE = 128 << 10  # characters of any text: execve(2) takes 128 KiB for one string
MAX_TEXTS = 1 << 20  # characters of all texts together
MAX_PATH = 4096
LISTS = ("Env", "Entrypoint", "Cmd", "Labels")
ADVICE = "do not use this image, or ask its author to fix it"


def read_image_config_of(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the part of the config FOUND that hpcstack uses: {os, architecture, rootfs, config}.

    Where FOUND says on which day the image was made, that is `created`: YYYY-MM-DD.

    Variables whose names no runtime can set are left out. Raise InputError, which names the image
    NAME and the field, for text that no format can hold and for too much of it. Raise Nonsense for
    what is not a config at all.
    """
    inner = found.get("config") or {}
    if not isinstance(inner, dict):
        raise Nonsense("an image config of other types")
    out: dict[str, Any] = {
        **{key: _texts(inner, key) for key in ("Env", "Entrypoint", "Cmd")},
        **{key: _text(inner, key) for key in ("WorkingDir", "User")},
        "Labels": _labels(inner.get("Labels") or {}),
    }
    out["Env"] = [entry for entry in out["Env"] if not _is_unsettable(entry.partition("=")[0])]

    for where, text, unsafe in _list_texts(out):
        match = unsafe.search(text)
        if not match:
            continue
        if "\ud800" <= match[0] <= "\udfff":  # half of a surrogate pair, which UTF-8 cannot encode
            raise Nonsense("half characters, which cannot be written down")
        raise InputError(
            f"{name} is not taken: {where} contains {name_character(match[0])}", ADVICE
        )
    _check_bounds(out, name)

    rootfs = found.get("rootfs")
    if not isinstance(rootfs, dict):
        rootfs = {}
    day = re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?=T)", str(found.get("created", ""))[:40])
    return {
        **({"created": day[0]} if day else {}),
        "os": _platform_word(found.get("os"), "linux"),
        "architecture": _platform_word(found.get("architecture"), "amd64"),
        "rootfs": rootfs,
        "config": {key: value for key, value in out.items() if value},
    }


def _is_unsettable(name: str) -> bool:
    """Return whether no runtime can set a variable called NAME, such as bash's exported functions.

    One that begins with `-` would be an option to the runtime. A name with unsafe characters is not
    meant here: the whole image is refused for it.
    """
    return VARIABLE.fullmatch(name) is None and UNSAFE.search(name) is None


def _texts(inner: Mapping[str, Any], field: str) -> list[str]:
    """Return the list FIELD of the config. Raise Nonsense if it is not a list of strings."""
    found = inner.get(field) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Nonsense(f"an image config whose {field} is not a list of texts")
    return list(found)


def _text(inner: Mapping[str, Any], field: str) -> str:
    """Return the string FIELD of the config. Raise Nonsense if it is something else."""
    found = inner.get(field) or ""
    if not isinstance(found, str):
        raise Nonsense(f"an image config whose {field} is not text")
    return found


def _labels(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        raise Nonsense("an image config whose labels are no texts")
    if not all(isinstance(value, str | None) for value in found.values()):
        raise Nonsense("an image config whose labels are no texts")
    return {_clean_label(name): _clean_label(value or "") for name, value in found.items()}


def _clean_label(text: str) -> str:
    """Return TEXT with each run of unsafe characters and tabs replaced by one blank."""
    return re.sub(rf"(?:{UNSAFE.pattern}|\t)+", " ", text)


def _platform_word(found: object, otherwise: str) -> str:
    """Return FOUND if it is a word, "?" if it is something else, OTHERWISE if it is empty."""
    if isinstance(found, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", found):
        return found
    return "?" if found else otherwise


def _list_texts(out: Mapping[str, Any]) -> Iterator[tuple[str, str, re.Pattern[str]]]:
    """Yield (what it is, the text, what it must not contain) for every text of the config OUT."""
    for entry in out["Env"]:
        name = entry.partition("=")[0]
        if UNSAFE.search(name):  # then the message must not show it
            yield "a variable's name", entry, UNSAFE
        else:
            yield f"its variable {name[:MAX_NAME]}", entry, UNSAFE
    for field in ("Entrypoint", "Cmd"):
        for word in out[field]:
            yield f"its {field}", word, UNSAFE_IN_WORDS
    for name, value in out["Labels"].items():
        yield "a label's name", name, UNSAFE
        yield f"its label {name[:MAX_NAME]}", value, UNSAFE
    yield "its WorkingDir", out["WorkingDir"], UNSAFE
    yield "its User", out["User"], UNSAFE


def _check_bounds(out: Mapping[str, Any], name: str) -> None:
    """Raise InputError if the config OUT of the image NAME is larger than any image needs."""
    names = [entry.partition("=")[0] for entry in out["Env"]]
    texts = [text for _, text, _ in _list_texts(out)]

    too_much = ""
    if any(len(out[key]) > MAX_ITEMS for key in LISTS):
        too_much = f"more than {MAX_ITEMS} entries in a field"
    elif any(len(one) > MAX_NAME for one in (*names, *out["Labels"])):
        too_much = f"a name of more than {MAX_NAME} characters"
    elif any(len(text) > MAX_VALUE for text in texts):
        too_much = f"a text of more than {MAX_VALUE} characters"
    elif sum(map(len, texts)) > MAX_TEXTS:
        too_much = f"more than {MAX_TEXTS} characters"
    elif len(out["WorkingDir"].encode()) > MAX_PATH:
        too_much = f"a WorkingDir of more than {MAX_PATH} bytes"
    if too_much:
        raise InputError(f"{name} is not taken: its config has {too_much}", ADVICE)
