"""Read manifests and configs, OCI's and Docker's, into typed values.

What is wrong in them raises ValueError here; the callers word the error.

Tested in tests/unit/oci/test_importer.py.
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


def list_platforms(index: Mapping[str, Any]) -> dict[str, str]:
    """Return {platform: digest} of INDEX. Of several entries for a platform, the first counts.

    Attestations, which Docker's buildx lists as the platform unknown/unknown, are left out. An
    entry without a platform has the name "".
    """
    out: dict[str, str] = {}
    for entry in index["manifests"]:
        place = entry.get("platform") or {}
        name = ""
        if place:
            name = f"{place.get('os', 'linux')}/{place.get('architecture', '')}"
        if "unknown" not in name:
            out.setdefault(name, check_digest(entry["digest"]))
    return out


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
