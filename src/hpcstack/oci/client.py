"""The registry client.

It looks up digests and image configs with a few small requests, and streams layers.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import SplitResult, urljoin, urlsplit

from hpcstack.core.budget import Budget
from hpcstack.core.errors import InputError, NotInRegistry, RegistryError
from hpcstack.hardware.facts import read_facts_of
from hpcstack.oci.challenges import choose_challenge
from hpcstack.oci.config import MAX_CONFIG, MAX_MANIFEST, read_image_config_of
from hpcstack.oci.manifest import (
    DIGEST,
    Image,
    NotOffered,
    check_digest,
    find_manifest,
    list_platforms,
    list_unlabelled,
    read_image_config,
    read_platform,
)
from hpcstack.oci.protocol import (
    DOCKER_HUB,
    HEADERS_S,
    READ_S,
    Moving,
    call_within,
    choose_pause,
    content_of,
    explain_unreachable,
    is_address,
    is_this_machine,
    make_nonsense_error,
    make_push_refusal,
    make_refusal_error,
    make_refused_elsewhere,
    parse_answer,
    read_reason,
    read_repository,
    verify_digest,
)
from hpcstack.oci.rate import watch_rate
from hpcstack.oci.signed import MAX_STATEMENT, CosignStatement, list_statements, make_signature_tag
from hpcstack.oci.tokens import Authorization, authorize_request

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    import requests
    from requests.adapters import HTTPAdapter

    from hpcstack.core.progress import Say
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
TRIES, BACK_OFF = 4, 0.5  # attempts, and seconds before the second one; doubled each time
# Of lists: tags a page, pages, tags in all, referrers in all, bytes and seconds of all pages.
PAGE, MAX_PAGES, MAX_TAGS, MAX_REFERRERS = 1000, 50, 100_000, 10_000
MAX_LIST, LIST_S = 16 << 20, 300
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
# What reading a malformed answer raises.
NONSENSE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
PIECE = 1 << 20  # bytes of a layer that are read at once
BUSY = (429, 500, 502, 503, 504)  # statuses after which a request is tried again
# A token is replaced after this fraction of its life: the token server counts from when it issued
# the token, and its answer may have taken a while to get here.
RENEWED = 0.9
REDIRECTS = 6
STUCK_S = 120.0  # seconds for one read of a body in chunks
MAX_REASON = 64 << 10  # bytes that are read of an error
NO_SUCH_API = (400, 404, 405, 406, 501)  # to a request that a registry does not know


@dataclass(frozen=True)
class _Token:
    """An Authorization header for a registry, valid until `until` on the time.monotonic() clock."""

    header: str
    until: float


@dataclass(frozen=True)
class Answer:
    """What a registry says about one image, by platform (`linux/amd64`).

    `answered_by` is the registry that was asked, or its mirror. `index_digest` is the digest of the
    manifest that the image's tag or digest names: an index, or the only platform's manifest.
    `sizes` are the bytes of all layers as they are stored.
    """

    answered_by: str
    index_digest: str
    manifests: dict[str, str]
    configs: dict[str, dict[str, Any]]
    sizes: dict[str, int]


@dataclass(frozen=True)
class Ping:
    """What a registry at HOST answers to /v2/: an HTTP status, or the error that prevented one."""

    host: str
    status: int = 0
    error: str = ""


@dataclass(frozen=True)
class Sent:
    """What a registry answers to a request that changes something; its body is not read."""

    status: int
    headers: Mapping[str, str]
    url: str


class Registry:
    """A client for a site's registries and mirrors, with the user's own credentials.

    Credentials come from the file that the site names, or from the user's own login files
    (`oci/credentials.py`). They are sent only to the registry that they belong to, and to its token
    server. WARN is called with a message when a login is refused, and the image is requested
    without it.
    """

    def __init__(
        self,
        site: Site,
        *,
        timeout: float = 20,
        tries: int = TRIES,
        anonymous: bool = False,
        user: str = "",
        warn: Say | None = None,
    ) -> None:
        self.site, self.tries, self.anonymous, self.user = site, tries, anonymous, user
        self.tokens: dict[tuple[str, str], _Token] = {}
        self.hosts_here: set[str] = set()  # that were found to be this machine, by any name
        self.ignored: dict[str, Login] = {}  # by host: the login that its token server refused
        self.timeout, self.warn = timeout, warn

    @cached_property
    def bundle(self) -> str | None:
        """The file of trusted certificates, or None for those that requests brings.

        Raise InputError if the file does not exist. This is found out when the first request is
        made, so that verbs that ask no registry work without it.
        """
        found = (
            self.site.build.ca_bundle
            or os.environ.get("REQUESTS_CA_BUNDLE")
            or os.environ.get("CURL_CA_BUNDLE")
        )
        if found and not Path(found).exists():
            raise InputError(
                f"the CA bundle {found} does not exist",
                "correct build.ca_bundle in site.yaml, or $REQUESTS_CA_BUNDLE or $CURL_CA_BUNDLE",
                page="mirror-a-registry",
            )
        return found

    def look_up(self, base: Base) -> Answer:
        """Return the digests, configs and sizes of BASE for each platform that it names.

        Raise RegistryError if the registry has no image for one of them.
        """
        host, url = self.place(base)
        try:
            return self._look_up(base, host, url)
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(host)) from None

    def _look_up(self, base: Base, host: str, url: str) -> Answer:
        """Do what `look_up` says, but let errors of a malformed answer through."""
        reference = base.digest or base.tag
        top, body = self._manifest(url, reference, base, host)
        manifests = self._platforms(top, body, base, host, url)
        configs = {}
        sizes = {}
        for platform, digest in manifests.items():
            manifest = body
            if digest != top:
                _, manifest = self._manifest(url, digest, base, host)
            configs[platform] = read_image_config_of(
                self._config(url, manifest, base, host), base.image
            )
            sizes[platform] = sum(int(layer.get("size", 0)) for layer in manifest.get("layers", []))

        answered_by = self.site.registry(base.registry).mirror or base.registry
        return Answer(answered_by, top, manifests, configs, sizes)

    def facts(self, base: Base) -> dict[str, str]:
        """Return the versions in BASE, {CUDA: 13.0.2, ...}, from its first platform's config."""
        config = self.look_up(base).configs[base.platforms[0]]
        pairs = (entry.partition("=") for entry in (config.get("config") or {}).get("Env") or [])
        return read_facts_of({name: value for name, _, value in pairs})

    def digest(self, base: Base) -> str:
        """Return the digest that BASE's tag points to now, or BASE's own digest if it has one.

        Either way the registry is asked, so the answer also means that the user may read the image.
        Raise RegistryError if not. The request is a HEAD, which Docker Hub does not count as a
        pull.
        """
        host, url = self.place(base)
        reference = base.digest or base.tag
        accept = (*INDEXES, *MANIFESTS)
        answer, _ = self._get(f"{url}/manifests/{reference}", accept, base, host, method="HEAD")
        answer.close()
        found = answer.headers.get("Docker-Content-Digest", "")
        if DIGEST.fullmatch(found) and found == (base.digest or found):
            return found

        # A proxy's login page also answers 200, but without the digest: read the manifest itself.
        digest, _ = self._manifest(url, reference, base, host)
        return digest

    def image(self, base: Base, platform: str) -> Image:
        """Return the manifest and config of BASE for PLATFORM, with its layers.

        Raise RegistryError if the registry has no image for PLATFORM.
        """
        host, url = self.place(base)
        try:
            top, body = self._manifest(url, base.digest or base.tag, base, host)
            if "manifests" in body:
                top, body = self._find_manifest(url, body, platform, base, host)
            config = read_image_config_of(self._config(url, body, base, host), base.image)
            found = read_image_config(top, body, config)
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(host)) from None

        # The platform in an index is only a label: the image's own config has the last word.
        if found.platform != platform:
            raise RegistryError(
                f"{host} has {base.image} for {found.platform}, not for {platform}",
                page="import-a-base-image",
            )
        return found

    def image_documents(self, base: Base, platform: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the manifest and the config of BASE for PLATFORM, as the registry has them.

        Raise RegistryError if the registry has no image for PLATFORM.
        """
        found = self.image(base, platform)
        host, url = self.place(base)
        try:
            _, manifest = self._manifest(url, found.digest, base, host)
            return manifest, self._config(url, manifest, base, host)
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(host)) from None

    def blob(self, base: Base, digest: str, start: int) -> Iterator[bytes]:
        """Yield the bytes of the layer DIGEST from offset START until the registry ends them.

        Raise RegistryError if the connection breaks off.
        """
        import requests
        from urllib3.exceptions import HTTPError

        host, url = self.place(base)
        ranged = {}
        if start:
            ranged["Range"] = f"bytes={start}-"
        answer, _ = self._get(f"{url}/blobs/{digest}", (), base, host, more=ranged)
        with answer:
            asked = urlsplit(answer.url).netloc
            try:
                if start and answer.status_code != 206:
                    # The registry ignores ranges and sends the whole layer: skip what we have.
                    _skip_first(answer, start, asked)
                yield from watch_rate(lambda: _read_piece(answer, PIECE, asked), asked)
            except (requests.RequestException, HTTPError, OSError, ValueError) as error:
                raise RegistryError(*explain_unreachable(host, base, error, asked)) from None

    def reach_layers(self, base: Base) -> str:
        """Fetch one byte of BASE's smallest layer, and return the host that sent it.

        Registries often redirect layers to another host, which a firewall may block. Raise
        RegistryError if it cannot be reached.
        """
        host, url = self.place(base)
        smallest = min(self.image(base, base.platforms[0]).layers, key=lambda layer: layer.size)
        answer, _ = self._get(
            f"{url}/blobs/{smallest.digest}", (), base, host, more={"Range": "bytes=0-0"}
        )
        with answer:
            return urlsplit(answer.url).netloc

    def statements(self, base: Base, digest: str) -> list[CosignStatement]:
        """Return the cosign signatures that lie beside the image DIGEST; an empty list for none."""
        host, url = self.place(base)
        try:
            _, manifest = self._manifest(url, make_signature_tag(digest), base, host)
        except NotInRegistry:
            return []
        try:
            return [
                CosignStatement(self._blob(url, statement, base, host, MAX_STATEMENT), signature)
                for statement, signature in list_statements(manifest)
            ]
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(host)) from None

    def fetch_attached(self, base: Base, digest: str, subject: str, limit: int) -> bytes | None:
        """Return the one file of the manifest DIGEST, which is attached to SUBJECT.

        None where it has more than LIMIT bytes, or the manifest is attached to something else, is
        gone, or holds more files than one.
        """
        host, url = self.place(base)
        try:
            _, manifest = self._manifest(url, check_digest(digest), base, host)
            (layer,) = manifest["layers"]
            if manifest["subject"]["digest"] != subject:
                raise ValueError("it is attached to something else")
            if int(layer["size"]) > limit:
                return None
            return self._blob(url, check_digest(layer["digest"]), base, host, limit)
        except (NotInRegistry, *NONSENSE):
            return None

    def fetch_referrers(self, base: Base, digest: str) -> list[dict[str, Any]] | None:
        """Return what the referrers API lists of the manifest DIGEST, page by page.

        None where the registry has no such API. Raise RegistryError where it does not answer.
        """
        host, url = self.place(base)
        following = f"{url}/referrers/{digest}"
        out: list[dict[str, Any]] = []
        budget = _make_list_budget(host, MAX_REFERRERS)
        for _ in range(MAX_PAGES):
            answer, content = self._get(
                following, INDEXES[:1], base, host, MAX_MANIFEST, also=NO_SUCH_API
            )
            if answer.status_code in NO_SUCH_API and not out:
                return None
            budget.take_bytes(len(content))
            listed = list(parse_answer(content, host, MAX_MANIFEST).get("manifests") or [])
            budget.take_entries(len(listed))
            out += listed
            link = answer.links.get("next", {}).get("url", "")
            following = urljoin(following, link)
            # Another host must not be asked, least of all with the token of this one.
            if not link or urlsplit(following)[:2] != urlsplit(url)[:2]:
                break
        return out

    def fetch_small(self, url: str, accept: tuple[str, ...], base: Base) -> bytes:
        """Return what BASE's registry answers to URL, at most MAX_MANIFEST bytes."""
        host, _ = self.place(base)
        _, content = self._get(url, accept, base, host, MAX_MANIFEST)
        return content

    def tags(self, base: Base) -> list[str]:
        """Return all tags of BASE's repository, in the registry's own order.

        Whatever is not a valid tag is left out.
        """
        host, url = self.place(base)
        try:
            return self._tags(base, host, url)
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(host)) from None

    def _tags(self, base: Base, host: str, url: str) -> list[str]:
        """Collect the tag list page by page, following `Link: <...>; rel="next"`."""
        out: list[str] = []
        following = f"{url}/tags/list?n={PAGE}"
        budget = _make_list_budget(f"{host}, asked for the tags of {base.repository},", MAX_TAGS)
        for _ in range(MAX_PAGES):
            answer, content = self._get(following, (), base, host, MAX_MANIFEST)
            budget.take_bytes(len(content))
            listed = parse_answer(content, host, MAX_MANIFEST).get("tags") or []
            if not isinstance(listed, list):
                raise TypeError("tags are a list")
            budget.take_entries(len(listed))
            out += [tag for tag in listed if isinstance(tag, str) and TAG.fullmatch(tag)]

            link = answer.links.get("next", {}).get("url", "")
            if not link:
                return out
            following = urljoin(following, link)
            # Another host must not be asked, least of all with the token of this one.
            if urlsplit(following)[:2] != urlsplit(url)[:2]:
                raise RegistryError(
                    f"{host} continues its list of tags at {urlsplit(following).netloc}, which is "
                    "not asked",
                    "tell the registry's admin",
                )
        raise RegistryError(
            f"{host} lists the tags of {base.repository} on more than {MAX_PAGES} pages",
            "tell the registry's admin",
        )

    def ping(self, name: str) -> Ping:
        """Ask the registry NAME, or its mirror, for /v2/. Errors are returned, not raised."""
        import requests

        entry = self.site.registry(name)
        host = (entry.mirror or name).partition("/")[0]
        try:
            with self._fetch(f"{make_origin(host, plain_http=entry.plain_http)}/v2/") as found:
                return Ping(host, found.status_code)
        except (requests.RequestException, ValueError) as error:
            return Ping(host, error=type(error).__name__)

    def wants_basic(self, base: Base) -> bool:
        """Return whether BASE's registry asks for a password itself, instead of for a token."""
        import requests

        host, url = self.place(base)
        try:
            with self._fetch(f"{url.partition('/v2/')[0]}/v2/", allow_redirects=False) as answer:
                way = choose_challenge(answer.headers.get("WWW-Authenticate", ""))
                return way is not None and way.scheme == "basic"
        except (requests.RequestException, ValueError) as error:
            raise RegistryError(*explain_unreachable(host, base, error)) from None

    def place(self, base: Base) -> tuple[str, str]:
        """Return the host that is asked for BASE, and the URL of its repository there.

        A mirror may have a path, which comes before the repository's own.
        """
        entry = self.site.registry(base.registry)
        host, _, path = (entry.mirror or base.registry).partition("/")
        repository = f"{path}/{base.repository}".lstrip("/")

        # An HTTP client would fold `..` away, and so leave the mirror's project.
        if {".", ".."} & set(repository.split("/")):
            raise InputError(
                f"{repository!r} is not a valid repository name",
                "correct the mirror under registries in site.yaml, or the image's name",
                page="mirror-a-registry",
            )
        return host, f"{make_origin(host, plain_http=entry.plain_http)}/v2/{repository}"

    def _platforms(
        self, top: str, body: dict[str, Any], base: Base, host: str, url: str
    ) -> dict[str, str]:
        """Return {platform: digest} for the platforms that BASE names.

        BODY is the manifest or index with the digest TOP. Raise RegistryError if a platform is
        missing.
        """
        if "manifests" not in body:
            config = read_image_config_of(self._config(url, body, base, host), base.image)
            have = {read_platform(config): top}
        else:
            have = list_platforms(body, self.site.cpu_levels)
            if list_unlabelled(body):
                for name in base.platforms:
                    have[name], _ = self._find_manifest(url, body, name, base, host)

        missing = [name for name in base.platforms if name not in have]
        if missing:
            there = ", ".join(sorted(have)) or "no such nodes"
            of_any = list_platforms(body) if "manifests" in body else {}
            hint = "change base.platforms in the recipe"
            if any(name in of_any for name in missing):
                hint = "it wants more of processors than `cpu` of site.yaml says: take another base"
            raise RegistryError(
                f"{host} has {base.image} for {there}, not for {', '.join(missing)}",
                hint,
                page="two-architectures",
            )
        return {name: have[name] for name in base.platforms}

    def _find_manifest(
        self, url: str, index: Mapping[str, Any], platform: str, base: Base, host: str
    ) -> tuple[str, dict[str, Any]]:
        """Return (digest, manifest) of BASE for PLATFORM in INDEX. Raise RegistryError without one."""

        def fetch(digest: str) -> dict[str, Any]:
            return self._manifest(url, digest, base, host)[1]

        def platform_of(manifest: Mapping[str, Any]) -> str:
            return read_platform(self._config(url, manifest, base, host))

        try:
            digest, found = find_manifest(index, platform, fetch, platform_of, self.site.cpu_levels)
        except NotOffered as error:
            raise RegistryError(
                f"{host} has {base.image}: {error}", page="import-a-base-image"
            ) from None
        return digest, dict(found)

    def _manifest(
        self, url: str, reference: str, base: Base, host: str
    ) -> tuple[str, dict[str, Any]]:
        """Return the digest and content of the manifest or index REFERENCE, a tag or a digest."""
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
        """Return the config that MANIFEST names, as the registry has it."""
        digest = check_digest(manifest["config"]["digest"])
        return parse_answer(self._blob(url, digest, base, host, MAX_CONFIG), host, MAX_CONFIG)

    def _blob(self, url: str, digest: str, base: Base, host: str, limit: int) -> bytes:
        """Return the blob DIGEST, at most LIMIT bytes, verified against its digest."""
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
        also: tuple[int, ...] = (),
    ) -> tuple[requests.Response, bytes]:
        """Request URL, with a token if the registry asks for one; retry while it is busy.

        Return the response and its body, at most LIMIT bytes. Without a limit the body is empty
        here, and the caller reads it from the response. Raise RegistryError for any status but 200,
        206 and those of ALSO, and if the registry cannot be reached after `tries` attempts.
        """
        import requests
        from urllib3.exceptions import HTTPError

        content = b""
        for attempt in range(self.tries):
            try:
                if limit:
                    answer, content = self._small(url, accept, base, host, limit)
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

        if answer.status_code in (200, 206, *also):
            return answer, content
        answer.close()
        if _came_from_elsewhere(answer, url):
            raise make_refused_elsewhere(
                answer.status_code, urlsplit(answer.url).netloc, host, base
            )
        raise make_refusal_error(answer.status_code, host, base, self.ignored.get(host))

    def send(
        self,
        base: Base,
        method: str,
        url: str,
        wanted: tuple[int, ...],
        *,
        headers: Mapping[str, str] | None = None,
        tries: int = 0,
        **how: Any,
    ) -> Sent:
        """Send a request to BASE's registry; retry while it is busy or cannot be reached.

        No redirect is followed. There are at most TRIES attempts, or as many as for others. HOW is
        for `_once`. Raise RegistryError for a status that is not one of WANTED.
        """
        import requests
        from urllib3.exceptions import HTTPError

        host, _ = self.place(base)
        how["allow_redirects"] = False
        tries = tries or self.tries
        for attempt in range(tries):
            is_last = attempt + 1 == tries
            try:
                answer = self._once(url, (), base, host, more=headers, method=method, **how)
            except (requests.RequestException, HTTPError, OSError, ValueError) as error:
                if is_last:
                    raise RegistryError(*explain_unreachable(host, base, error)) from None
            else:
                with answer:
                    if answer.status_code in wanted:
                        return Sent(answer.status_code, answer.headers, answer.url)
                    if answer.status_code not in BUSY or is_last:
                        said = read_reason(_read_reason_of(answer, host))
                        raise make_push_refusal(answer.status_code, host, base, said)
            time.sleep(BACK_OFF * 2**attempt)
        raise AssertionError("no attempt was made")

    def _small(
        self, url: str, accept: tuple[str, ...], base: Base, host: str, limit: int
    ) -> tuple[requests.Response, bytes]:
        """Request URL once, and read its body, at most LIMIT bytes; that of an error is left."""
        answer = self._once(url, accept, base, host)
        if answer.status_code not in (200, 206):
            return answer, b""
        return answer, content_of(answer, limit, host)

    def _fetch(self, url: str, method: str = "GET", **how: Any) -> requests.Response:
        """Send one request, and follow its redirects to where `_may_follow` allows.

        The Authorization header goes to no other host. The body is not read yet. Raise RegistryError
        for a redirect that is not followed, and for more than REDIRECTS of them.
        """
        follow = how.pop("allow_redirects", True)
        led_by = ""  # the host that has led here
        for _ in range(REDIRECTS):
            answer = self._request(url, method, led_by=led_by, **how)
            if not (follow and answer.is_redirect):
                return answer
            target = urljoin(url, answer.headers["Location"])
            answer.close()

            here, there = urlsplit(url), urlsplit(target)
            if here[:2] != there[:2]:  # another scheme or host
                if not self._may_follow(here, there):
                    self._refuse_redirect(here.netloc, f"{there.scheme}://{there.netloc}")
                headers = dict(how.get("headers", {}))
                headers.pop("Authorization", None)
                how = {**how, "headers": headers, "auth": None}
                led_by = here.netloc
            url = target
        raise RegistryError(
            f"{urlsplit(url).netloc} redirects again and again", "tell the registry's admin"
        )

    def _may_follow(self, here: SplitResult, there: SplitResult) -> bool:
        """Return whether a redirect from HERE may lead THERE, to another host.

        What a registry names is asked in our name, from where we are: it must not be this machine,
        unless the registry is. A registry that speaks plain http, or is an address, may have its
        storage at an address, too.
        """
        name = there.hostname or ""
        if there.scheme == "https" and not is_address(name):
            return True
        is_within_a_site = here.scheme == "http" or is_address(here.hostname or "")
        is_ours = is_this_machine(name) and not is_this_machine(here.hostname or "")
        is_downgrade = (here.scheme, there.scheme) == ("https", "http")
        return is_within_a_site and not is_ours and not is_downgrade

    def _refuse_redirect(self, host: str, target: str) -> NoReturn:
        raise RegistryError(
            f"{host} redirects to {target}, which is not followed", "tell the registry's admin"
        )

    def _look_at_peer(self, host: str, peer: str, led_by: str) -> None:
        """Note that HOST is at the address PEER. Raise RegistryError where LED_BY led to it wrongly.

        What a registry names must not be this machine, by whatever name, unless the registry is.
        """
        is_ours = is_this_machine(peer)
        self.hosts_here.update({host} if is_ours else ())
        if led_by and is_ours and led_by not in self.hosts_here:
            self._refuse_redirect(led_by, f"{host}, which is {peer}")

    def _request(self, url: str, method: str, led_by: str = "", **how: Any) -> requests.Response:
        """Send one request, through the site's proxy or else the environment's.

        LED_BY is the host whose redirect this is. No redirect is followed, and the body is not read
        yet.
        """
        import requests

        proxy = self.site.build.proxy
        proxies = {}
        if not requests.utils.should_bypass_proxies(url, no_proxy=proxy.no or None):
            pairs = (("http", proxy.http), ("https", proxy.https))
            of_site = {name: value for name, value in pairs if value}
            proxies = of_site or requests.utils.get_environ_proxies(url)

        with requests.Session() as session:
            # With trust_env requests would read ~/.netrc, whose login would replace our token.
            session.trust_env = False
            host = urlsplit(url).netloc
            adapter = make_peer_adapter(lambda peer: self._look_at_peer(host, peer, led_by))
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            # Blobs are checked byte by byte against their digests: nothing may compress them.
            how["headers"] = {"Accept-Encoding": "identity", **how.get("headers", {})}
            how |= {
                "proxies": proxies,
                "verify": self.bundle or True,
                "timeout": how.get("timeout", self.timeout),
                "stream": True,
                "allow_redirects": False,
            }
            data = how.get("data")
            timeout = how["timeout"]
            if data is None:
                seconds = HEADERS_S
            elif isinstance(timeout, tuple):
                seconds = timeout[1]  # what the peer may take to store it
            else:
                seconds = READ_S
            # The timeout covers only the wait for the next byte of the headers.
            return call_within(
                seconds,
                host,
                lambda: session.request(method, url, **how),
                (lambda: data.moved) if isinstance(data, Moving) else None,
            )

    def _once(
        self,
        url: str,
        accept: tuple[str, ...],
        base: Base,
        host: str,
        *,
        more: Mapping[str, str] | None = None,
        method: str = "GET",
        **how: Any,
    ) -> requests.Response:
        """Request URL without retries, and answer the registry's challenge if there is one.

        HOW is for `_fetch`, but that a `body` in it is called for each request, to give its data.
        """
        headers = dict(more or {})
        if accept:
            headers = {"Accept": ", ".join(accept), **headers}
        key = (host, base.repository)
        token = self._valid_token(key)
        answer = self._ask(url, headers, token, method, **how)

        # Do not follow the challenge that an expired token gets: nvcr.io then names a token server
        # that serves nobody without a login (NVIDIA/nvidia-container-toolkit 1945). Ask again
        # without a token, and follow that challenge.
        if token and _is_challenge(answer, url):
            answer.close()
            self._forget(key, token)
            answer = self._ask(url, headers, None, method, **how)
        if not _is_challenge(answer, url):
            return answer

        answer.close()
        challenge = answer.headers.get("WWW-Authenticate", "")
        granted = self.authorization(challenge, host, base, read_repository(url))
        token = self._keep_token(key, granted, base)
        return self._ask(url, headers, token, method, **how)

    def _ask(
        self,
        url: str,
        headers: Mapping[str, str],
        token: _Token | None,
        method: str,
        *,
        body: Callable[[], Any] | None = None,
        **how: Any,
    ) -> requests.Response:
        """Send one request, with TOKEN's header if there is a token."""
        shown = dict(headers)
        if token:
            shown["Authorization"] = token.header
        if body:
            how["data"] = body()
        return self._fetch(url, method, headers=shown, **how)

    def _valid_token(self, key: tuple[str, str]) -> _Token | None:
        """Return the token kept for KEY, or None if there is none or it has expired."""
        token = self.tokens.get(key)
        if token and time.monotonic() < token.until:
            return token
        return None

    def _forget(self, key: tuple[str, str], token: _Token) -> None:
        """Drop TOKEN, but keep a newer one that another thread may have got meanwhile."""
        if self.tokens.get(key) is token:
            self.tokens.pop(key, None)

    def _keep_token(self, key: tuple[str, str], granted: Authorization, base: Base) -> _Token:
        """Keep GRANTED for KEY, and return it. Warn once a host if it was got without the login."""
        host, _ = key
        ignored = granted.ignored
        if ignored and host not in self.ignored:
            self.ignored[host] = ignored
            if self.warn:
                self.warn(
                    f"{host} refuses the login in {ignored.source}: requesting {base.image} "
                    "without a login"
                )
        token = _Token(granted.header, time.monotonic() + RENEWED * granted.lives_s)
        self.tokens[key] = token
        return token

    def list_scopes(self, repository: str) -> list[str]:
        """Return what a token for REPOSITORY must allow, as token servers write it."""
        return [f"repository:{repository}:pull"]

    def authorization(
        self, challenge: str, host: str, base: Base, repository: str
    ) -> Authorization:
        """Return what answers a 401 from HOST, based on the user's own login."""
        return authorize_request(
            challenge,
            host,
            base,
            self.list_scopes(repository),
            self.site,
            self._fetch,
            anonymous=self.anonymous,
            wanted=self.user,
        )


def make_peer_adapter(look_at: Callable[[str], None]) -> HTTPAdapter:
    """Return what opens connections, and calls LOOK_AT with the address at the other end of each.

    A name says nothing of where it leads: whoever runs its domain decides, anew for each question.
    So the address is looked at on the connection itself, before anything is sent; what LOOK_AT
    raises ends the request. Connections through a proxy are not looked at: their other end is it.
    """
    from requests.adapters import HTTPAdapter as Adapter
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            made = super()._new_conn()
            look_at(str(made.getpeername()[0]))
            return made

    class Encrypted(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            made = super()._new_conn()
            look_at(str(made.getpeername()[0]))
            return made

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class EncryptedPool(HTTPSConnectionPool):
        ConnectionCls = Encrypted

    adapter = Adapter()
    adapter.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": EncryptedPool}
    return adapter


def make_origin(host: str, *, plain_http: bool) -> str:
    """Return the scheme and host under which the registry HOST answers."""
    scheme = "http" if plain_http else "https"
    if host == "docker.io":
        host = DOCKER_HUB
    return f"{scheme}://{host}"


def _make_list_budget(peer: str, entries: int) -> Budget:
    """Return what PEER may send in all pages of a list of ENTRIES at most."""
    hint = "tell the registry's admin"
    return Budget(peer, RegistryError, hint, MAX_LIST, entries=entries, seconds=LIST_S)


def _came_from_elsewhere(answer: requests.Response, url: str) -> bool:
    """Return whether the request for URL was redirected, so that another host sent ANSWER."""
    return urlsplit(answer.url).netloc.lower() != urlsplit(url).netloc.lower()


def _is_challenge(answer: requests.Response, url: str) -> bool:
    """Return whether ANSWER to URL is a 401 of the registry itself."""
    return answer.status_code == 401 and not _came_from_elsewhere(answer, url)


def preload_client() -> None:
    """Load what a request needs now, so that processes forked later need not."""
    import requests  # noqa: F401


def _read_reason_of(answer: requests.Response, host: str) -> bytes:
    """Return the body of ANSWER, an error; nothing where it is too long, or does not end."""
    try:
        return content_of(answer, MAX_REASON, host)
    except RegistryError:
        return b""


def _read_piece(answer: requests.Response, most: int, host: str) -> bytes:
    """Return what has come of ANSWER's body, at most MOST bytes; empty at its end.

    A body in chunks may end in trailers that do not: one read of them is waited for STUCK_S
    seconds. Registries send layers whole, with their length.
    """

    def read() -> bytes:
        return bytes(answer.raw.read1(most, decode_content=False))

    if not answer.raw.chunked:
        return read()
    return call_within(STUCK_S, host, read)


def _skip_first(answer: requests.Response, count: int, host: str) -> None:
    """Read the first COUNT bytes of ANSWER's body. Raise TooSlow where they hardly come."""

    def read() -> bytes:
        nonlocal count
        block = _read_piece(answer, min(PIECE, count), host) if count else b""
        count -= len(block)
        return block

    for _ in watch_rate(read, host):
        pass
