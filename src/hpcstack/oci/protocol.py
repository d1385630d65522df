"""What registries say, read and refused: challenges, documents, image configs. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from hpcstack.errors import RegistryError
from hpcstack.spec.model import Base

TOKEN_SERVERS = {  # whose token servers have another name than the registry
    "docker.io": ("auth.docker.io",),
    "registry-1.docker.io": ("auth.docker.io",),
    "registry.gitlab.com": ("gitlab.com",),
}


class Reply(Protocol):
    """An answer, as far as it is read here."""

    def json(self) -> Any: ...


def repository_of(url: str) -> str:
    """The repository that a URL of the distribution protocol names."""
    return re.sub(r"^/v2/|/(manifests|blobs|tags)/[^/]*$", "", urlsplit(url).path)


def realm_of(challenge: str, repository: str) -> tuple[str, dict[str, str]]:
    """The token's URL and query. nvcr.io puts the scope INTO the realm's URL, Docker Hub beside it."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = urlsplit(fields.get("realm", ""))
    query = {name: values[0] for name, values in parse_qs(realm.query).items()}
    if "service" in fields:
        query["service"] = fields["service"]
    query["scope"] = f"repository:{repository}:pull"
    return realm._replace(query="").geturl() if realm.scheme else "", query


def document(answer: Reply, host: str) -> dict[str, Any]:
    """The JSON object of an answer; a proxy's login page is none."""
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RegistryError(*nonsense(host))
    return found


def nonsense(host: str) -> tuple[str, str]:
    return f"{host} answered with something that is no registry's answer", "is a proxy in between?"


def may_know(realm: str, host: str, *, plain_http: bool) -> bool:
    """Whether the user's key for HOST may go to REALM: the same host or its own domain, never in the clear."""
    where = urlsplit(realm)
    name, own = where.hostname or "", host.partition(":")[0]
    if where.scheme != "https" and not plain_http:
        return False
    return name == own or name.endswith(f".{own}") or name in TOKEN_SERVERS.get(own, ())


def config_of(answer: Reply, host: str) -> dict[str, Any]:
    """An image config whose parts have the types that the rest of hpcstack relies on; ValueError for another."""
    config = document(answer, host)
    inner = config.get("config") or {}
    env, labels = inner.get("Env") or [], inner.get("Labels") or {}
    lists = [env, inner.get("Entrypoint") or [], inner.get("Cmd") or []]
    texts = [*(item for entry in lists for item in entry), *labels.values(), *labels, inner.get("WorkingDir") or ""]
    if not all(isinstance(entry, list) for entry in lists) or not isinstance(labels, dict):
        raise TypeError("an image config of other types")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("an image config whose texts are none")
    "".join(texts).encode()  # half characters cannot be written down
    return config


def pause(retry_after: str, otherwise: float) -> float:
    return min(float(retry_after), 30.0) if retry_after.isdigit() else otherwise


def verify(content: bytes, digest: str, host: str) -> None:
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise RegistryError(f"{host} sent other bytes than {digest} names", "try again; if it persists, tell its admin")


def unreachable(host: str, base: Base, error: Exception) -> tuple[str, str]:
    reason = str(getattr(error, "args", [error])[0] or type(error).__name__)
    reason = re.sub(r"^.*(?:Caused by |: )", "", reason.splitlines()[0])[:200].rstrip("\"')")
    return (
        f"{host} cannot be reached for {base.image}: {reason}",
        f"check the network and the proxy, or name a mirror under registries.{base.registry} in site.yaml",
    )


def refused(status: int, host: str, base: Base) -> tuple[str, str]:
    if status in (401, 403):
        user = " -u '$oauthtoken'" if base.registry == "nvcr.io" else ""
        return (
            f"{host} refuses {base.image} ({status})",
            f"log in: docker login{user} {host}, or put the key into ~/.docker/config.json or Enroot's .credentials",
        )
    if status == 404 and base.digest:
        return f"{host} has no {base.image}", "what was locked is gone: hpcstack lock STACK asks for what is there now"
    if status == 404:
        return (
            f"{host} has no {base.image}",
            f"check the tag, e.g. with: skopeo list-tags docker://{host}/{base.repository}",
        )
    return f"{host} answered {status} for {base.image}", "try again later"
