"""Logins in a site's URLs: lent only to builds on bases of registries that the site trusts; kept
out of logs. Pure.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from hpcstack.site.model import BuildSite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.site.load import Site

IN_URL = re.compile(r"(?<=://)[^/\s@'\"]{1,1000}@")
CONDA_TOKEN = re.compile(r"/t/([^/?#]+)/")
HIDDEN = "***"
SHORTEST = 4  # characters: a shorter secret would blacken whole words


def build_for(site: Site, registry: str) -> BuildSite:
    """What SITE lends to a build on a base of REGISTRY: with the logins in its URLs where it trusts
    that registry.
    """
    if site.registry(registry).trusted:
        return site.build
    plain = _without(site.build.model_dump(mode="json"))
    return BuildSite.model_validate(plain)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item) for item in value]
    return strip_login(value) if isinstance(value, str) else value


def strip_login(url: str) -> str:
    """URL without what is before its last `@`, without its query and without conda's tokens: a
    password may hold anything, also what it should not. A token that stands in a path as any other
    word cannot be told from one.
    """
    scheme, there, rest = url.partition("://")
    if not there:
        scheme, rest = "", url
    if "@" in rest:
        rest = rest.rpartition("@")[2]
    rest = CONDA_TOKEN.sub("/", re.split(r"[?#]", rest, maxsplit=1)[0])
    return (
        f"{scheme}://{rest}" if there and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) else rest
    )


def list_secrets(site: Site) -> list[str]:
    """The passwords and tokens in the site's URLs, as they are written and as they are sent; the
    longest first.
    """
    found = {text for url in _texts(site.build.model_dump(mode="json")) for text in _of(url)}
    return sorted((text for text in found if len(text) >= SHORTEST), key=len, reverse=True)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def _of(url: str) -> Iterator[str]:
    _, there, rest = url.partition("://")
    rest = rest if there else url
    if "@" in rest:
        said = rest.rpartition("@")[0]
        user, colon, password = said.partition(":")
        secret = password if colon else user  # a token stands alone, in the user's place
        for text in (said, unquote(said)):
            yield from (text, base64.b64encode(text.encode()).decode())
        yield from (secret, unquote(secret))
    yield from (match[1] for match in CONDA_TOKEN.finditer(rest))
    query = re.split(r"[?]", rest, maxsplit=1)[1:]
    yield from (value for part in query for value in re.split(r"[&=#]", part)[1::2])


def redact_logins(text: str, site: Site) -> str:
    """TEXT for a log: no login of the site's is in it, nor of any other URL."""
    for secret in list_secrets(site):
        text = text.replace(secret, HIDDEN)
    return IN_URL.sub(f"{HIDDEN}@", text)
