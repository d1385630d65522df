"""What answers a registry's challenge: a login, or a token from the server that the registry names."""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hpcstack.core.errors import LoginRefused, RegistryError
from hpcstack.oci.config import MAX_OTHER
from hpcstack.oci.credentials import IDENTITY, Login, find_login
from hpcstack.oci.protocol import (
    content_of,
    make_nonsense_error,
    make_refusal_error,
    may_be_asked,
    may_know,
    parse_answer,
    realm_of,
    refused_login,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

HEADER = re.compile(r"(Basic|Bearer) [\x21-\x7e]{0,65536}")
LONGEST_S = 86400.0  # no token is believed to live longer
REFUSED = (401, 403)


@dataclass(frozen=True)
class Authorization:
    """What a registry is shown: the HEADER, good for LIVES_S seconds as far as is known. IGNORED is
    the login that was refused, where the header says nothing of any.
    """

    header: str
    lives_s: float = math.inf
    ignored: Login | None = None


def authorize_request(
    challenge: str,
    host: str,
    base: Base,
    repository: str,
    site: Site,
    fetch: Callable[..., Any],
    *,
    anonymous: bool = False,
    wanted: str = "",
) -> Authorization:
    """What answers a 401 of HOST: basic, or a bearer token from the realm that it names, asked with
    FETCH.

    The login is the user's own for HOST, of several that named WANTED; with ANONYMOUS there is
    none. A login that the token server refuses is left out: the image may be one for everybody.
    RegistryError where nobody gives a token.
    """
    entry = site.registry(base.registry)
    login = None if anonymous else find_login(host, entry.credentials, wanted)
    if challenge.lower().startswith("basic"):
        if anonymous:
            raise make_refusal_error(401, host, base)
        pair = f"{login.user}:{login.password}" if login and login.user != IDENTITY else ":"
        return Authorization("Basic " + base64.b64encode(pair.encode()).decode())
    realm, query = realm_of(challenge, repository)
    if not realm:
        raise make_refusal_error(401, host, base)
    if not may_be_asked(realm, host, entry.token_server, plain_http=entry.plain_http):
        raise RegistryError(
            f"{host} refers us to {realm[:200]} for a token; that server is not asked",
            f"if that is right, name it: registries.{base.registry}.token_server in site.yaml",
        )
    named = entry.token_server and urlsplit(realm).netloc == entry.token_server
    trusted = named or may_know(realm, host, plain_http=entry.plain_http)
    known = login if login and trusted else None
    status, body = _ask_realm(realm, query, known, host, fetch)
    ignored = None
    if known and status in REFUSED:
        status, body = _ask_realm(realm, query, None, host, fetch)
        ignored = known
        if status in REFUSED:
            raise LoginRefused(*refused_login(known, status, host, base))
    if status != 200 and login and not trusted:
        raise RegistryError(
            f"{host} refuses {base.image} ({status}); your login was not given to "
            f"{urlsplit(realm).netloc}, which gives its tokens",
            (
                f"if that host is the registry's own: registries.{base.registry}.token_server in "
                f"site.yaml"
            ),
        )
    if status != 200:
        raise make_refusal_error(status, host, base)
    token = body.get("token") or body.get("access_token", "")
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{0,65536}", token):
        raise RegistryError(*make_nonsense_error(host))
    return Authorization(f"Bearer {token}", _lifetime(body, token), ignored)


def _ask_realm(
    realm: str, query: Mapping[str, str], login: Login | None, host: str, fetch: Callable[..., Any]
) -> tuple[int, dict[str, Any]]:
    """The status and the answer of the token server at REALM to LOGIN, or to nobody."""
    if (
        login and login.user == IDENTITY
    ):  # https://distribution.github.io/distribution/spec/auth/oauth/
        form = {
            **query,
            "grant_type": "refresh_token",
            "refresh_token": login.password,
            "client_id": "hpcstack",
        }
        asked = fetch(realm, "POST", data=form, allow_redirects=False)
    else:
        auth = (login.user, login.password) if login else None
        asked = fetch(realm, params=query, auth=auth, allow_redirects=False)
    with asked as answer:
        if answer.is_redirect:
            raise RegistryError(
                f"the token server of {host} sends on to another place, which is not asked",
                "tell its admin",
            )
        if answer.status_code != 200:
            return answer.status_code, {}
        return 200, parse_answer(content_of(answer, MAX_OTHER, host), host)


def _lifetime(body: Mapping[str, Any], token: str) -> float:
    """For how many seconds TOKEN is good, by the answer that brought it or by what it says itself
    (RFC 7519: `exp` and `iat` are the server's clock, so that ours does not matter). Infinite where
    neither says anything.
    """
    claims = _claims_of(token)
    for ends, begins in ((body.get("expires_in"), 0), (claims.get("exp"), claims.get("iat"))):
        if isinstance(ends, int | float) and isinstance(begins, int | float) and ends > begins:
            return float(min(ends - begins, LONGEST_S))
    return math.inf


def _claims_of(token: str) -> dict[str, Any]:
    """What the JSON web token TOKEN claims; nothing for another kind of token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=="))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
