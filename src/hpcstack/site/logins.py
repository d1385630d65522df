"""Logins in the URLs of site.yaml. Pure.

They are lent only to builds on bases of registries that the site trusts, and kept out of logs.

Tested in tests/hostile/test_gifts.py.
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
SHORTEST = 4  # characters; hiding a shorter secret would hide parts of other words


def build_for(site: Site, registry: str) -> BuildSite:
    """Return what SITE lends to a build on a base of REGISTRY.

    The logins in its URLs are left out unless the site trusts that registry.
    """
    if site.registry(registry).trusted:
        return site.build
    without = _without_logins(site.build.model_dump(mode="json"))
    return BuildSite.model_validate(without)


def _without_logins(value: Any) -> Any:
    """Return VALUE, of JSON's types, with the login taken out of each text in it."""
    if isinstance(value, dict):
        return {key: _without_logins(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_logins(item) for item in value]
    if isinstance(value, str):
        return strip_login(value)
    return value


def strip_login(url: str) -> str:
    """Return URL without what is before its last `@`, its query, and conda's tokens.

    The last `@` counts since a password may hold any character, also those it should not. A token
    that stands in the path like any other word cannot be recognized.
    """
    scheme, there, rest = url.partition("://")
    if not there:
        scheme, rest = "", url
    if "@" in rest:
        rest = rest.rpartition("@")[2]
    rest = CONDA_TOKEN.sub("/", re.split(r"[?#]", rest, maxsplit=1)[0])
    if there and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return f"{scheme}://{rest}"
    return rest


def list_secrets(site: Site) -> list[str]:
    """Return the passwords and tokens in the site's URLs, the longest first.

    Each is there as it is written and as it is sent.
    """
    found: set[str] = set()
    for url in _texts_in(site.build.model_dump(mode="json")):
        found.update(text for text in _secrets_in(url) if len(text) >= SHORTEST)
    return sorted(found, key=len, reverse=True)


def _texts_in(value: Any) -> Iterator[str]:
    """Yield each text in VALUE, which has JSON's types."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, str):
        yield value


def _secrets_in(url: str) -> Iterator[str]:
    """Yield what may be secret in URL: its login, also as Basic sends it, tokens, query values."""
    _, there, rest = url.partition("://")
    rest = rest if there else url
    if "@" in rest:
        login = rest.rpartition("@")[0]
        user, colon, password = login.partition(":")
        secret = password if colon else user  # a token stands alone, in the user's place
        for text in (login, unquote(login)):
            yield text
            yield base64.b64encode(text.encode()).decode()
        yield secret
        yield unquote(secret)
    for match in CONDA_TOKEN.finditer(rest):
        yield match[1]
    _, _, query = rest.partition("?")
    yield from re.split(r"[&=#]", query)[1::2]  # names and values take turns


def redact_logins(text: str, site: Site) -> str:
    """Return TEXT for a log, without the site's logins and those of any other URL."""
    for secret in list_secrets(site):
        text = text.replace(secret, HIDDEN)
    return IN_URL.sub(f"{HIDDEN}@", text)
