"""What answers a registry's challenge: a login, or a token from the server that the registry names."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hpcstack.core.errors import RegistryError
from hpcstack.oci.config import MAX_OTHER
from hpcstack.oci.credentials import credentials
from hpcstack.oci.protocol import content_of, document, may_be_asked, may_know, nonsense, realm_of, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

HEADER = re.compile(r"(Basic|Bearer) [\x21-\x7e]{0,65536}")


def authorize(
    challenge: str, host: str, base: Base, repository: str, site: Site, fetch: Callable[..., Any],
    *, anonymous: bool = False, wanted: str = "",
) -> str:  # fmt: skip
    """The header that answers a 401 of HOST: basic, or a bearer token from the realm that it names, asked with FETCH.

    The login is the user's own for HOST, of several that named WANTED; with ANONYMOUS there is none. RegistryError
    where nobody gives a token.
    """
    entry = site.registry(base.registry)
    user, password = ("", "") if anonymous else credentials(host, entry.credentials, wanted)
    if challenge.lower().startswith("basic"):
        if anonymous:
            raise refusal(401, host, base)
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    realm, query = realm_of(challenge, repository)
    if not realm:
        raise refusal(401, host, base)
    if not may_be_asked(realm, host, entry.token_server, plain_http=entry.plain_http):
        raise RegistryError(
            f"{host} refers us to {realm[:200]} for a token; that server is not asked",
            f"if that is right, name it: registries.{base.registry}.token_server in site.yaml",
        )
    named = entry.token_server and urlsplit(realm).netloc == entry.token_server
    trusted = user and (named or may_know(realm, host, plain_http=entry.plain_http))
    how = {"params": query, "auth": (user, password) if trusted else None, "allow_redirects": False}
    with fetch(realm, **how) as answer:
        if answer.is_redirect:
            raise RegistryError(
                f"the token server of {host} sends on to another place, which is not asked", "tell its admin"
            )
        if answer.status_code != 200 and user and not trusted:
            raise RegistryError(
                f"{host} refuses {base.image} ({answer.status_code}); your login was not given to "
                f"{urlsplit(realm).netloc}, which gives its tokens",
                f"if that host is the registry's own: registries.{base.registry}.token_server in site.yaml",
            )
        if answer.status_code != 200:
            raise refusal(answer.status_code, host, base)
        body = document(content_of(answer, MAX_OTHER, host), host)
    token = body.get("token") or body.get("access_token", "")
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{0,65536}", token):
        raise RegistryError(*nonsense(host))
    return f"Bearer {token}"
