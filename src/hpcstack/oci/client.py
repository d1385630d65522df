"""The registry client: digests and image configs by a few small requests, and layers as streams."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from hpcstack.core.errors import InputError, NotInRegistry, RegistryError
from hpcstack.hardware.facts import facts_of
from hpcstack.oci.config import MAX_CONFIG, MAX_MANIFEST, config_of
from hpcstack.oci.manifest import (
    DIGEST,
    Image,
    digest_in,
    list_platforms,
    platform_of,
    read_image_config,
)
from hpcstack.oci.protocol import (
    DOCKER_HUB,
    READ_S,
    call_within,
    choose_pause,
    content_of,
    explain_unreachable,
    make_nonsense_error,
    make_refusal_error,
    parse_answer,
    refused_elsewhere,
    repository_of,
    verify_digest,
)
from hpcstack.oci.rate import not_too_slow
from hpcstack.oci.signed import MAX_STATEMENT, CosignStatement, signature_tag, statements_in
from hpcstack.oci.tokens import Authorization, authorize_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import requests

    from hpcstack.oci.credentials import Login
    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
TRIES, BACK_OFF = 4, 0.5
PAGE, MAX_PAGES, MAX_TAGS = 1000, 50, 100_000
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
NONSENSE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
PIECE = 1 << 20
BUSY = (429, 500, 502, 503, 504)
RENEWED = 0.9  # of a token's life is used: an answer may be long under way


@dataclass(frozen=True)
class _Token:
    """A header for a registry, and until when it is good, as time.monotonic() counts."""

    header: str
    until: float


@dataclass(frozen=True)
class Answer:
    """What the registry ANSWERED_BY said of one image, by platform (`linux/amd64`)."""

    answered_by: str
    index_digest: str
    manifests: dict[str, str]
    configs: dict[str, dict[str, Any]]
    sizes: dict[str, int]


@dataclass(frozen=True)
class Ping:
    """What a registry at HOST answers to /v2/: a status of HTTP, or the error that kept it from
    answering.
    """

    host: str
    status: int = 0
    error: str = ""


class Registry:
    """A client for the registries that a site names, with its mirrors and the user's own
    credentials.

    Credentials come from the file that the site names, from docker's config.json and its helpers,
    or from Enroot's .credentials, and go to the registry that they are for, only. WARN is told of a
    login that is refused.
    """

    def __init__(
        self,
        site: Site,
        *,
        timeout: float = 20,
        tries: int = TRIES,
        anonymous: bool = False,
        user: str = "",
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.site, self.tries, self.anonymous, self.user = site, tries, anonymous, user
        self.tokens: dict[tuple[str, str], _Token] = {}
        self.ignored: dict[str, Login] = {}  # by host: what its token server refused
        self.timeout, self.warn = timeout, warn

    @cached_property
    def bundle(self) -> str | None:
        """The certificates that are trusted; InputError, once a registry is asked, where the file
        does not exist.
        """
        found = (
            self.site.build.ca_bundle
            or os.environ.get("REQUESTS_CA_BUNDLE")
            or os.environ.get("CURL_CA_BUNDLE")
        )
        if found and not Path(found).exists():
            raise InputError(
                f"the CA bundle {found} does not exist", "build.ca_bundle in site.yaml"
            )
        return found

    def look_up(self, base: Base) -> Answer:
        """The digests and configs of BASE for each platform that it names.

        RegistryError where there are none.
        """
        host, url = self.place(base)
        try:
            return self._look_up(base, host, url)
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(host)) from None

    def _look_up(self, base: Base, host: str, url: str) -> Answer:
        reference = base.digest or base.tag
        top, body = self._manifest(url, reference, base, host)
        manifests = self._platforms(top, body, base, host, url)
        configs, sizes = {}, {}
        for platform, digest in manifests.items():
            manifest = body if digest == top else self._manifest(url, digest, base, host)[1]
            configs[platform] = config_of(self._config(url, manifest, base, host), base.image)
            sizes[platform] = sum(int(layer.get("size", 0)) for layer in manifest.get("layers", []))
        return Answer(
            self.site.registry(base.registry).mirror or base.registry,
            top,
            manifests,
            configs,
            sizes,
        )

    def facts(self, base: Base) -> dict[str, str]:
        """What BASE holds by its image config: {CUDA: 13.0.2, ...}, of its first platform."""
        config = self.look_up(base).configs[base.platforms[0]]
        pairs = (entry.partition("=") for entry in (config.get("config") or {}).get("Env") or [])
        return facts_of({name: value for name, _, value in pairs})

    def digest(self, base: Base) -> str:
        """The digest that BASE's tag means now, or its own, once the registry has said that it may
        be read. Asked with HEAD, which Docker Hub does not count as a pull. RegistryError where it
        may not.
        """
        host, url = self.place(base)
        where, accept = f"{url}/manifests/{base.digest or base.tag}", (*INDEXES, *MANIFESTS)
        answer, _ = self._get(where, accept, base, host, method="HEAD")
        answer.close()
        found = answer.headers.get("Docker-Content-Digest", "")
        if DIGEST.fullmatch(found) and found == (base.digest or found):
            return found
        return self._manifest(url, base.digest or base.tag, base, host)[
            0
        ]  # a proxy's page answers 200, too

    def image(self, base: Base, platform: str) -> Image:
        """The manifest and config of BASE for PLATFORM, with its layers."""
        host, url = self.place(base)
        try:
            top, body = self._manifest(url, base.digest or base.tag, base, host)
            if "manifests" in body:
                have = list_platforms(body)
                if platform not in have:
                    raise RegistryError(
                        f"{host} has {base.image} for {', '.join(sorted(have))}, not for {platform}"
                    )
                top, body = self._manifest(url, have[platform], base, host)
            found = read_image_config(
                top, body, config_of(self._config(url, body, base, host), base.image)
            )
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(host)) from None
        if found.platform != platform:
            raise RegistryError(f"{host} has {base.image} for {found.platform}, not for {platform}")
        return found

    def blob(self, base: Base, digest: str, start: int) -> Iterator[bytes]:
        """The bytes of a layer from START on, until the registry ends them.

        RegistryError where it breaks off.
        """
        import requests
        from urllib3.exceptions import HTTPError

        host, url = self.place(base)
        how = {"Range": f"bytes={start}-"} if start else {}
        answer, _ = self._get(f"{url}/blobs/{digest}", (), base, host, more=how)
        with answer:
            if (
                start and answer.status_code != 206
            ):  # it does not know ranges: pass over what is there
                start -= sum(len(block) for block in _some(answer, start))
            asked = urlsplit(answer.url).netloc
            try:
                yield from not_too_slow(
                    lambda: answer.raw.read1(PIECE, decode_content=False), asked
                )
            except (requests.RequestException, HTTPError, OSError, ValueError) as error:
                raise RegistryError(*explain_unreachable(host, base, error, asked)) from None

    def reach_layers(self, base: Base) -> str:
        """The host that gives the layers of BASE: a byte of its smallest was fetched.

        RegistryError for none.
        """
        host, url = self.place(base)
        smallest = min(self.image(base, base.platforms[0]).layers, key=lambda layer: layer.size)
        answer, _ = self._get(
            f"{url}/blobs/{smallest.digest}", (), base, host, more={"Range": "bytes=0-0"}
        )
        with answer:
            return urlsplit(answer.url).netloc

    def statements(self, base: Base, digest: str) -> list[CosignStatement]:
        """What somebody has signed of the image DIGEST, as cosign puts it beside it; empty for
        nothing.
        """
        host, url = self.place(base)
        try:
            _, manifest = self._manifest(url, signature_tag(digest), base, host)
        except NotInRegistry:
            return []
        try:
            return [
                CosignStatement(self._blob(url, statement, base, host, MAX_STATEMENT), signature)
                for statement, signature in statements_in(manifest)
            ]
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(host)) from None

    def tags(self, base: Base) -> list[str]:
        """All tags of BASE's repository, in the registry's own order, page by page; what is no tag
        is left out.
        """
        host, url = self.place(base)
        try:
            return [
                tag
                for tag in self._tags(base, host, url)
                if isinstance(tag, str) and TAG.fullmatch(tag)
            ]
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(host)) from None

    def _tags(self, base: Base, host: str, url: str) -> list[str]:
        out: list[str] = []
        following = f"{url}/tags/list?n={PAGE}"
        for _ in range(MAX_PAGES):
            answer, content = self._get(following, (), base, host, MAX_MANIFEST)
            page = parse_answer(content, host, MAX_MANIFEST).get("tags") or []
            if not isinstance(page, list):
                raise TypeError("tags are a list")
            out += page
            if len(out) > MAX_TAGS:
                raise RegistryError(
                    f"{host} lists more than {MAX_TAGS} tags of {base.repository}", "tell its admin"
                )
            link = answer.links.get("next", {}).get("url", "")
            if not link:
                break
            following = urljoin(following, link)
            if urlsplit(following)[:2] != urlsplit(url)[:2]:
                raise RegistryError(
                    f"{host} sends its list of tags on to {urlsplit(following).netloc}",
                    "tell its admin",
                )
        return out

    def ping(self, name: str) -> Ping:
        """Ask the registry NAME, or its mirror, for /v2/."""
        import requests

        entry = self.site.registry(name)
        host = (entry.mirror or name).partition("/")[0]
        where = DOCKER_HUB if host == "docker.io" else host
        try:
            with self._fetch(f"{'http' if entry.plain_http else 'https'}://{where}/v2/") as found:
                return Ping(host, found.status_code)
        except (requests.RequestException, ValueError) as error:
            return Ping(host, error=type(error).__name__)

    def wants_basic(self, base: Base) -> bool:
        """Whether the registry of BASE itself asks for a password, and knows no tokens."""
        import requests

        host, url = self.place(base)
        try:
            with self._fetch(f"{url.partition('/v2/')[0]}/v2/", allow_redirects=False) as answer:
                return answer.headers.get("WWW-Authenticate", "").lower().startswith("basic")
        except (requests.RequestException, ValueError) as error:
            raise RegistryError(*explain_unreachable(host, base, error)) from None

    def place(self, base: Base) -> tuple[str, str]:
        """The host that is asked for BASE, and the URL of its repository there."""
        entry = self.site.registry(base.registry)
        host, _, path = (entry.mirror or base.registry).partition("/")
        repository = f"{path}/{base.repository}".lstrip("/")
        if {".", ".."} & set(
            repository.split("/")
        ):  # what sends it would fold them, and leave a mirror's project
            raise InputError(f"{repository!r} is no repository's name", "registries in site.yaml")
        where = DOCKER_HUB if host == "docker.io" else host
        return host, f"{'http' if entry.plain_http else 'https'}://{where}/v2/{repository}"

    def _platforms(
        self, top: str, body: dict[str, Any], base: Base, host: str, url: str
    ) -> dict[str, str]:
        if "manifests" not in body:
            config = config_of(self._config(url, body, base, host), base.image)
            have = {platform_of(config): top}
        else:
            have = list_platforms(body)
        missing = [name for name in base.platforms if name not in have]
        if missing:
            raise RegistryError(
                (
                    f"{host} has {base.image} for {', '.join(sorted(have))}, not for "
                    f"{', '.join(missing)}"
                ),
                "change base.platforms in the recipe",
            )
        return {name: have[name] for name in base.platforms}

    def _manifest(
        self, url: str, reference: str, base: Base, host: str
    ) -> tuple[str, dict[str, Any]]:
        _, content = self._get(
            f"{url}/manifests/{reference}", (*INDEXES, *MANIFESTS), base, host, MAX_MANIFEST
        )
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if reference.startswith("sha256:"):
            verify_digest(content, reference, host)
        return digest, parse_answer(content, host, MAX_MANIFEST)

    def _config(
        self, url: str, manifest: Mapping[str, Any], base: Base, host: str
    ) -> dict[str, Any]:
        """The config that MANIFEST names, as the registry has it."""
        digest = digest_in(manifest["config"]["digest"])
        return parse_answer(self._blob(url, digest, base, host, MAX_CONFIG), host, MAX_CONFIG)

    def _blob(self, url: str, digest: str, base: Base, host: str, limit: int) -> bytes:
        """The blob DIGEST, of LIMIT bytes at most, which is what its name says."""
        _, content = self._get(f"{url}/blobs/{digest}", (), base, host, limit)
        verify_digest(content, digest, host)
        return content

    def _get(
        self,
        url: str,
        accept: tuple[str, ...],
        base: Base,
        host: str,
        limit: int = 0,
        *,
        more: Mapping[str, str] | None = None,
        method: str = "GET",
    ) -> tuple[requests.Response, bytes]:
        """GET with a token where one is asked for, and again after a pause where the registry is
        busy.

        The answer, and its body of LIMIT bytes at most; without a limit it is the caller's to read.
        """
        import requests
        from urllib3.exceptions import HTTPError

        content = b""
        for attempt in range(self.tries):
            try:
                if limit:
                    answer, content = call_within(
                        READ_S, host, lambda: self._small(url, accept, base, host, limit)
                    )
                else:
                    answer = self._once(url, accept, base, host, more=more, method=method)
            except (requests.RequestException, HTTPError, OSError, ValueError) as error:
                if attempt + 1 == self.tries:
                    raise RegistryError(*explain_unreachable(host, base, error)) from None
                time.sleep(BACK_OFF * 2**attempt)
                continue
            if answer.status_code not in BUSY or attempt + 1 == self.tries:
                break
            time.sleep(choose_pause(answer.headers.get("Retry-After", ""), BACK_OFF * 2**attempt))
        if answer.status_code not in (200, 206):
            answer.close()
            if _sent_on(answer, url):
                raise refused_elsewhere(answer.status_code, urlsplit(answer.url).netloc, host, base)
            raise make_refusal_error(answer.status_code, host, base, self.ignored.get(host))
        return answer, content

    def _small(
        self, url: str, accept: tuple[str, ...], base: Base, host: str, limit: int
    ) -> tuple[requests.Response, bytes]:
        answer = self._once(url, accept, base, host)
        return answer, content_of(answer, limit, host) if answer.status_code in (200, 206) else b""

    def _fetch(self, url: str, method: str = "GET", **how: Any) -> requests.Response:
        """One request, by the site's proxy or the environment's; its body is not read yet. No
        netrc: it would replace the token.
        """
        import requests

        proxy = self.site.build.proxy
        said = {
            name: value for name, value in (("http", proxy.http), ("https", proxy.https)) if value
        }
        around = requests.utils.should_bypass_proxies(url, no_proxy=proxy.no or None)
        proxies = {} if around else said or requests.utils.get_environ_proxies(url)
        with requests.Session() as session:
            session.trust_env = False
            how["headers"] = {"Accept-Encoding": "identity", **how.get("headers", {})}
            how |= {
                "proxies": proxies,
                "verify": self.bundle or True,
                "timeout": self.timeout,
                "stream": True,
            }
            return session.request(method, url, **how)

    def _once(
        self,
        url: str,
        accept: tuple[str, ...],
        base: Base,
        host: str,
        *,
        more: Mapping[str, str] | None = None,
        method: str = "GET",
    ) -> requests.Response:
        """One answer to URL, with a token where one is wanted.

        What a registry answers to a token that has run out is not believed: nvcr.io then names a
        server that gives tokens to nobody without a login (NVIDIA/nvidia-container-toolkit 1945).
        Its answer to no token counts.
        """
        headers = {**({"Accept": ", ".join(accept)} if accept else {}), **(more or {})}
        key = (host, base.repository)
        token = self._token(key)
        answer = self._ask(url, headers, token, method)
        if token and _wants_login(answer, url):
            answer.close()
            self._forget(key, token)
            answer = self._ask(url, headers, None, method)
        if not _wants_login(answer, url):
            return answer
        answer.close()
        challenge = answer.headers.get("WWW-Authenticate", "")
        token = self._keep(key, self.authorization(challenge, host, base, repository_of(url)), base)
        return self._ask(url, headers, token, method)

    def _ask(
        self, url: str, headers: Mapping[str, str], token: _Token | None, method: str
    ) -> requests.Response:
        shown = {"Authorization": token.header} if token else {}
        return self._fetch(url, method, headers={**headers, **shown})

    def _token(self, key: tuple[str, str]) -> _Token | None:
        """What is kept for KEY, if it is still good."""
        token = self.tokens.get(key)
        return token if token and time.monotonic() < token.until else None

    def _forget(self, key: tuple[str, str], token: _Token) -> None:
        """TOKEN is no longer kept for KEY; one that another thread has got meanwhile is."""
        if self.tokens.get(key) is token:
            self.tokens.pop(key, None)

    def _keep(self, key: tuple[str, str], granted: Authorization, base: Base) -> _Token:
        """GRANTED is kept for KEY. Who asked is told once if his login was refused."""
        host, ignored = key[0], granted.ignored
        if ignored and host not in self.ignored:
            self.ignored[host] = ignored
            if self.warn:
                self.warn(
                    f"{host} refuses the login in {ignored.source}: {base.image} is asked for "
                    f"without it"
                )
        token = _Token(granted.header, time.monotonic() + RENEWED * granted.lives_s)
        self.tokens[key] = token
        return token

    def authorization(
        self, challenge: str, host: str, base: Base, repository: str
    ) -> Authorization:
        """What answers a 401 of HOST, from the user's own login."""
        return authorize_request(
            challenge,
            host,
            base,
            repository,
            self.site,
            self._fetch,
            anonymous=self.anonymous,
            wanted=self.user,
        )


def _sent_on(answer: requests.Response, url: str) -> bool:
    """Whether ANSWER to URL came from another host, to which the registry has sent on."""
    return urlsplit(answer.url).netloc.lower() != urlsplit(url).netloc.lower()


def _wants_login(answer: requests.Response, url: str) -> bool:
    """Whether ANSWER to URL is the registry's own challenge."""
    return answer.status_code == 401 and not _sent_on(answer, url)


def preload_client() -> None:
    """What a request needs, loaded now: for a process that others come of."""
    import requests  # noqa: F401


def _some(answer: requests.Response, count: int) -> Iterator[bytes]:
    """The first COUNT bytes of an answer."""
    while count and (block := answer.raw.read(min(PIECE, count), decode_content=False)):
        count -= len(block)
        yield block
