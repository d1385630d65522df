"""What registries say, read and refused: challenges, documents, image configs. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import threading
import zlib
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

from hpcstack.core import untrusted
from hpcstack.core.errors import LoginRefused, NotInRegistry, RegistryError
from hpcstack.oci import config

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.oci.credentials import Login
    from hpcstack.recipe.model import Base

DOCKER_HUB = "registry-1.docker.io"  # what docker.io means to the distribution protocol
ANOTHER = "is this the registry you meant? If so, tell its admin"
TOKEN_SERVERS = {  # whose token servers have another name than the registry
    "docker.io": ("auth.docker.io",),
    "registry-1.docker.io": ("auth.docker.io",),
    "registry.gitlab.com": ("gitlab.com",),
}


READ_S = 120  # a small answer that has not come after so long never will
PIECE = 1 << 16
T = TypeVar("T")


def call_within(seconds: float, host: str, act: Callable[[], T]) -> T:
    """What ACT returns or raises.

    RegistryError where it takes longer: a server may send a byte a second for days.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(act())
        except BaseException as error:  # the caller raises it
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise RegistryError(f"{host} has not finished its answer after {seconds:.0f} s", ANOTHER)
    if failed:
        raise failed[0]
    return done[0]


class Reply(Protocol):
    """An answer whose body has not been read yet: requests.Response, opened as a stream."""

    @property
    def headers(self) -> Any: ...

    @property
    def raw(self) -> Any: ...


def content_of(answer: Reply, limit: int, host: str) -> bytes:
    """The body of an answer, uncompressed, LIMIT bytes at most.

    RegistryError for more, and for one that has no end.
    """
    encoding = (answer.headers.get("Content-Encoding") or "identity").lower()
    if encoding not in (
        "identity",
        "aws-chunked",
        "gzip",
        "x-gzip",
        "deflate",
    ):  # none was asked for
        raise RegistryError(*make_nonsense_error(host))
    inflate = zlib.decompressobj(47) if encoding in ("gzip", "x-gzip", "deflate") else None
    out = bytearray()
    try:
        while block := answer.raw.read(PIECE, decode_content=False):
            out += inflate.decompress(block, limit + 1 - len(out)) if inflate else block
            if len(out) > limit:
                raise RegistryError(
                    f"{host} answered with more than {limit >> 20} MiB where less is right", ANOTHER
                )
    except zlib.error:
        raise RegistryError(*make_nonsense_error(host)) from None
    return bytes(out)


def repository_of(url: str) -> str:
    """The repository that a URL of the distribution protocol names."""
    return re.sub(r"^/v2/|/(manifests|blobs|tags)/[^/]*$", "", urlsplit(url).path)


def realm_of(challenge: str, repository: str) -> tuple[str, dict[str, str]]:
    """The token's URL and query. nvcr.io puts the scope INTO the realm's URL, Docker Hub beside it."""
    fields = dict(re.findall(r'(?<!\w)(\w{1,32})="([^"]*)"', challenge[:4096]))
    realm = urlsplit(fields.get("realm", ""))
    query = {name: values[0] for name, values in parse_qs(realm.query).items()}
    if "service" in fields:
        query["service"] = fields["service"]
    query["scope"] = f"repository:{repository}:pull"
    return realm._replace(query="").geturl() if realm.scheme else "", query


def parse_answer(content: bytes, host: str, limit: int = config.MAX_OTHER) -> dict[str, Any]:
    """The JSON object of an answer; a proxy's login page is none."""
    try:
        return untrusted.parse_untrusted_json(content, limit)
    except ValueError:
        raise RegistryError(*make_nonsense_error(host)) from None


def may_be_asked(realm: str, host: str, named: str, *, plain_http: bool) -> bool:
    """Whether REALM, which the registry HOST says gives tokens, may be asked at all: its answer
    goes to the registry.

    It speaks https, or is HOST itself where that speaks http, or is NAMED by the site. A bare
    address or this very machine is none, unless the registry is there too: nobody's metadata
    service is asked because a registry says so.
    """
    where = urlsplit(realm)
    name, netloc = where.hostname or "", where.netloc
    if not name or "@" in netloc:
        return False
    if netloc == host or (named and netloc == named):
        return where.scheme == "https" or (where.scheme == "http" and plain_http)
    return where.scheme == "https" and (not is_address(name) or name == host.partition(":")[0])


def is_address(name: str) -> bool:
    name = name.rstrip(".")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        own = (
            name == "localhost"
            or name.startswith("ip6-")
            or name.endswith((".localhost", ".local"))
        )
        return (
            own
            or re.fullmatch(r"(0x[0-9a-f]*|[0-9]+)", name.rpartition(".")[2], re.IGNORECASE)
            is not None
        )
    return True


def make_nonsense_error(host: str) -> tuple[str, str]:
    return (
        f"{host} answered with something that is not a registry's answer",
        "is a proxy in between?",
    )


def may_know(realm: str, host: str, *, plain_http: bool) -> bool:
    """Whether the user's key for HOST may go to REALM: the same host or its own domain; in the
    clear only to HOST.
    """
    where = urlsplit(realm)
    name, own = where.hostname or "", host.partition(":")[0]
    if where.scheme != "https":
        return plain_http and where.netloc == host
    return name == own or name.endswith(f".{own}") or name in TOKEN_SERVERS.get(own, ())


def choose_pause(retry_after: str, otherwise: float) -> float:
    return min(float(retry_after), 30.0) if re.fullmatch(r"[0-9]{1,6}", retry_after) else otherwise


def verify_digest(content: bytes, digest: str, host: str) -> None:
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise RegistryError(
            f"{host} sent other bytes than {digest} names",
            "try again; if it persists, tell its admin",
        )


def explain_unreachable(
    host: str, base: Base, error: Exception, asked: str = ""
) -> tuple[str, str]:
    """What to say where the registry HOST, or ASKED, the place that it has sent on to, breaks off
    with ERROR.
    """
    reason = str(getattr(error, "args", [error])[0] or type(error).__name__)
    reason = re.sub(r"^.*(?:Caused by |: )", "", reason.splitlines()[0])[:200].rstrip("\"')")
    asked = (
        asked
        or urlsplit(getattr(getattr(error, "request", None), "url", None) or "").netloc
        or host
    )
    if asked.lower() not in (host.lower(), DOCKER_HUB):
        return (
            f"{asked}, where {host} sends for {base.image}, cannot be reached: {reason}",
            f"let this machine reach {asked} too (firewall, proxy), or name a mirror under "
            f"registries.{base.registry} "
            "in site.yaml",
        )
    return (
        f"{host} cannot be reached for {base.image}: {reason}",
        (
            f"check the network and the proxy, or name a mirror under registries.{base.registry} "
            f"in site.yaml"
        ),
    )


def explain_refusal(
    status: int, host: str, base: Base, ignored: Login | None = None
) -> tuple[str, str]:
    """What to say of STATUS, which HOST has answered for BASE.

    IGNORED: the login that its token server refused.
    """
    if status in (401, 403) and ignored:
        return refused_login(ignored, status, host, base)
    if status == 403 and host.partition(":")[0] == "nvcr.io":
        return (
            f"{host} refuses {base.image} (403)",
            "accept its terms on catalog.ngc.nvidia.com, and see that your key's org and team may "
            "have it; without a "
            f"key: docker login -u '$oauthtoken' {host}",
        )
    if status in (401, 403):
        user = " -u '$oauthtoken'" if base.registry == "nvcr.io" else ""
        return (
            f"{host} refuses {base.image} ({status})",
            (
                f"log in: docker login{user} {host}, or put the key into ~/.docker/config.json or "
                f"Enroot's .credentials"
            ),
        )
    if status == 404 and base.digest:
        return (
            f"{host} has no {base.image}",
            "what was locked is gone: hpcstack lock STACK asks for what is there now",
        )
    if status == 404:
        return (
            f"{host} has no {base.image}",
            f"check the tag, e.g. with: skopeo list-tags docker://{host}/{base.repository}",
        )
    return f"{host} answered {status} for {base.image}", "try again later"


def refused_login(login: Login, status: int, host: str, base: Base) -> tuple[str, str]:
    """What to say where HOST refuses LOGIN, and nobody else gets BASE either."""
    user = " -u '$oauthtoken'" if base.registry == "nvcr.io" else ""
    return (
        (
            f"{host} refuses the login in {login.source}, and gives {base.image} to nobody without "
            f"one ({status})"
        ),
        (
            f"has the key expired, been revoked, or no right to this image? With a new one: docker "
            f"login{user} {host}"
        ),
    )


def make_refusal_error(
    status: int, host: str, base: Base, ignored: Login | None = None
) -> RegistryError:
    """What `explain_refusal` says, as the error: LoginRefused where another login may be let in."""
    kind = {401: LoginRefused, 403: LoginRefused, 404: NotInRegistry}.get(status, RegistryError)
    return kind(*explain_refusal(status, host, base, ignored))


def refused_elsewhere(status: int, asked: str, host: str, base: Base) -> RegistryError:
    """The error where ASKED, to which HOST has sent on, answers with STATUS."""
    return RegistryError(
        f"{asked}, where {host} sends for {base.image}, answered {status}",
        (
            "try again; if it persists: does a proxy change what is asked of it, or is this "
            "machine's clock wrong?"
        ),
    )
