"""What is published: the releases that aliases name, and their images. Read by `launch`, written by `publish`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.errors import StoreError
from hpcstack.store import Artifact, Store

if TYPE_CHECKING:
    from hpcstack.site import Site

CHANNELS = ("testing",)
ALIAS = re.compile(r'^module_version\("(?P<release>[^"]+)", "(?P<alias>[^"]+)"\)$', re.MULTILINE)


def released(name: str, site: Site, store: Store) -> tuple[Artifact, str] | None:
    """The image that the published alias of NAME (`pytorch-24.11`) names, and its release; None if there is none."""
    for channel in CHANNELS:
        for folder in sorted((site.module_root / channel).glob("[!.]*")):
            version = name.removeprefix(f"{folder.name}-")
            release = aliases(folder).get(version, "") if name.startswith(f"{folder.name}-") else ""
            if release:
                artifact = artifact_of(store.top / "releases" / release, store)
                if not artifact:
                    raise StoreError(
                        f"{release} is published in {channel}, and its image is gone", f"hpcstack build {name}"
                    )
                return artifact, f"release {release} in {channel}"
    return None


def aliases(folder: Path) -> dict[str, str]:
    """{alias: release} that a `.modulerc.lua` of ours names; empty where there is none."""
    return {match["alias"]: match["release"] for match in ALIAS.finditer(text_of(folder / ".modulerc.lua"))}


def artifact_of(folder: Path, store: Store) -> Artifact | None:
    """The image that a release's record names, if both are there; StoreError if one is damaged."""
    try:
        return store.artifact(json.loads((folder / "release.json").read_text())["key"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{folder / 'release.json'} cannot be read: {error}", "publish the stack again") from None


def text_of(path: Path) -> str:
    """What PATH holds; nothing where it is not there."""
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError:
        raise StoreError(f"{path} is damaged: it is not text", "publish the stack again after removing it") from None
