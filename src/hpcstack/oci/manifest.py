"""Manifests and configs, OCI's and Docker's, as typed values.

What a registry may say wrongly is a ValueError here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MAX_LAYERS, MAX_SIZE = 4096, 1 << 50


@dataclass(frozen=True)
class Layer:
    """One layer as it is stored: the digest and size of its bytes, or nothing where an archive does
    not say.
    """

    digest: str
    size: int
    plain_digest: str = ""  # of its tar, uncompressed


@dataclass(frozen=True)
class Image:
    """One image of one platform; layers oldest first."""

    digest: str
    platform: str
    config: Mapping[str, Any]  # as oci/config.py takes it
    layers: tuple[Layer, ...]

    @property
    def size(self) -> int:
        """Bytes of all layers as they are stored."""
        return sum(layer.size for layer in self.layers)

    @property
    def environment(self) -> dict[str, str]:
        pairs = (entry.partition("=") for entry in _texts(self.run.get("Env")))
        return {name: value for name, _, value in pairs if name}

    @property
    def run(self) -> Mapping[str, Any]:
        """What the config says of running: Env, Entrypoint, Cmd, WorkingDir, Labels."""
        found = self.config.get("config")
        return found if isinstance(found, dict) else {}

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(_texts(self.run.get(name)))

    @property
    def workdir(self) -> str:
        found = self.run.get("WorkingDir")
        return found if isinstance(found, str) and found else "/"

    @property
    def labels(self) -> dict[str, str]:
        found = self.run.get("Labels") or {}
        return (
            {str(name): str(value) for name, value in found.items()}
            if isinstance(found, dict)
            else {}
        )


def _texts(found: object) -> list[str]:
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def digest_in(text: object) -> str:
    """TEXT as a digest; ValueError for anything else."""
    if not isinstance(text, str) or not DIGEST.fullmatch(text):
        raise ValueError(f"no digest: {text!r}")
    return text


def list_platforms(index: Mapping[str, Any]) -> dict[str, str]:
    """{platform: digest} of an index; the first of a platform counts, attestations do not."""
    out: dict[str, str] = {}
    for entry in index["manifests"]:
        place = entry.get("platform") or {}
        name = f"{place.get('os', 'linux')}/{place.get('architecture', '')}" if place else ""
        if "unknown" not in name:
            out.setdefault(name, digest_in(entry["digest"]))
    return out


def read_image_config(digest: str, manifest: Mapping[str, Any], config: Mapping[str, Any]) -> Image:
    """MANIFEST and CONFIG as an Image. ValueError where they do not fit each other."""
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
        named = digest_in(plain[number]) if len(plain) == len(layers) else ""
        found.append(Layer(digest_in(layer["digest"]), size, named))
    return Image(digest, platform_of(config), config, tuple(found))


def platform_of(config: Mapping[str, Any]) -> str:
    return f"{config.get('os', 'linux')}/{config.get('architecture', 'amd64')}"
