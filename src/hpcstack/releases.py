"""What is published: the releases that aliases name, and their images. Read by `launch`, written by `publish`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.errors import StoreError
from hpcstack.modules.tree import Tree
from hpcstack.store import Artifact, Store

if TYPE_CHECKING:
    from hpcstack.site import Site


def released(name: str, site: Site, store: Store) -> tuple[Artifact, str] | None:
    """The image that the published alias of NAME (`pytorch-24.11`) names, and its release; None if there is none."""
    tree = Tree(site.module_root)
    for published in tree.names():
        if not name.startswith(f"{published}-"):
            continue
        entry = tree.ledger(published).aliased(name.removeprefix(f"{published}-"))
        if entry:
            release = f"{published}/{entry.release}"
            artifact = artifact_of(store.top / "releases" / release, store)
            if not artifact:
                raise StoreError(
                    f"{release} is published in {entry.channel}, and its image is gone", f"hpcstack build {name}"
                )
            return artifact, f"release {release} in {entry.channel}"
    return None


def artifact_of(folder: Path, store: Store) -> Artifact | None:
    """The image that a release's record names, if both are there; StoreError if one is damaged."""
    try:
        return store.artifact(json.loads((folder / "release.json").read_text(encoding="utf-8"))["key"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{folder / 'release.json'} cannot be read: {error}", "publish the stack again") from None
