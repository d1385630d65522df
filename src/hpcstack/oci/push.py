"""Put an image, and what is said of it, into a registry.

What the registry has is not sent again: layers of another of its repositories are mounted, and a
blob or a manifest that is there is left. So an interrupted push can simply be repeated, and nothing
of it is visible before its tag, which comes last.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md (pushing blobs and manifests,
mounting, listing referrers; the fallback for registries without the referrers API).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit, urlunsplit

from hpcstack.core.errors import LoginRefused, NotInRegistry, RegistryError
from hpcstack.oci.client import BACK_OFF, INDEXES, MANIFESTS, NONSENSE, Registry, make_origin
from hpcstack.oci.config import MAX_MANIFEST
from hpcstack.oci.manifest import check_digest, list_platforms, read_platform
from hpcstack.oci.protocol import make_nonsense_error, parse_answer, verify_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcstack.core.progress import Say
    from hpcstack.oci.client import Sent
    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
EMPTY = b"{}"  # the config of what is no image
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
STORING_S = 900  # seconds that a registry may take to store a blob, after the last byte was sent
MAX_LAYERS = 1000
REDIRECTS = (301, 302, 303, 307, 308)
OURS = "org.hpcstack.attached"  # an annotation of what a push has attached


def digest_bytes(content: bytes) -> str:
    """Return the digest of CONTENT, as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class Descriptor:
    """A reference to content in a registry."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    annotations: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as the specification writes it."""
        out: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.artifact_type:
            out["artifactType"] = self.artifact_type
        if self.annotations:
            out["annotations"] = self.annotations
        return out


class PushRegistry(Registry):
    """A client that may also write to the repository of TARGET.

    `sent` counts the bytes of all blobs and manifests that were uploaded. Mirrors are for reading:
    what is written goes to the registry itself.
    """

    def __init__(self, site: Site, target: Base, *, warn: Say | None = None) -> None:
        super().__init__(site, warn=warn)
        self.target = target
        self.sent = 0
        self.sources: set[str] = set()  # repositories of the registry that layers are mounted from
        entry = site.registry(target.registry)
        self.host = target.registry
        # Where there is a mirror, what the site says of plain http is about that.
        plain_http = entry.plain_http and not entry.mirror
        self.url = f"{make_origin(self.host, plain_http=plain_http)}/v2/{target.repository}"

    def place(self, base: Base) -> tuple[str, str]:
        """Return the host and the URL of BASE's repository; for the target, without a mirror."""
        if (base.registry, base.repository) == (self.target.registry, self.target.repository):
            return self.host, self.url
        return super().place(base)

    def list_scopes(self, repository: str) -> list[str]:
        """Return what a token for REPOSITORY must allow, as token servers write it.

        For the target, that is to push to it, and to read what is mounted.
        """
        own = self.target.repository
        if repository != own and not repository.startswith(f"{own}/"):
            return super().list_scopes(repository)
        others = sorted(self.sources - {own})
        return [f"repository:{own}:pull,push", *(f"repository:{one}:pull" for one in others)]

    # -- blobs

    def has_blob(self, digest: str) -> bool:
        """Return whether the target has the blob DIGEST."""
        # A registry that keeps blobs elsewhere sends us there, if it has the blob.
        wanted = (200, 404, *REDIRECTS)
        answer = self.send(self.target, "HEAD", f"{self.url}/blobs/{digest}", wanted)
        return answer.status != 404

    def mount_blob(self, digest: str, source: str) -> bool:
        """Let the target have the blob DIGEST of SOURCE, another repository of the same registry.

        Return whether the registry did so. It may not have the blob, or not let us read it there.
        """
        if source not in self.sources:
            self.sources.add(source)
            self.tokens.clear()  # a token must allow to read the source, too
        query = urlencode({"mount": digest, "from": source})
        place = f"{self.url}/blobs/uploads/?{query}"
        try:
            answer = self.send(self.target, "POST", place, (201, 202, 404))
        except LoginRefused:  # we may not read there: ask for no such token again
            self.sources.discard(source)
            self.tokens.clear()
            return False
        if answer.status == 202:  # an upload has begun instead: it is not wanted
            self.send(self.target, "DELETE", self._find_location(answer), (204, 202, 200, 404, 405))
        return answer.status == 201

    def upload_blob(
        self,
        digest: str,
        size: int,
        open_blob: Callable[[], BinaryIO],
        on_bytes: Callable[[int], None],
    ) -> bool:
        """Upload the blob DIGEST of SIZE bytes, which OPEN_BLOB opens, unless it is there.

        Return whether it was sent. ON_BYTES is told how many bytes are on their way. An upload that
        breaks off is begun anew: the registry may have taken a part of it.
        """
        for attempt in range(self.tries):
            if self.has_blob(digest):
                return attempt > 0
            try:
                self._upload_once(digest, size, open_blob, on_bytes)
            except LoginRefused:
                raise
            except RegistryError:
                if attempt + 1 == self.tries:
                    raise
                time.sleep(BACK_OFF * 2**attempt)
            else:
                break
        self.sent += size
        return True

    def _upload_once(
        self,
        digest: str,
        size: int,
        open_blob: Callable[[], BinaryIO],
        on_bytes: Callable[[int], None],
    ) -> None:
        """Begin an upload, and send the blob DIGEST in one request."""
        began = self.send(self.target, "POST", f"{self.url}/blobs/uploads/", (202,))
        place = self._find_location(began)
        parts = urlsplit(place)
        query = "&".join(filter(None, [parts.query, urlencode({"digest": digest})]))
        self.send(
            self.target,
            "PUT",
            urlunsplit(parts._replace(query=query)),
            (201, 204),
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
            body=lambda: _Watched(open_blob(), size, on_bytes),
            timeout=(self.timeout, STORING_S),
            tries=1,
        )

    def upload_bytes(self, content: bytes, media_type: str) -> Descriptor:
        """Upload CONTENT as a blob, unless it is there. Return its descriptor."""
        digest = digest_bytes(content)
        self.upload_blob(digest, len(content), lambda: io.BytesIO(content), lambda _: None)
        return Descriptor(media_type, digest, len(content))

    # -- manifests

    def put_manifest(self, manifest: dict[str, Any], tag: str = "") -> Descriptor:
        """Store MANIFEST under TAG, or under its digest alone. Return its descriptor.

        Where it has a `subject`, the registry, or else the list of referrers under the subject's
        fallback tag, leads from there to it.
        """
        content = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        digest = digest_bytes(content)
        media_type = manifest["mediaType"]
        answer = self.send(
            self.target,
            "PUT",
            f"{self.url}/manifests/{tag or digest}",
            (201, 202),
            headers={"Content-Type": media_type},
            body=lambda: content,
        )
        stored = answer.headers.get("Docker-Content-Digest", digest)
        if stored != digest:
            raise RegistryError(
                f"{self.host} stored {tag or digest} as {stored[:80]}, not as {digest}",
                "tell the registry's admin: it changes manifests",
            )
        self.sent += len(content)

        found = Descriptor(
            media_type,
            digest,
            len(content),
            manifest.get("artifactType", ""),
            manifest.get("annotations", {}),
        )
        subject = manifest.get("subject")
        if subject and not answer.headers.get("OCI-Subject"):
            self._add_to_fallback(subject["digest"], found)
        return found

    def put_manifest_again(self, there: Descriptor, tag: str) -> None:
        """Let TAG mean the manifest THERE, which the target has."""
        content = self.fetch_small(
            f"{self.url}/manifests/{there.digest}", (there.media_type,), self.target
        )
        verify_digest(content, there.digest, self.host)
        self.send(
            self.target,
            "PUT",
            f"{self.url}/manifests/{tag}",
            (201, 202),
            headers={"Content-Type": there.media_type},
            body=lambda: content,
        )
        self.sent += len(content)

    def list_tagged(self, tag: str) -> dict[str, Descriptor]:
        """Return {platform: manifest} of what TAG means now; {} where there is no such tag."""
        try:
            content = self.fetch_small(
                f"{self.url}/manifests/{tag}", (*INDEXES, *MANIFESTS), self.target
            )
            found = parse_answer(content, self.host, MAX_MANIFEST)
            if "manifests" not in found:
                config = self._config(self.url, found, self.target, self.host)
                kind = str(found.get("mediaType", OCI_MANIFEST))
                one = Descriptor(kind, digest_bytes(content), len(content))
                return {read_platform(config): one}
            return {
                name: Descriptor(
                    str(one["mediaType"]), check_digest(one["digest"]), int(one["size"])
                )
                for one in found["manifests"]
                for name in list_platforms({"manifests": [one]})
            }
        except NotInRegistry:
            return {}
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(self.host)) from None

    def list_layers(self, tag: str, limit: int) -> list[tuple[dict[str, Any], bytes | None]]:
        """Return (layer, its content) of the manifest under TAG; nothing where there is none.

        The content is None for a layer of more than LIMIT bytes, or that cannot be read.
        """
        try:
            _, manifest = self._manifest(self.url, tag, self.target, self.host)
        except NotInRegistry:
            return []
        out: list[tuple[dict[str, Any], bytes | None]] = []
        for layer in list(manifest.get("layers") or [])[:MAX_LAYERS]:
            content = None
            with contextlib.suppress(RegistryError, *NONSENSE):
                digest = check_digest(layer["digest"])
                content = self._blob(self.url, digest, self.target, self.host, limit)
            out.append((layer, content))
        return out

    def _add_to_fallback(self, subject: str, referrer: Descriptor) -> None:
        """Add REFERRER to the index under the fallback tag of SUBJECT.

        What an earlier push has said of the same kind is replaced. What others have attached stays,
        and what was signed stays beside what is not.
        """
        tag = make_fallback_tag(subject)
        try:
            _, index = self._manifest(self.url, tag, self.target, self.host)
            there = list(index.get("manifests") or [])
        except NotInRegistry:
            there = []
        except NONSENSE:
            raise RegistryError(*make_nonsense_error(self.host)) from None
        mine = referrer.as_dict()
        kept = [one for one in there if not _is_replaced(one, mine)]
        manifests = [*kept, mine]
        self.put_manifest({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}, tag)

    def attach(
        self,
        subject: Descriptor,
        artifact_type: str,
        content: bytes,
        name: str,
        media_type: str,
        *,
        signed: bool = False,
    ) -> Descriptor:
        """Attach CONTENT, a file called NAME, to the manifest SUBJECT as a referrer of its own.

        SIGNED says whether a signature vouches for it. Return the descriptor of the referrer's
        manifest.
        """
        layer = self.upload_bytes(content, media_type)
        config = self.upload_bytes(EMPTY, EMPTY_TYPE)
        titled = {**layer.as_dict(), "annotations": {"org.opencontainers.image.title": name}}
        return self.put_manifest(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "artifactType": artifact_type,
                "config": config.as_dict(),
                "layers": [titled],
                "annotations": {OURS: "signed" if signed else "unsigned"},
                "subject": Descriptor(subject.media_type, subject.digest, subject.size).as_dict(),
            }
        )

    def _find_location(self, answer: Sent) -> str:
        """Return where ANSWER says that an upload goes on.

        Raise RegistryError where that is at another host, which must not get our token.
        """
        location = answer.headers.get("Location", "")
        place = urlsplit(urljoin(answer.url, location))
        own = urlsplit(self.url)
        if not location or _find_address(place) != _find_address(own):
            raise RegistryError(
                f"{self.host} continues the upload at {place.netloc or 'no place'}, which is not "
                "asked",
                "tell the registry's admin: it may not know its own address behind a proxy",
            )
        # Behind a proxy that ends TLS, a registry may name itself by http.
        return urlunsplit(place._replace(scheme=own.scheme, netloc=own.netloc))


class _Watched:
    """A blob that is read while it is sent; ON_BYTES is told how much has been."""

    def __init__(self, file: BinaryIO, size: int, on_bytes: Callable[[int], None]) -> None:
        self.file, self.size, self.on_bytes = file, size, on_bytes
        self.done = 0
        self.moved = time.monotonic()

    def __len__(self) -> int:
        return self.size

    def read(self, count: int = -1) -> bytes:
        data = self.file.read(count)
        if not data and self.done < self.size and count:
            raise OSError(f"the blob ends after {self.done} of {self.size} bytes")
        self.done += len(data)
        self.moved = time.monotonic()
        self.on_bytes(self.done)
        return data


def _find_address(place: SplitResult) -> tuple[str, int | None]:
    """Return the host and port that PLACE names; without a port, that of its scheme."""
    try:
        port = place.port
    except ValueError:
        return "", None
    if port in (80, 443):
        port = None
    return place.hostname or "", port


def _is_replaced(there: Any, mine: dict[str, Any]) -> bool:
    """Return whether MINE, a descriptor of ours, takes the place of THERE in a list of referrers."""
    if not isinstance(there, dict) or there.get("digest") == mine["digest"]:
        return True
    same_kind = there.get("artifactType") == mine.get("artifactType")
    notes = there.get("annotations")
    marked = notes.get(OURS) if isinstance(notes, dict) else None
    return same_kind and marked == mine["annotations"][OURS]


def make_fallback_tag(digest: str) -> str:
    """Return the tag that lists the referrers of DIGEST, where a registry has no API for them."""
    return digest.replace(":", "-")


def list_referrers(registry: Registry, base: Base, digest: str) -> list[dict[str, Any]]:
    """Return the descriptors of what refers to the manifest DIGEST of BASE's repository.

    They come from the referrers API, or from the fallback tag where the registry has none. What is
    no descriptor is left out.
    """
    host, url = registry.place(base)
    try:
        found = registry.fetch_referrers(base, digest)
        if found is None:
            tag = make_fallback_tag(digest)
            content = registry.fetch_small(f"{url}/manifests/{tag}", (OCI_INDEX,), base)
            found = list(parse_answer(content, host, MAX_MANIFEST).get("manifests") or [])
        return list(_choose_descriptors(found))
    except NotInRegistry:
        return []
    except NONSENSE:
        raise RegistryError(*make_nonsense_error(host)) from None


def _choose_descriptors(found: list[Any]) -> Iterator[dict[str, Any]]:
    for one in found:
        if isinstance(one, dict) and isinstance(one.get("digest"), str):
            yield one
