"""Build a stand-in of an NGC image and push it to a local registry.

    python3 ci/standin FACTS.json CACHE HOST:PORT

A stand-in has NVIDIA's repository, tag, environment, labels, entrypoint and torch version as far as
they are sourced; underneath it is Debian with torch's CPU build, and its label says so. It needs
root, or a user with subordinate ids, pip, mmdebstrap and pigz, and nothing beyond the standard
library. Layers are kept in CACHE.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from inside import with_inside
from layers import (
    ENTRYPOINT_FILE,
    TORCH,
    common_layers,
    diff_id,
    files_layer,
    foreign_layer,
    month_layer,
    own_layer,
    plain_layer,
)
from push import CONFIG, MANIFEST, MANIFEST_LIST, Target, descriptor, file_descriptor

STAND_IN = (
    f"Debian 12 with torch {TORCH}, re-tagged; stands in for NVIDIA's image, is not NVIDIA's image"
)
STAND_IN_PLAIN = "Debian 12 with Python{}, re-tagged; stands in for {}, is not that image"
PORTS: dict[str, dict[str, str]] = {"6006/tcp": {}, "8888/tcp": {}}


def what_it_is(facts: dict[str, object]) -> dict[str, str]:
    """The label that says so; a base of the tests' own stands in for nothing."""
    if facts["torch_version"]:
        return {"org.hpcstack.stand-in": STAND_IN}
    if "stands_in" in facts:
        packages = facts.get("packages", {})
        assert isinstance(packages, dict)
        added = "".join(
            f", {name}" for name in (*packages.get("pip", []), *packages.get("apt", []))
        )
        return {"org.hpcstack.stand-in": STAND_IN_PLAIN.format(added, facts["stands_in"])}
    return {}


def start(facts: dict[str, object]) -> dict[str, object]:
    """Entrypoint, command and working directory; NVIDIA's own where the facts say nothing of a
    PyTorch image.
    """
    if "entrypoint" not in facts and facts["torch_version"]:
        return {"Entrypoint": [ENTRYPOINT_FILE], "WorkingDir": "/workspace", "ExposedPorts": PORTS}
    out = {
        "Entrypoint": facts.get("entrypoint"),
        "Cmd": facts.get("command"),
        "WorkingDir": facts.get("workdir"),
    }
    return {name: value for name, value in out.items() if value}


def config(facts: dict[str, object], diff_ids: list[str], architecture: str) -> dict[str, object]:
    """The image config: exactly the sourced facts, and the label that says what this is."""
    environment = facts["environment"]
    assert isinstance(environment, dict) and isinstance(facts["labels"], dict)
    return {
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Labels": facts["labels"] | what_it_is(facts),
            **start(facts),
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": [
            {"created": "1970-01-01T00:00:00Z", "created_by": "hpcstack ci/standin"}
            for _ in diff_ids
        ],
    }


def main(facts_file: str, cache_folder: str, address: str) -> None:
    facts = json.loads(Path(facts_file).read_text())
    if facts["repository"] == "nvidia/pytorch":
        facts = with_inside(facts)
    cache = Path(cache_folder)
    cache.mkdir(parents=True, exist_ok=True)
    target = Target(address, facts["repository"])
    if platform.machine() != "x86_64":
        raise SystemExit("stand-ins are built on x86_64 only")
    if "unpacked" in facts:
        layers = [foreign_layer(cache, "amd64", facts["unpacked"])]
    elif facts["torch_version"]:
        debian, torch = common_layers(cache)
        layers = [debian, torch, month_layer(cache, facts, torch)]
    else:
        first = own_layer(cache, facts) if "packages" in facts else common_layers(cache)[0]
        layers = [first, *([plain_layer(cache, facts)] if "stands_in" in facts else [])]
    if "files" in facts:
        layers.append(files_layer(cache, facts, layers[0]))
    entries = [push_platform(target, facts, layers, "amd64")]
    for architecture, packages in facts.get("foreign", {}).items():
        entries.append(
            push_platform(
                target, facts, [foreign_layer(cache, architecture, packages)], architecture
            )
        )
    index = target.manifest(facts["tag"], MANIFEST_LIST,
                            {"schemaVersion": 2, "mediaType": MANIFEST_LIST, "manifests": entries})  # fmt: skip
    print(f"{facts['repository']}:{facts['tag']} {index['digest']}")


def push_platform(
    target: Target, facts: dict[str, object], layers: list[Path], architecture: str
) -> dict[str, object]:
    """The image of one ARCHITECTURE with its LAYERS in TARGET; its entry in the index."""
    descriptors = [file_descriptor(layer) for layer in layers]
    for layer, entry in zip(layers, descriptors, strict=True):
        target.blob(str(entry["digest"]), layer)
    image = json.dumps(
        config(facts, [diff_id(layer) for layer in layers], architecture), sort_keys=True
    ).encode()
    config_entry = descriptor(CONFIG, image)
    target.blob(str(config_entry["digest"]), image)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config_entry,
        "layers": descriptors,
    }
    entry = target.manifest(str(descriptor(MANIFEST, json.dumps(manifest, sort_keys=True).encode())["digest"]),
                            MANIFEST, manifest)  # fmt: skip
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    return entry


if __name__ == "__main__":
    main(*sys.argv[1:])
