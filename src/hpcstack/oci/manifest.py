"""Read manifests and configs, OCI's and Docker's, into typed values.

What is wrong in them raises ValueError here; the callers word the error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MAX_LAYERS, MAX_SIZE = 4096, 1 << 50
MOST_LOOKED = 32  # documents that are fetched to find one image
NO_LEVELS: Mapping[str, int] = MappingProxyType({})  # nobody says what the nodes have
BASE_VARIANTS = {"amd64": "v1", "arm64": "v8"}  # what every machine of an architecture has


class NotOffered(ValueError):
    """An index lists no image for the platform that is wanted."""


@dataclass(frozen=True)
class Layer:
    """One layer: the digest and size of its bytes as they are stored."""

    digest: str
    size: int
    plain_digest: str = ""  # of the uncompressed tar; empty if the config does not say


@dataclass(frozen=True)
class Image:
    """One image of one platform; layers oldest first."""

    digest: str
    platform: str
    config: Mapping[str, Any]  # as oci/config.py returns it
    layers: tuple[Layer, ...]

    @property
    def size(self) -> int:
        """The bytes of all layers as they are stored."""
        return sum(layer.size for layer in self.layers)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the config sets."""
        pairs = (entry.partition("=") for entry in _texts(self.run.get("Env")))
        return {name: value for name, _, value in pairs if name}

    @property
    def run(self) -> Mapping[str, Any]:
        """What the config says about running: Env, Entrypoint, Cmd, WorkingDir, Labels."""
        found = self.config.get("config")
        return found if isinstance(found, dict) else {}

    def words(self, name: str) -> tuple[str, ...]:
        """Return the words of the command NAME: `Entrypoint` or `Cmd`."""
        return tuple(_texts(self.run.get(name)))

    @property
    def workdir(self) -> str:
        """The folder in which a container starts."""
        found = self.run.get("WorkingDir")
        if isinstance(found, str) and found:
            return found
        return "/"

    @property
    def labels(self) -> dict[str, str]:
        """The image's labels."""
        found = self.run.get("Labels") or {}
        if not isinstance(found, dict):
            return {}
        return {str(name): str(value) for name, value in found.items()}


def _texts(found: object) -> list[str]:
    """Return the strings in FOUND if it is a list, else nothing."""
    if not isinstance(found, list):
        return []
    return [text for text in found if isinstance(text, str)]


def check_digest(text: object) -> str:
    """Return TEXT if it is a sha256 digest. Raise ValueError for anything else."""
    if not isinstance(text, str) or not DIGEST.fullmatch(text):
        raise ValueError(f"no digest: {text!r}")
    return text


def list_platforms(
    index: Mapping[str, Any], levels: Mapping[str, int] = NO_LEVELS
) -> dict[str, str]:
    """Return {platform: digest} of INDEX, such as {"linux/amd64": "sha256:..."}.

    LEVELS says what the nodes of an architecture have: {"amd64": 3} for x86-64-v3. There the highest
    variant counts that is not above it. Elsewhere that counts which runs on the most machines: the one
    without a variant, else the one with the lowest (`v2` before `v3`). Of equals it is the first.
    Entries without a platform are in `list_unlabelled`.
    """
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for entry in _list_images(index):
        place = entry.get("platform") or {}
        if not place:
            continue
        architecture = str(place.get("architecture", ""))
        name = f"{place.get('os', 'linux')}/{architecture}"
        rank = _rank_variant(architecture, str(place.get("variant") or ""))
        level = levels.get(architecture)
        if level is not None:
            if rank > (level,):
                continue
            rank = tuple(-number for number in rank) or (0,)
        digest = check_digest(entry["digest"])
        if name not in found or rank < found[name][0]:
            found[name] = (rank, digest)
    return {name: digest for name, (_, digest) in found.items()}


def list_unlabelled(index: Mapping[str, Any]) -> list[str]:
    """Return the digests of INDEX's entries that name no platform: images, or further indexes."""
    return [
        check_digest(entry["digest"]) for entry in _list_images(index) if not entry.get("platform")
    ]


def _list_images(index: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of INDEX but for attestations, which buildx lists as unknown/unknown."""
    for entry in index["manifests"]:
        place = entry.get("platform") or {}
        kind = (entry.get("annotations") or {}).get("vnd.docker.reference.type", "")
        is_unknown = "unknown" in (place.get("os"), place.get("architecture"))
        if not is_unknown and kind != "attestation-manifest":
            yield entry


def _rank_variant(architecture: str, variant: str) -> tuple[int, ...]:
    """Return how much a VARIANT wants of a machine, the lowest first; none wants the least.

    https://github.com/opencontainers/image-spec/blob/main/image-index.md, "Platform Variants"
    """
    if variant == BASE_VARIANTS.get(architecture):
        return ()
    return tuple(int(number) for number in re.findall("[0-9]{1,6}", variant))


def find_manifest(
    index: Mapping[str, Any],
    platform: str,
    fetch: Callable[[str], Mapping[str, Any]],
    platform_of: Callable[[Mapping[str, Any]], str],
    levels: Mapping[str, int] = NO_LEVELS,
) -> tuple[str, Mapping[str, Any]]:
    """Return (digest, manifest) of the image for PLATFORM in INDEX and in those that it lists.

    FETCH returns the document of a digest. Where an entry names no platform, PLATFORM_OF reads that of
    its manifest. LEVELS are those of `list_platforms`. Raise NotOffered where there is none.
    """
    have: set[str] = set()
    waiting = [index]
    looked = 0
    while waiting:
        found = waiting.pop(0)
        here = list_platforms(found, levels)
        have |= here.keys()
        named = here.get(platform)
        candidates = [named] if named else list_unlabelled(found)
        for digest in candidates:
            looked += 1
            if looked > MOST_LOOKED:
                raise NotOffered(f"it lists more than {MOST_LOOKED} documents without a platform")
            document = fetch(digest)
            if "manifests" in document:
                waiting.append(document)
                continue
            known = platform if named else platform_of(document)
            if known == platform:
                return digest, document
            have.add(known)
    is_above = platform in list_platforms(index) and platform not in list_platforms(index, levels)
    wanted = f"{platform} of `cpu` in site.yaml" if is_above else platform
    raise NotOffered(f"it is for {', '.join(sorted(have)) or 'no platform'}, not for {wanted}")


def read_image_config(digest: str, manifest: Mapping[str, Any], config: Mapping[str, Any]) -> Image:
    """Return the image that MANIFEST, whose digest is DIGEST, and its CONFIG describe.

    Raise ValueError if layers are missing, have an impossible size, or cannot be fetched: foreign
    layers are kept elsewhere, and encrypted ones cannot be read.
    """
    layers = manifest.get("layers")
    if not isinstance(layers, list) or not 0 < len(layers) <= MAX_LAYERS:
        raise ValueError("the manifest has no layers")
    plain = (config.get("rootfs") or {}).get("diff_ids") or []

    found = []
    for number, layer in enumerate(layers):
        kind = str(layer.get("mediaType", ""))
        if layer.get("urls") or "foreign" in kind or "encrypted" in kind:
            raise ValueError(f"layer {layer.get('digest')} cannot be fetched: it is {kind}")
        size = int(layer["size"])
        if not 0 <= size <= MAX_SIZE:
            raise ValueError("a layer has an impossible size")
        named = check_digest(plain[number]) if len(plain) == len(layers) else ""
        found.append(Layer(check_digest(layer["digest"]), size, named))
    return Image(digest, read_platform(config), config, tuple(found))


def read_platform(config: Mapping[str, Any]) -> str:
    """Return the platform that CONFIG names, such as linux/amd64."""
    return f"{config.get('os', 'linux')}/{config.get('architecture', 'amd64')}"
