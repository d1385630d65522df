"""Answer a registry's challenge: with a login, or with a token from the server that it names.

Tested in tests/unit/oci/test_ngc.py and tests/unit/oci/test_client.py.
"""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hpcstack.core.errors import LoginRefused, RegistryError
from hpcstack.oci.challenges import Challenge, choose_challenge, parse_challenges
from hpcstack.oci.config import MAX_OTHER
from hpcstack.oci.credentials import IDENTITY, Login, find_login
from hpcstack.oci.protocol import (
    content_of,
    make_nonsense_error,
    make_refusal_error,
    make_refused_login,
    may_be_asked,
    may_know,
    parse_answer,
    parse_realm,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import requests

    from hpcstack.oci.protocol import Query
    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

HEADER = re.compile(r"(Basic|Bearer) [\x21-\x7e]{0,65536}")
LONGEST_S = 86400.0  # a token is renewed after a day, however long it claims to live
REFUSED = (401, 403)


@dataclass(frozen=True)
class Authorization:
    """An Authorization header for a registry.

    It is valid for `lives_s` seconds, infinite if unknown. `ignored` is the login that the token
    server refused, if the header was then obtained without a login.
    """

    header: str
    lives_s: float = math.inf
    ignored: Login | None = None


def authorize_request(
    challenge: str,
    host: str,
    base: Base,
    scopes: Sequence[str],
    site: Site,
    fetch: Callable[..., requests.Response],
    *,
    anonymous: bool = False,
    wanted: str = "",
) -> Authorization:
    """Return what answers the CHALLENGE of a 401 from HOST, for a request that needs SCOPES.

    That is the login itself (`Basic`), or a bearer token from the server that the challenge names,
    which is asked with FETCH. The login is the user's own for HOST; if WANTED is given, it must be
    that user's. With ANONYMOUS there is none. If the token server refuses the login, it is asked
    again without one, since the image may be public. Raise RegistryError if no token can be had.
    """
    entry = site.registry(base.registry)
    login = None
    if not anonymous:
        login = find_login(host, entry.credentials, wanted)

    way = _choose_way(challenge, host, base)
    if way.scheme == "basic":
        if anonymous:
            raise make_refusal_error(401, host, base)
        pair = ":"
        if login and login.user != IDENTITY:  # an identity token is no password
            pair = f"{login.user}:{login.password}"
        return Authorization("Basic " + base64.b64encode(pair.encode()).decode())

    realm, query = parse_realm(way, scopes)
    if not realm:
        raise make_refusal_error(401, host, base)
    if not may_be_asked(realm, host, entry.token_server, plain_http=entry.plain_http):
        raise RegistryError(
            f"{host} refers to {realm[:200]} for a token; that server is not trusted, and is not "
            "asked",
            "if it is the right one, name it as "
            f"registries.{base.registry}.token_server in site.yaml",
        )

    # The user's login goes only to a server that belongs to the registry, or that the site names.
    token_server = urlsplit(realm).netloc
    named = entry.token_server and token_server == entry.token_server
    trusted = named or may_know(realm, host, plain_http=entry.plain_http)
    shown = login if trusted else None
    status, body = _ask_realm(realm, query, shown, host, fetch)
    ignored = None
    if shown and status in REFUSED:
        status, body = _ask_realm(realm, query, None, host, fetch)
        ignored = shown
        if status in REFUSED:
            raise LoginRefused(*make_refused_login(shown, status, host, base))

    if status != 200 and login and not trusted:
        raise RegistryError(
            f"{host} refuses {base.image} ({status}); your login was not sent to its token server "
            f"{token_server}, which is not known to belong to it",
            f"if it does, name it as registries.{base.registry}.token_server in site.yaml",
        )
    if status != 200:
        raise make_refusal_error(status, host, base)

    token = body.get("token") or body.get("access_token", "")
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{0,65536}", token):
        raise RegistryError(*make_nonsense_error(host))
    return Authorization(f"Bearer {token}", _lifetime(body, token), ignored)


def _choose_way(challenge: str, host: str, base: Base) -> Challenge:
    """Return what is answered of HOST's CHALLENGE. Raise RegistryError where nothing of it can be."""
    way = choose_challenge(challenge)
    if way is not None:
        return way
    ways = [one.scheme for one in parse_challenges(challenge)]
    if set(ways) <= {"bearer"}:  # without a server to ask
        raise make_refusal_error(401, host, base)
    raise RegistryError(
        f"{host} asks for a login by {', '.join(ways)}, and hpcstack knows Basic and Bearer",
        "tell the registry's admin",
    )


def _ask_realm(
    realm: str,
    query: Query,
    login: Login | None,
    host: str,
    fetch: Callable[..., requests.Response],
) -> tuple[int, dict[str, Any]]:
    """Ask the token server at REALM, with LOGIN if there is one. Return the status and the answer.

    The answer is empty unless the status is 200. Raise RegistryError for a redirect: the login must
    not go to a server that was not checked.
    """
    if login and login.user == IDENTITY:
        # https://distribution.github.io/distribution/spec/auth/oauth/
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
                f"the token server of {host} redirects to another place, which is not asked",
                "tell the registry's admin",
            )
        if answer.status_code != 200:
            return answer.status_code, {}
        return 200, parse_answer(content_of(answer, MAX_OTHER, host), host)


def _lifetime(body: Mapping[str, Any], token: str) -> float:
    """Return for how many seconds TOKEN is valid, at most LONGEST_S; infinite if nothing says so.

    The answer BODY that brought the token may say it, or else the token itself (RFC 7519). `exp`
    and `iat` are both times of the server's clock, so a wrong clock here does not matter.
    """
    claims = _claims_of(token)
    for ends, begins in ((body.get("expires_in"), 0), (claims.get("exp"), claims.get("iat"))):
        if isinstance(ends, int | float) and isinstance(begins, int | float) and ends > begins:
            return float(min(ends - begins, LONGEST_S))
    return math.inf


def _claims_of(token: str) -> dict[str, Any]:
    """Return the claims of TOKEN if it is a JSON web token, else an empty mapping."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=="))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
