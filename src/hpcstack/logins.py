"""Logins in a site's URLs: lent only to builds on bases of registries that the site trusts; kept out of logs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from hpcstack.site import Site
from hpcstack.siteparts import BuildSite

IN_URL = re.compile(r"(?<=://)[^/\s@'\"]+@")
HIDDEN = "***"
SHORTEST = 4  # characters: a shorter secret would blacken whole words


def build_for(site: Site, registry: str) -> BuildSite:
    """What SITE lends to a build on a base of REGISTRY: with the logins in its URLs where it trusts that registry."""
    if site.registry(registry).trusted:
        return site.build
    plain = _without(site.build.model_dump(mode="json"))
    return BuildSite.model_validate(plain)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without(key): _without(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item) for item in value]
    return IN_URL.sub("", value) if isinstance(value, str) else value


def secrets(site: Site) -> list[str]:
    """The passwords and tokens in the site's URLs, as they are written and as they are sent; the longest first."""
    found = {text for url in _texts(site.build.model_dump(mode="json")) for text in _of(url)}
    return sorted((text for text in found if len(text) >= SHORTEST), key=len, reverse=True)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (*_texts(key), *_texts(item))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def _of(url: str) -> Iterator[str]:
    for part in url.split():
        try:
            where = urlsplit(part)
        except ValueError:
            continue
        said, at, _ = where.netloc.rpartition("@")
        if at:
            user, colon, password = said.partition(":")
            secret = password if colon else user  # a token stands alone, in the user's place
            yield from (said, secret, unquote(secret))


def redacted(text: str, site: Site) -> str:
    """TEXT for a log: no login of the site's is in it, nor of any other URL."""
    for secret in secrets(site):
        text = text.replace(secret, HIDDEN)
    return IN_URL.sub(f"{HIDDEN}@", text)
