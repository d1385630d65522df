"""Where an image's layers come from: a registry, an OCI layout, a `docker save` archive, the Docker
daemon.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from hpcstack.core import files
from hpcstack.core.errors import InputError
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.oci.config import MAX_CONFIG, MAX_MANIFEST, config_of
from hpcstack.oci.decompress import check_pieces, inflate_layer
from hpcstack.oci.download import PIECE, Spools, file_pieces
from hpcstack.oci.manifest import (
    Image,
    Layer,
    digest_in,
    list_platforms,
    platform_of,
    read_image_config,
)
from hpcstack.oci.tar import Header

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.oci.client import Registry
    from hpcstack.oci.reference import Reference

OnBytes = Callable[[str, int], None]
NONSENSE = (KeyError, TypeError, ValueError, AttributeError, OSError, RecursionError)


class LayerSource(Protocol):
    """One image, opened: what it is, and each of its layers as an uncompressed tar."""

    @property
    def image(self) -> Image: ...

    @property
    def spooled(self) -> bool:
        """Whether its layers come over a network, and lie on local disk meanwhile."""
        ...

    def start(self, _folder: Path, on_bytes: OnBytes) -> None:
        """Begin to fetch into the folder."""
        ...

    def tar(self, layer: Layer) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class FromRegistry:
    """Layers fetched in parallel, newest first, each checked against its digest."""

    spooled = True

    def __init__(self, reference: Reference, platform: str, registry: Registry) -> None:
        assert reference.base
        self.base, self.registry = reference.base, registry
        self.image = registry.image(self.base, platform)
        self.spools: Spools | None = None

    def start(self, _folder: Path, on_bytes: OnBytes) -> None:
        layers = self.image.layers[::-1]  # in the order in which they are read
        self.spools = Spools(
            _folder,
            layers,
            lambda layer, at: self.registry.blob(self.base, layer.digest, at),
            on_bytes,
        )

    def tar(self, layer: Layer) -> Iterator[bytes]:
        assert self.spools
        return inflate_layer(self.spools.pieces(layer))

    def close(self) -> None:
        if self.spools:
            self.spools.close()


class FromLayout:
    """An OCI image layout: https://github.com/opencontainers/image-spec/blob/main/image-layout.md."""

    spooled = False

    def __init__(self, reference: Reference, platform: str) -> None:
        self.top, self.on_bytes = reference.path, cast(OnBytes, _nobody)
        try:
            found = _choose(self._index(), reference.name)
            digest, manifest = self._descend(found, platform)
            config = self._document(digest_in(manifest["config"]["digest"]), MAX_CONFIG)
            self.image = read_image_config(digest, manifest, config_of(config, str(reference)))
        except NONSENSE as error:
            raise InputError(
                f"{reference.path} is no OCI layout that can be read: {error}"
            ) from None

    def _index(self) -> dict[str, Any]:
        return parse_untrusted_json(
            files.read_bytes(self.top / "index.json", MAX_MANIFEST), MAX_MANIFEST
        )

    def _document(self, digest: str, limit: int = MAX_MANIFEST) -> dict[str, Any]:
        data = files.read_bytes(self._blob(digest), limit)
        list(check_pieces(iter([data]), digest, "its layout"))
        return parse_untrusted_json(data, limit)

    def _descend(self, descriptor: Mapping[str, Any], platform: str) -> tuple[str, dict[str, Any]]:
        """Through indexes of indexes to the manifest of PLATFORM."""
        for _ in range(8):
            digest = digest_in(descriptor["digest"])
            found = self._document(digest)
            if "manifests" not in found:
                return digest, found
            have = list_platforms(found)
            if platform not in have:
                raise ValueError(f"it is for {', '.join(sorted(have))}, not for {platform}")
            descriptor = {"digest": have[platform]}
        raise ValueError("its indexes have no end")

    def _blob(self, digest: str) -> Path:
        return self.top / "blobs" / digest.replace(":", "/")

    def start(self, _folder: Path, on_bytes: OnBytes) -> None:
        self.on_bytes = on_bytes

    def tar(self, layer: Layer) -> Iterator[bytes]:
        if not self._blob(layer.digest).is_file():
            raise InputError(f"{self.top} lacks its layer {layer.digest}", "copy the layout again")
        pieces = _counted(file_pieces(self._blob(layer.digest)), layer.digest, self.on_bytes)
        return inflate_layer(check_pieces(pieces, layer.digest, "the layout"))

    def close(self) -> None: ...


class FromArchive:
    """What `docker save` or `podman save` wrote.

    Its layers are checked against the config's own digests.
    """

    spooled = False

    def __init__(self, reference: Reference) -> None:
        self.path, self.on_bytes = reference.path, cast(OnBytes, _nobody)
        try:
            with tarfile.open(self.path, "r:", tarinfo=Header) as tar:
                entries = json.loads(_extract(tar, "manifest.json", MAX_MANIFEST))
                if not reference.name and len(entries) > 1:
                    tags = [str(tag) for entry in entries for tag in entry.get("RepoTags") or ["?"]]
                    raise ValueError(f"it contains several images, name one: {', '.join(tags)}")
                found = next(
                    entry
                    for entry in entries
                    if not reference.name or _named(reference.name, entry.get("RepoTags"))
                )
                config = parse_untrusted_json(
                    _extract(tar, found["Config"], MAX_CONFIG), MAX_CONFIG
                )
                plain = [digest_in(digest) for digest in config["rootfs"]["diff_ids"]]
                self.paths = dict(zip(plain, found["Layers"], strict=True))
                sizes = [_member(tar, path).size for path in found["Layers"]]
                taken = config_of(config, str(reference))
        except StopIteration:
            raise InputError(
                f"{self.path} contains no image {reference.name or 'at all'}"
            ) from None
        except (tarfile.TarError, *NONSENSE) as error:
            raise InputError(
                f"{self.path} is not an archive of `docker save`: {error}",
                "if it is compressed, uncompress it first",
            ) from None
        layers = tuple(
            Layer(digest, size, digest) for digest, size in zip(plain, sizes, strict=True)
        )
        self.image = Image(f"sha256:{_sha256(config)}", platform_of(taken), taken, layers)

    def start(self, _folder: Path, on_bytes: OnBytes) -> None:
        self.on_bytes = on_bytes

    def tar(self, layer: Layer) -> Iterator[bytes]:
        pieces = _counted(self._pieces(self.paths[layer.digest]), layer.digest, self.on_bytes)
        return check_pieces(inflate_layer(pieces), layer.plain_digest, "the archive")

    def _pieces(self, path: str) -> Iterator[bytes]:
        with tarfile.open(self.path, "r:", tarinfo=Header) as tar:
            member = _member(tar, path)
            start, size = member.offset_data, member.size
        return file_pieces(self.path, start, size)

    def close(self) -> None: ...


class FromDaemon:
    """An image of the Docker daemon (or podman's socket), as one stream: a container of it that
    never runs.
    """

    spooled = False

    def __init__(self, reference: Reference) -> None:
        from hpcstack.oci import daemon

        self.daemon, self.on_bytes = daemon.connect_daemon(), cast(OnBytes, _nobody)
        found = self.daemon.inspect(reference.name)
        self.name = reference.name
        said = {
            "os": found["Os"],
            "architecture": found["Architecture"],
            "config": found.get("Config") or {},
        }
        try:
            config = config_of(said, str(reference))
        except NONSENSE as error:
            raise InputError(f"the Docker daemon describes {reference} wrongly: {error}") from None
        digest = digest_in(found["Id"] if ":" in found["Id"] else f"sha256:{found['Id']}")
        layer = Layer(digest, int(found.get("Size") or 0))
        self.image = Image(digest, platform_of(config), config, (layer,))

    def start(self, _folder: Path, on_bytes: OnBytes) -> None:
        self.on_bytes = on_bytes

    def tar(self, layer: Layer) -> Iterator[bytes]:
        return _counted(self.daemon.filesystem(self.name), layer.digest, self.on_bytes)

    def close(self) -> None: ...


def open_source(reference: Reference, platform: str, registry: Registry) -> LayerSource:
    """REFERENCE's image for PLATFORM. InputError or RegistryError where it cannot be had."""
    source: LayerSource
    if reference.transport == "docker":
        source = FromRegistry(reference, platform, registry)
    elif reference.transport == "oci":
        source = FromLayout(reference, platform)
    elif reference.transport == "docker-archive":
        source = FromArchive(reference)
    else:
        source = FromDaemon(reference)
    if source.image.platform != platform:
        raise InputError(
            f"{reference} is for {source.image.platform}, not for {platform}",
            f"--platform {source.image.platform}",
        )
    return source


def _nobody(_digest: str, _count: int) -> None:
    """Nobody counts."""


def _counted(pieces: Iterator[bytes], digest: str, on_bytes: OnBytes) -> Iterator[bytes]:
    for piece in pieces:
        on_bytes(digest, len(piece))
        yield piece


def _choose(index: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The descriptor that NAME means; an index of one image needs no name."""
    entries: list[dict[str, Any]] = index["manifests"]
    key = "org.opencontainers.image.ref.name"
    named = [entry for entry in entries if (entry.get("annotations") or {}).get(key) == name]
    if name and not named:
        raise ValueError(f"it contains no {name!r}")
    if not name and len(entries) > 1 and not all(entry.get("platform") for entry in entries):
        names = [str((entry.get("annotations") or {}).get(key, "?")) for entry in entries]
        raise ValueError(f"it contains several images, name one: {', '.join(names)}")
    return (named or entries)[0]


def _named(name: str, tags: Any) -> bool:
    return any(name in (tag, tag.rpartition(":")[0], tag.rpartition("/")[2]) for tag in tags or [])


def _member(tar: tarfile.TarFile, path: str) -> tarfile.TarInfo:
    """A regular member; older archives name a layer that already exists by a link."""
    member = tar.getmember(path)
    for _ in range(8):
        if member.isreg():
            return member
        with contextlib.suppress(KeyError, AttributeError):
            member = tar._find_link_target(member)  # type: ignore[attr-defined]
            continue
        break
    raise ValueError(f"{path} is not a file in it")


def _extract(tar: tarfile.TarFile, path: str, limit: int) -> bytes:
    member = _member(tar, path)
    if member.size > limit:
        raise ValueError(f"{path} is larger than {limit} bytes")
    file = tar.extractfile(member)
    assert file
    return file.read(limit)


def _sha256(config: Mapping[str, Any]) -> str:
    import hashlib

    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


__all__ = [
    "PIECE",
    "FromArchive",
    "FromDaemon",
    "FromLayout",
    "FromRegistry",
    "LayerSource",
    "open_source",
]
