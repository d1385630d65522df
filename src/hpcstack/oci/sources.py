"""Open an image and read its layers.

It may be in a registry, an OCI layout (a folder or a tar of one), a `docker save` archive or the
Docker daemon.

Tested in tests/unit/oci/test_importer.py and tests/hostile/test_layers.py.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from hpcstack.core import files
from hpcstack.core.errors import InputError
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.oci.config import MAX_CONFIG, MAX_MANIFEST, read_image_config_of
from hpcstack.oci.decompress import check_pieces, inflate_layer
from hpcstack.oci.download import PIECE, Spools, read_pieces
from hpcstack.oci.manifest import (
    NO_LEVELS,
    Image,
    Layer,
    check_digest,
    find_manifest,
    read_image_config,
    read_platform,
)
from hpcstack.oci.reference import OCI_ARCHIVE
from hpcstack.oci.tar import Header

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.oci.client import Registry
    from hpcstack.oci.reference import Reference

OnBytes = Callable[[str, int], None]  # told of each piece that comes: a layer's digest, and bytes
MAX_MEMBERS = 100_000  # files of an archive
NONSENSE = (KeyError, TypeError, ValueError, AttributeError, OSError, RecursionError)


class LayerSource(Protocol):
    """One opened image: its description, and each of its layers as an uncompressed tar.

    `start` is called before the first `tar`, and `close` at the end.
    """

    @property
    def image(self) -> Image:
        """The digest, platform, config and layers."""
        ...

    @property
    def spooled(self) -> bool:
        """Whether the layers are fetched over a network, and kept on local disk meanwhile."""
        ...

    def start(self, _folder: Path, on_bytes: OnBytes) -> None:
        """Begin to fetch into the folder, and tell ON_BYTES what comes."""
        ...

    def tar(self, layer: Layer) -> Iterator[bytes]:
        """Yield LAYER as an uncompressed tar. May be called again, for a second pass."""
        ...

    def close(self) -> None:
        """Stop fetching."""
        ...


class FromRegistry:
    """An image in a registry.

    Its layers are fetched in parallel, newest first, and checked against their digests.
    """

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


class _Folder:
    """The files of a layout that is a folder."""

    def __init__(self, top: Path) -> None:
        self.top = top

    def read(self, name: str, limit: int) -> bytes:
        return files.read_bytes(self.top / name, limit)

    def has(self, name: str) -> bool:
        return (self.top / name).is_file()

    def pieces(self, name: str) -> Iterator[bytes]:
        return read_pieces(self.top / name)


class _Tar:
    """The files of a layout that is a tar, as `podman save --format oci-archive` and buildx write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[str, tuple[int, int]] = {}
        with tarfile.open(path, "r:", tarinfo=Header) as tar:
            for member in tar:
                if len(self.places) > MAX_MEMBERS:
                    raise ValueError(f"it has more than {MAX_MEMBERS} files")
                if member.isreg():
                    self.places[member.name.removeprefix("./")] = (member.offset_data, member.size)

    def read(self, name: str, limit: int) -> bytes:
        _, size = self.places[name]
        if size > limit:
            raise ValueError(f"{name} is larger than {limit} bytes")
        return b"".join(self.pieces(name))

    def has(self, name: str) -> bool:
        return name in self.places

    def pieces(self, name: str) -> Iterator[bytes]:
        return read_pieces(self.path, *self.places[name])


class FromLayout:
    """An image in an OCI image layout, a folder or a tar of one.

    https://github.com/opencontainers/image-spec/blob/main/image-layout.md
    """

    spooled = False

    def __init__(
        self, reference: Reference, platform: str, levels: Mapping[str, int] = NO_LEVELS
    ) -> None:
        self.top, self.levels = reference.path, levels
        self.on_bytes = cast(OnBytes, _ignore_bytes)
        try:
            self.files = _Tar(self.top) if reference.transport == OCI_ARCHIVE else _Folder(self.top)
            digest, manifest = self._find(_list_named(self._index(), reference.name), platform)
            config = self._document(check_digest(manifest["config"]["digest"]), MAX_CONFIG)
            self.image = read_image_config(
                digest, manifest, read_image_config_of(config, str(reference))
            )
        except (tarfile.TarError, *NONSENSE) as error:
            raise InputError(
                f"{reference.path} cannot be read as an OCI layout: {error}",
                page="import-a-base-image",
            ) from None

    def _index(self) -> dict[str, Any]:
        return parse_untrusted_json(self.files.read("index.json", MAX_MANIFEST), MAX_MANIFEST)

    def _document(self, digest: str, limit: int = MAX_MANIFEST) -> dict[str, Any]:
        """Return the JSON blob DIGEST, at most LIMIT bytes, verified against its digest."""
        data = self.files.read(self._blob(digest), limit)
        list(check_pieces(iter([data]), digest, "its layout"))
        return parse_untrusted_json(data, limit)

    def _find(
        self, entries: Sequence[Mapping[str, Any]], platform: str
    ) -> tuple[str, Mapping[str, Any]]:
        """Return (digest, manifest) of the image for PLATFORM among ENTRIES of the index.

        Raise ValueError where there is none. The only image there is returned whatever it is for:
        its config says so.
        """
        if len(entries) == 1:
            digest = check_digest(entries[0]["digest"])
            only = self._document(digest)
            if "manifests" not in only:
                return digest, only
            entries = only["manifests"]
        return find_manifest(
            {"manifests": entries}, platform, self._document, self._platform_of, self.levels
        )

    def _platform_of(self, manifest: Mapping[str, Any]) -> str:
        return read_platform(self._document(check_digest(manifest["config"]["digest"]), MAX_CONFIG))

    def _blob(self, digest: str) -> str:
        return f"blobs/{digest.replace(':', '/')}"

    def start(self, _folder: Path, on_bytes: OnBytes) -> None:
        self.on_bytes = on_bytes

    def tar(self, layer: Layer) -> Iterator[bytes]:
        if not self.files.has(self._blob(layer.digest)):
            raise InputError(
                f"{self.top} lacks its layer {layer.digest}",
                "copy the layout again",
                page="import-a-base-image",
            )
        stored = self.files.pieces(self._blob(layer.digest))
        pieces = _count_bytes(stored, layer.digest, self.on_bytes)
        return inflate_layer(check_pieces(pieces, layer.digest, "the layout"))

    def close(self) -> None: ...


class FromArchive:
    """An image in an archive that `docker save` or `podman save` wrote.

    Such an archive names no digests of its layers as they are stored; the uncompressed layers are
    checked against the `diff_ids` in the image's config.
    """

    spooled = False

    def __init__(self, reference: Reference) -> None:
        self.path = reference.path
        self.on_bytes = cast(OnBytes, _ignore_bytes)
        try:
            with tarfile.open(self.path, "r:", tarinfo=Header) as tar:
                entries = json.loads(_extract(tar, "manifest.json", MAX_MANIFEST))
                if not reference.name and len(entries) > 1:
                    tags = [str(tag) for entry in entries for tag in entry.get("RepoTags") or ["?"]]
                    raise ValueError(f"it contains several images, name one: {', '.join(tags)}")
                found = next(
                    entry
                    for entry in entries
                    if not reference.name or _has_tag(entry.get("RepoTags"), reference.name)
                )

                content = _extract(tar, found["Config"], MAX_CONFIG)
                config = parse_untrusted_json(content, MAX_CONFIG)
                plain = [check_digest(digest) for digest in config["rootfs"]["diff_ids"]]
                self.paths = dict(zip(plain, found["Layers"], strict=True))
                sizes = [_member(tar, path).size for path in found["Layers"]]
                taken = read_image_config_of(config, str(reference))
        except StopIteration:
            raise InputError(
                f"{self.path} contains no image {reference.name or 'at all'}",
                page="import-a-base-image",
            ) from None
        except (tarfile.TarError, *NONSENSE) as error:
            raise InputError(
                f"{self.path} cannot be read as an archive of `docker save`: {error}",
                "uncompress it first, if it is compressed; a tar of an OCI layout is oci-archive:FILE",
                page="import-a-base-image",
            ) from None

        layers = tuple(
            Layer(digest, size, digest) for digest, size in zip(plain, sizes, strict=True)
        )
        # The archive holds no manifest whose digest could name the image: the config's does.
        self.image = Image(f"sha256:{_sha256(config)}", read_platform(taken), taken, layers)

    def start(self, _folder: Path, on_bytes: OnBytes) -> None:
        self.on_bytes = on_bytes

    def tar(self, layer: Layer) -> Iterator[bytes]:
        stored = self._pieces(self.paths[layer.digest])
        pieces = _count_bytes(stored, layer.digest, self.on_bytes)
        return check_pieces(inflate_layer(pieces), layer.plain_digest, "the archive")

    def _pieces(self, path: str) -> Iterator[bytes]:
        with tarfile.open(self.path, "r:", tarinfo=Header) as tar:
            member = _member(tar, path)
            start, size = member.offset_data, member.size
        return read_pieces(self.path, start, size)

    def close(self) -> None: ...


class FromDaemon:
    """An image of the Docker daemon or of podman's socket.

    Its whole tree comes as one layer, exported from a container that is never started.
    """

    spooled = False

    def __init__(self, reference: Reference) -> None:
        from hpcstack.oci import daemon

        self.daemon = daemon.connect_daemon()
        self.on_bytes = cast(OnBytes, _ignore_bytes)
        self.name = reference.name
        found = self.daemon.inspect(reference.name)
        described = {
            "os": found["Os"],
            "architecture": found["Architecture"],
            "config": found.get("Config") or {},
        }
        try:
            config = read_image_config_of(described, str(reference))
        except NONSENSE as error:
            raise InputError(
                f"the Docker daemon's description of {reference} cannot be read: {error}"
            ) from None

        identity = found["Id"]  # some daemons write it without `sha256:`
        digest = check_digest(identity if ":" in identity else f"sha256:{identity}")
        layer = Layer(digest, int(found.get("Size") or 0))
        self.image = Image(digest, read_platform(config), config, (layer,))

    def start(self, _folder: Path, on_bytes: OnBytes) -> None:
        self.on_bytes = on_bytes

    def tar(self, layer: Layer) -> Iterator[bytes]:
        return _count_bytes(self.daemon.filesystem(self.name), layer.digest, self.on_bytes)

    def close(self) -> None: ...


def open_source(reference: Reference, platform: str, registry: Registry) -> LayerSource:
    """Open REFERENCE's image for PLATFORM, such as `linux/amd64`.

    Raise InputError or RegistryError if there is none, or if it is for another platform.
    """
    source: LayerSource
    if reference.transport == "docker":
        source = FromRegistry(reference, platform, registry)
    elif reference.transport in ("oci", OCI_ARCHIVE):
        source = FromLayout(reference, platform, registry.site.cpu_levels)
    elif reference.transport == "docker-archive":
        source = FromArchive(reference)
    else:
        source = FromDaemon(reference)
    if source.image.platform != platform:
        raise InputError(
            f"{reference} is for {source.image.platform}, not for {platform}",
            f"--platform {source.image.platform}",
            page="import-a-base-image",
        )
    return source


def _ignore_bytes(_digest: str, _count: int) -> None:
    """Stand in for ON_BYTES until `start` is called."""


def _count_bytes(pieces: Iterator[bytes], digest: str, on_bytes: OnBytes) -> Iterator[bytes]:
    """Yield PIECES, and tell ON_BYTES of each."""
    for piece in pieces:
        on_bytes(digest, len(piece))
        yield piece


def _list_named(index: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the descriptors in a layout's INDEX that NAME means: one image, for some platforms.

    Without a name, those of the only image in it. Raise ValueError where there are several.
    """
    entries: list[dict[str, Any]] = index["manifests"]
    names = [_read_names(entry) for entry in entries]
    if not name and len({tuple(known[-1:]) for known in names}) > 1:
        shown = sorted({known[-1] if known else "?" for known in names})
        raise ValueError(f"it contains several images, name one: {', '.join(shown)}")
    if not name:
        return entries
    named = [entry for entry, known in zip(entries, names, strict=True) if name in known] or [
        entry for entry, known in zip(entries, names, strict=True) if _has_tag(known, name)
    ]
    if not named:
        raise ValueError(f"it contains no {name!r}")
    return named


def _read_names(entry: Mapping[str, Any]) -> list[str]:
    """Return the names of a layout's ENTRY: containerd's whole one, and that of the specification.

    The latter is a tag alone in some archives (`podman save`), the whole name in others.
    """
    annotations = entry.get("annotations") or {}
    keys = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
    return [str(annotations[key]) for key in keys if annotations.get(key)]


def _has_tag(tags: Any, name: str) -> bool:
    """Return whether NAME is one of TAGS, whole, without its tag, or without registry and path."""
    return any(name in (tag, tag.rpartition(":")[0], tag.rpartition("/")[2]) for tag in tags or [])


def _member(tar: tarfile.TarFile, path: str) -> tarfile.TarInfo:
    """Return the regular file PATH in TAR, or the file that it links to.

    Older archives hold a layer once, and links to it from every image that has it. Raise KeyError
    or ValueError if there is no such file.
    """
    member = tar.getmember(path)
    for _ in range(8):
        if member.isreg():
            return member
        with contextlib.suppress(KeyError, AttributeError):
            member = tar._find_link_target(member)  # type: ignore[attr-defined]
            continue
        break
    raise ValueError(f"{path} in it is not a file")


def _extract(tar: tarfile.TarFile, path: str, limit: int) -> bytes:
    """Return the content of PATH in TAR. Raise ValueError if it is larger than LIMIT bytes."""
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
