"""The registry client: digests and image configs by a few small requests; no layer is fetched."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urljoin, urlsplit

from hpcstack.credentials import credentials
from hpcstack.errors import InputError, RegistryError
from hpcstack.lock.model import facts_of
from hpcstack.site import Site
from hpcstack.spec.model import Base

if TYPE_CHECKING:
    import requests

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
TRIES, BACK_OFF = 4, 0.5
PAGE, MAX_PAGES = 1000, 50
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
NONSENSE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
TOKEN_SERVERS = {  # whose token servers have another name than the registry
    "docker.io": ("auth.docker.io",),
    "registry-1.docker.io": ("auth.docker.io",),
    "registry.gitlab.com": ("gitlab.com",),
}
DOCKER_HUB = "registry-1.docker.io"  # what docker.io means to the distribution protocol
BUSY = (429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Answer:
    """What the registry ANSWERED_BY said of one image, by platform (`linux/amd64`)."""

    answered_by: str
    index_digest: str
    manifests: dict[str, str]
    configs: dict[str, dict[str, Any]]
    sizes: dict[str, int]


class Registry:
    """A client for the registries that a site names, with its mirrors and the user's own credentials.

    Credentials come from the file that the site names, from docker's config.json and its helpers, or from Enroot's
    .credentials, and go to the registry that they are for, only.
    """

    def __init__(self, site: Site, *, timeout: float = 20) -> None:
        self.site = site
        self.tokens: dict[tuple[str, str], str] = {}
        self.timeout = timeout
        self.bundle = site.build.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        if self.bundle and not Path(self.bundle).exists():
            raise InputError(f"the CA bundle {self.bundle} is not there", "build.ca_bundle in site.yaml")

    def look_up(self, base: Base) -> Answer:
        """The digests and configs of BASE for each platform that it names. RegistryError where there are none."""
        host, url = self._place(base)
        try:
            return self._look_up(base, host, url)
        except NONSENSE:
            raise RegistryError(*_nonsense(host)) from None

    def _look_up(self, base: Base, host: str, url: str) -> Answer:
        reference = base.digest or base.tag
        top, body = self._manifest(url, reference, base, host)
        manifests = self._platforms(top, body, base, host, url)
        configs, sizes = {}, {}
        for platform, digest in manifests.items():
            manifest = body if digest == top else self._manifest(url, digest, base, host)[1]
            blob = self._get(f"{url}/blobs/{_digest(manifest['config']['digest'])}", (), base, host)
            _verify(blob.content, manifest["config"]["digest"], host)
            configs[platform] = _config(blob, host)
            sizes[platform] = sum(int(layer.get("size", 0)) for layer in manifest.get("layers", []))
        return Answer(self.site.registry(base.registry).mirror or base.registry, top, manifests, configs, sizes)

    def facts(self, base: Base) -> dict[str, str]:
        """What BASE holds by its image config: {CUDA: 13.0.2, ...}, of its first platform."""
        config = self.look_up(base).configs[base.platforms[0]]
        pairs = (entry.partition("=") for entry in (config.get("config") or {}).get("Env") or [])
        return facts_of({name: value for name, _, value in pairs})

    def tags(self, base: Base) -> list[str]:
        """All tags of BASE's repository, in the registry's own order, page by page; what is no tag is left out."""
        host, url = self._place(base)
        try:
            return [tag for tag in self._tags(base, host, url) if isinstance(tag, str) and TAG.fullmatch(tag)]
        except NONSENSE:
            raise RegistryError(*_nonsense(host)) from None

    def _tags(self, base: Base, host: str, url: str) -> list[str]:
        out: list[str] = []
        following = f"{url}/tags/list?n={PAGE}"
        for _ in range(MAX_PAGES):
            answer = self._get(following, (), base, host)
            page = _document(answer, host).get("tags") or []
            if not isinstance(page, list):
                raise TypeError("tags are a list")
            out += page
            link = answer.links.get("next", {}).get("url", "")
            if not link:
                break
            following = urljoin(following, link)
            if urlsplit(following)[:2] != urlsplit(url)[:2]:
                raise RegistryError(
                    f"{host} sends its list of tags on to {urlsplit(following).netloc}", "tell its admin"
                )
        return out

    def _place(self, base: Base) -> tuple[str, str]:
        """The host that is asked for BASE, and the URL of its repository there."""
        entry = self.site.registry(base.registry)
        host, _, path = (entry.mirror or base.registry).partition("/")
        repository = f"{path}/{base.repository}".lstrip("/")
        where = DOCKER_HUB if host == "docker.io" else host
        return host, f"{'http' if entry.plain_http else 'https'}://{where}/v2/{repository}"

    def _platforms(self, top: str, body: dict[str, Any], base: Base, host: str, url: str) -> dict[str, str]:
        if "manifests" not in body:
            blob = self._get(f"{url}/blobs/{_digest(body['config']['digest'])}", (), base, host)
            config = _document(blob, host)
            have = {f"{config.get('os', 'linux')}/{config.get('architecture')}": top}
        else:
            have = {_platform(entry): _digest(entry["digest"]) for entry in reversed(body["manifests"])}
        missing = [name for name in base.platforms if name not in have]
        if missing:
            raise RegistryError(
                f"{host} has {base.image} for {', '.join(sorted(have))}, not for {', '.join(missing)}",
                "change base.platforms in the recipe",
            )
        return {name: have[name] for name in base.platforms}

    def _manifest(self, url: str, reference: str, base: Base, host: str) -> tuple[str, dict[str, Any]]:
        answer = self._get(f"{url}/manifests/{reference}", (*INDEXES, *MANIFESTS), base, host)
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        if reference.startswith("sha256:"):
            _verify(answer.content, reference, host)
        return digest, _document(answer, host)

    def _get(self, url: str, accept: tuple[str, ...], base: Base, host: str) -> requests.Response:
        """GET with a token where one is asked for, and again after a pause where the registry is busy."""
        import requests

        for attempt in range(TRIES):
            try:
                answer = self._once(url, accept, base, host)
            except requests.RequestException as error:
                if attempt + 1 == TRIES:
                    raise RegistryError(*_unreachable(host, base, error)) from None
                time.sleep(BACK_OFF * 2**attempt)
                continue
            if answer.status_code not in BUSY or attempt + 1 == TRIES:
                break
            time.sleep(_pause(answer.headers.get("Retry-After", ""), BACK_OFF * 2**attempt))
        if answer.status_code != 200:
            raise RegistryError(*_refused(answer.status_code, host, base))
        return answer

    def _fetch(self, url: str, **how: Any) -> requests.Response:
        """One GET, by the site's proxy or the environment's. No netrc: it would replace the token."""
        import requests

        proxy = self.site.build.proxy
        said = {name: value for name, value in (("http", proxy.http), ("https", proxy.https)) if value}
        around = requests.utils.should_bypass_proxies(url, no_proxy=proxy.no or None)
        proxies = {} if around else said or requests.utils.get_environ_proxies(url)
        with requests.Session() as session:
            session.trust_env = False
            return session.get(url, proxies=proxies, verify=self.bundle or True, timeout=self.timeout, **how)

    def _once(
        self, url: str, accept: tuple[str, ...], base: Base, host: str, *, again: bool = False
    ) -> requests.Response:
        headers = {"Accept": ", ".join(accept)} if accept else {}
        key = (host, base.repository)
        if key in self.tokens:
            headers["Authorization"] = self.tokens[key]
        answer = self._fetch(url, headers=headers)
        if answer.status_code == 401 and not again:  # no token yet, or it has expired: NVIDIA's live for minutes
            self.tokens[key] = self._authorization(
                answer.headers.get("WWW-Authenticate", ""), host, base, _repository(url)
            )
            return self._once(url, accept, base, host, again=True)
        return answer

    def _authorization(self, challenge: str, host: str, base: Base, repository: str) -> str:
        """The header that answers a 401: basic, or a bearer token from the realm that it names."""
        import base64

        user, password = credentials(host, self.site.registry(base.registry).credentials)
        if challenge.lower().startswith("basic"):
            return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        realm, query = _realm(challenge, repository)
        if not realm:
            raise RegistryError(*_refused(401, host, base))
        entry = self.site.registry(base.registry)
        named = entry.token_server and urlsplit(realm).netloc == entry.token_server and realm.startswith("https:")
        trusted = user and (named or _may_know(realm, host, plain_http=entry.plain_http))
        answer = self._fetch(realm, params=query, auth=(user, password) if trusted else None)
        if answer.status_code != 200:
            raise RegistryError(*_refused(answer.status_code, host, base))
        body = _document(answer, host)
        return f"Bearer {body.get('token') or body.get('access_token', '')}"


def _repository(url: str) -> str:
    """The repository that a URL of the distribution protocol names."""
    return re.sub(r"^/v2/|/(manifests|blobs|tags)/[^/]*$", "", urlsplit(url).path)


def _realm(challenge: str, repository: str) -> tuple[str, dict[str, str]]:
    """The token's URL and query. nvcr.io puts the scope INTO the realm's URL, Docker Hub beside it."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = urlsplit(fields.get("realm", ""))
    query = {name: values[0] for name, values in parse_qs(realm.query).items()}
    if "service" in fields:
        query["service"] = fields["service"]
    query["scope"] = f"repository:{repository}:pull"
    return realm._replace(query="").geturl() if realm.scheme else "", query


def _document(answer: requests.Response, host: str) -> dict[str, Any]:
    """The JSON object of an answer; a proxy's login page is none."""
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RegistryError(*_nonsense(host))
    return found


def _nonsense(host: str) -> tuple[str, str]:
    return f"{host} answered with something that is no registry's answer", "is a proxy in between?"


def _may_know(realm: str, host: str, *, plain_http: bool) -> bool:
    """Whether the user's key for HOST may go to REALM: the same host or its own domain, never in the clear."""
    where = urlsplit(realm)
    name, own = where.hostname or "", host.partition(":")[0]
    if where.scheme != "https" and not plain_http:
        return False
    return name == own or name.endswith(f".{own}") or name in TOKEN_SERVERS.get(own, ())


def _digest(text: object) -> str:
    """TEXT as a digest; ValueError for anything else that a registry may say."""
    if not isinstance(text, str) or not DIGEST.fullmatch(text):
        raise ValueError(f"no digest: {text!r}")
    return text


def _config(answer: requests.Response, host: str) -> dict[str, Any]:
    """An image config whose parts have the types that the rest of hpcstack relies on; ValueError for another."""
    config = _document(answer, host)
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


def _platform(entry: dict[str, Any]) -> str:
    platform = entry.get("platform") or {}
    return f"{platform.get('os')}/{platform.get('architecture')}"


def _pause(retry_after: str, otherwise: float) -> float:
    return min(float(retry_after), 30.0) if retry_after.isdigit() else otherwise


def _verify(content: bytes, digest: str, host: str) -> None:
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise RegistryError(f"{host} sent other bytes than {digest} names", "try again; if it persists, tell its admin")


def _unreachable(host: str, base: Base, error: Exception) -> tuple[str, str]:
    reason = str(getattr(error, "args", [error])[0] or type(error).__name__)
    reason = re.sub(r"^.*(?:Caused by |: )", "", reason.splitlines()[0])[:200].rstrip("\"')")
    return (
        f"{host} cannot be reached for {base.image}: {reason}",
        f"check the network and the proxy, or name a mirror under registries.{base.registry} in site.yaml",
    )


def _refused(status: int, host: str, base: Base) -> tuple[str, str]:
    if status in (401, 403):
        user = " -u '$oauthtoken'" if base.registry == "nvcr.io" else ""
        return (
            f"{host} refuses {base.image} ({status})",
            f"log in: docker login{user} {host}, or put the key into ~/.docker/config.json or Enroot's .credentials",
        )
    if status == 404:
        return (
            f"{host} has no {base.image}",
            f"check the tag, e.g. with: skopeo list-tags docker://{host}/{base.repository}",
        )
    return f"{host} answered {status} for {base.image}", "try again later"
