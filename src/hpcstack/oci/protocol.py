"""Read what registries answer, check it, and word the errors. No request is made here.

Tested in tests/unit/oci/test_client.py.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable
from urllib.parse import parse_qs, urlsplit

from hpcstack.core import untrusted
from hpcstack.core.budget import Budget, read_within
from hpcstack.core.errors import LoginRefused, NotInRegistry, RegistryError
from hpcstack.oci import config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcstack.oci.challenges import Challenge
    from hpcstack.oci.credentials import Login
    from hpcstack.recipe.model import Base

DOCKER_HUB = "registry-1.docker.io"  # the host that speaks the distribution protocol for docker.io
ANOTHER = "is this the registry that you meant? If so, tell its admin"
TOKEN_SERVERS = {  # registries whose token server is under another domain
    "docker.io": ("auth.docker.io",),
    "registry-1.docker.io": ("auth.docker.io",),
    "registry.gitlab.com": ("gitlab.com",),
}

READ_S = 120  # seconds for a small answer, a manifest or a config, to come completely
HEADERS_S = 60  # seconds for the beginning of an answer, its status and its headers
PIECE = 1 << 16
LONGEST_PAUSE = 64  # characters of a Retry-After
T = TypeVar("T")


def call_within(
    seconds: float, host: str, act: Callable[[], T], moved: Callable[[], float] | None = None
) -> T:
    """Return what ACT returns, or raise what it raises. Raise RegistryError after SECONDS.

    A timeout of requests covers only the wait for the next byte, and a server may send one byte a
    second for days. ACT therefore runs in a thread, which is left behind when the time is up.

    MOVED is for what sends much: it returns when the last of it was taken (time.monotonic), and
    SECONDS count anew from then.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(act())
        except BaseException as error:  # raised again below, in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    while moved and thread.is_alive():
        left = moved() + seconds - time.monotonic()
        if left <= 0:
            break
        thread.join(left)
    if thread.is_alive():
        raise RegistryError(f"{host} has not finished its answer after {seconds:.0f} s", ANOTHER)
    if failed:
        raise failed[0]
    return done[0]


@runtime_checkable
class Moving(Protocol):
    """What is sent piece by piece; `moved` is when its last piece was taken (time.monotonic)."""

    moved: float


class Reply(Protocol):
    """A response whose body has not been read yet: requests.Response, opened as a stream."""

    @property
    def headers(self) -> Any: ...

    @property
    def raw(self) -> Any: ...


def make_budget(host: str, limit: int) -> Budget:
    """Return what HOST may send in one answer: LIMIT bytes in READ_S seconds."""
    return Budget(host, RegistryError, ANOTHER, limit, seconds=READ_S)


def content_of(answer: Reply, limit: int, host: str) -> bytes:
    """Return the body of ANSWER, uncompressed, at most LIMIT bytes within READ_S seconds.

    HOST is named in errors. Raise RegistryError if the body is longer, takes longer, or is
    compressed in an unknown or a wrong way. The limit also holds while uncompressing, so that a
    small answer cannot fill the memory.
    """
    # `identity` was asked for, but some servers compress anyway.
    encoding = (answer.headers.get("Content-Encoding") or "identity").lower()
    compressed = encoding in ("gzip", "x-gzip", "deflate")
    if not compressed and encoding not in ("identity", "aws-chunked"):
        raise RegistryError(*make_nonsense_error(host))

    budget = make_budget(host, limit)
    arrived = make_budget(host, limit)  # of what may be compressed
    inflate = zlib.decompressobj(47)  # reads gzip and zlib alike

    def read_block() -> bytes:
        # What one read brings may uncompress to nothing yet.
        while block := answer.raw.read1(PIECE, decode_content=False):
            arrived.take_bytes(len(block))
            if not compressed:
                return bytes(block)
            plain = inflate.decompress(block, budget.bytes_left + 1)
            if plain:
                return plain
        return b""

    try:
        # One read may go on for ever, as with trailers that never end: so it is waited for.
        return call_within(READ_S, host, lambda: read_within(read_block, budget))
    except zlib.error:
        raise RegistryError(*make_nonsense_error(host)) from None


def read_repository(url: str) -> str:
    """Return the repository that a URL of the distribution protocol names."""
    kinds = "blobs/uploads|manifests|blobs|tags|referrers"
    return re.sub(rf"^/v2/|/({kinds})/[^/]*$", "", urlsplit(url).path)


Query = dict[str, "str | list[str]"]  # of a token server


def parse_realm(challenge: Challenge, scopes: Sequence[str]) -> tuple[str, Query]:
    """Return the token server's URL and query from a CHALLENGE for a bearer token.

    The URL is empty if the challenge names none. Docker Hub gives the scope as a field of its own,
    nvcr.io as part of the realm's URL. Either is replaced by SCOPES, those that are needed:
    `repository:NAME:pull`.
    """
    fields = challenge.fields
    realm = urlsplit(fields.get("realm", ""))
    query: Query = {name: values[0] for name, values in parse_qs(realm.query).items()}
    if "service" in fields:
        query["service"] = fields["service"]
    query["scope"] = scopes[0] if len(scopes) == 1 else list(scopes)
    if not realm.scheme:
        return "", query
    return realm._replace(query="").geturl(), query


def parse_answer(content: bytes, host: str, limit: int = config.MAX_OTHER) -> dict[str, Any]:
    """Parse CONTENT as a JSON object.

    Raise RegistryError for anything else, such as a proxy's login page.
    """
    try:
        return untrusted.parse_untrusted_json(content, limit)
    except ValueError:
        raise RegistryError(*make_nonsense_error(host)) from None


def may_be_asked(realm: str, host: str, named: str, *, plain_http: bool) -> bool:
    """Return whether the token server REALM, which the registry HOST names, may be asked at all.

    It must speak https. Plain http will do only for HOST itself, or the server NAMED in site.yaml,
    and only if the registry speaks plain http too. An IP address or this very machine is not asked,
    unless the registry is there as well: what a token server answers goes to the registry, which
    must not learn by us what a cloud's metadata service says.
    """
    where = urlsplit(realm)
    name = where.hostname or ""
    netloc = where.netloc
    if not name or "@" in netloc:
        return False
    if netloc == host or (named and netloc == named):
        return where.scheme == "https" or (where.scheme == "http" and plain_http)
    return where.scheme == "https" and (not is_address(name) or name == host.partition(":")[0])


def is_address(name: str) -> bool:
    """Return whether NAME is an IP address, in any spelling, or a name for this machine or link."""
    name = name.rstrip(".")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        pass
    else:
        return True

    if name == "localhost" or name.startswith("ip6-") or name.endswith((".localhost", ".local")):
        return True
    # inet_aton(3) also takes `127.1`, `0x7f.1` and `2130706433`: a name whose last part is a number
    # is an address to it.
    last = name.rpartition(".")[2]
    return re.fullmatch(r"(0x[0-9a-f]*|[0-9]+)", last, re.IGNORECASE) is not None


def is_this_machine(name: str) -> bool:
    """Return whether NAME is this machine, or this link of a network, in any spelling.

    A cloud answers what a machine may know at 169.254.169.254, which is of the link.
    """
    name = name.rstrip(".").lower()
    if name == "localhost" or name.startswith("ip6-") or name.endswith((".localhost", ".local")):
        return True
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        try:
            found = ipaddress.ip_address(socket.inet_aton(name))
        except OSError:
            return False
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_link_local or found.is_unspecified


def make_nonsense_error(host: str) -> tuple[str, str]:
    """Return message and hint for an answer of HOST that cannot be read."""
    return (
        f"{host} answered with something that is not a registry's answer",
        "is a proxy in between?",
    )


def may_know(realm: str, host: str, *, plain_http: bool) -> bool:
    """Return whether the user's login for HOST may be sent to the token server REALM.

    It may go to HOST itself, to a subdomain of it, and to the server that TOKEN_SERVERS lists;
    unencrypted only to HOST.
    """
    where = urlsplit(realm)
    name = where.hostname or ""
    own = host.partition(":")[0]
    if where.scheme != "https":
        return plain_http and where.netloc == host
    return name == own or name.endswith(f".{own}") or name in TOKEN_SERVERS.get(own, ())


def choose_pause(retry_after: str, otherwise: float) -> float:
    """Return the seconds to wait: RETRY_AFTER, a number or a date, at most 30; else OTHERWISE."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util.retry import Retry

    try:
        wanted = Retry().parse_retry_after(retry_after[:LONGEST_PAUSE])
    except (InvalidHeader, ValueError, OverflowError):
        return otherwise
    # A date that is over by this machine's clock is not: who sends one is busy.
    least = 0.0 if retry_after.strip().isdigit() else otherwise
    return min(max(wanted, least), 30.0)


def verify_digest(content: bytes, digest: str, host: str) -> None:
    """Raise RegistryError if CONTENT, sent by HOST, does not have the sha256 DIGEST."""
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise RegistryError(
            f"{host} sent bytes that do not match {digest}",
            "try again; if it persists, tell the registry's admin",
        )


def explain_unreachable(
    host: str, base: Base, error: Exception, asked: str = ""
) -> tuple[str, str]:
    """Return message and hint for a connection to the registry HOST that failed with ERROR.

    ASKED is the host that was really asked, if HOST has redirected to it; without it, the host is
    taken from the request in ERROR.
    """
    # Errors of requests and urllib3 wrap each other; the innermost, at the end, says what happened.
    reason = str(getattr(error, "args", [error])[0] or type(error).__name__)
    reason = re.sub(r"^.*(?:Caused by |: )", "", reason.splitlines()[0])[:200].rstrip("\"')")
    mirror = f"name a mirror under registries.{base.registry} in site.yaml"

    request = getattr(error, "request", None)
    asked = asked or urlsplit(getattr(request, "url", None) or "").netloc or host
    if asked.lower() not in (host.lower(), DOCKER_HUB):
        return (
            f"{asked}, to which {host} redirects for {base.image}, cannot be reached: {reason}",
            f"let this machine reach {asked} too (firewall, proxy), or {mirror}",
        )
    return (
        f"{host} cannot be reached for {base.image}: {reason}",
        f"check the network and the proxy, or {mirror}",
    )


def explain_refusal(
    status: int, host: str, base: Base, ignored: Login | None = None
) -> tuple[str, str]:
    """Return message and hint for the HTTP STATUS that HOST has answered for BASE.

    IGNORED is a login that its token server refused before.
    """
    if status in (401, 403) and ignored:
        return make_refused_login(ignored, status, host, base)
    if status == 403 and host.partition(":")[0] == "nvcr.io":
        return (
            f"{host} refuses {base.image} (403)",
            "accept its terms on catalog.ngc.nvidia.com, and check that your key's org and team "
            f"may pull it; without a key: {_login_command(host, base)}",
        )
    if status in (401, 403):
        return (
            f"{host} refuses {base.image} ({status})",
            f"log in: {_login_command(host, base)}, or put the key into ~/.docker/config.json or "
            "Enroot's .credentials",
        )
    if status == 404 and base.digest:
        return (
            f"{host} has no {base.image}",
            "the locked image is gone; hpcstack lock STACK locks what is there now",
        )
    if status == 404:
        return (
            f"{host} has no {base.image}",
            f"check the tag, e.g. with: skopeo list-tags docker://{host}/{base.repository}",
        )
    return f"{host} answered {status} for {base.image}", "try again later"


def _login_command(host: str, base: Base) -> str:
    """Return the `docker login` line for HOST. NGC's user name is the word `$oauthtoken` itself."""
    if base.registry == "nvcr.io":
        return f"docker login -u '$oauthtoken' {host}"
    return f"docker login {host}"


def make_refused_login(login: Login, status: int, host: str, base: Base) -> tuple[str, str]:
    """Return message and hint where HOST refuses LOGIN, and BASE cannot be had without one."""
    return (
        f"{host} refuses the login in {login.source}, and {base.image} cannot be pulled without "
        f"one ({status})",
        "the key may have expired, been revoked, or have no right to this image; to log in with a "
        f"new one: {_login_command(host, base)}",
    )


def make_refusal_error(
    status: int, host: str, base: Base, ignored: Login | None = None
) -> RegistryError:
    """Return the text of `explain_refusal` as an error of the class that fits STATUS.

    LoginRefused (401, 403) means that another user's login may still succeed.
    """
    kind = {401: LoginRefused, 403: LoginRefused, 404: NotInRegistry}.get(status, RegistryError)
    return kind(*explain_refusal(status, host, base, ignored))


def make_push_refusal(status: int, host: str, base: Base, said: str) -> RegistryError:
    """Return the error for STATUS, which HOST has answered to a push to BASE's repository.

    SAID is what the registry gives as the reason; it may be empty.
    """
    name = f"{host}/{base.repository}"
    what = f"{host} does not take what is pushed to {name} ({status})"
    if said:
        what += f": {said}"
    if status in (401, 403):
        hint = f"log in with an account that may push there: {_login_command(host, base)}"
        return LoginRefused(what, hint)
    hints = {
        404: "create the project or repository there first",
        405: "is it a registry that only mirrors another one?",
        412: "the tag may not be changed there: name another one",
        413: "its proxy limits the size of a request: tell the registry's admin",
        507: "its disk or your quota is full: tell the registry's admin",
    }
    kind = NotInRegistry if status == 404 else RegistryError
    return kind(what, hints.get(status, "try again later"))


def read_reason(content: bytes) -> str:
    """Return the first message of a registry's error, at most 200 characters; empty for none."""
    try:
        found = untrusted.parse_untrusted_json(content, config.MAX_OTHER)
        return str(found["errors"][0]["message"])[:200]
    except (ValueError, KeyError, TypeError, IndexError):
        return ""


def make_refused_elsewhere(status: int, asked: str, host: str, base: Base) -> RegistryError:
    """Return the error for STATUS from ASKED, the host to which HOST has redirected.

    Such hosts check signed URLs, which a proxy may damage and a wrong clock may outdate.
    """
    return RegistryError(
        f"{asked}, to which {host} redirects for {base.image}, answered {status}",
        "try again; if it persists, check whether a proxy changes requests to it, and whether this "
        "machine's clock is right",
    )
