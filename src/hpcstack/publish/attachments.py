"""What else lies in a release's folder: the lock that its image was built from, and its SBOM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError
from hpcstack.core.files import read_bytes
from hpcstack.lock.model import MAX_LOCK, parse_lock
from hpcstack.lock.path import lock_path
from hpcstack.store import sbom
from hpcstack.store.store import LOCK

if TYPE_CHECKING:
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact


def collect_attachments(recipe: Recipe, artifact: Artifact, site: Site) -> dict[str, str]:
    """Return {file name: text} of the SBOM, and of the lock where it can be found.

    The lock is the one that the build kept beside the image. Else it is the recipe's, if that is
    still the same: a later lock is not this image's.
    """
    out = {"sbom.json": sbom.make_image_sbom(artifact)}
    for path in (Path(artifact.folder) / LOCK, _find_recipe_lock(recipe, site)):
        try:
            text = read_bytes(path, MAX_LOCK) if path else b""
            if path and parse_lock(text, str(path)).lock.digest() == artifact.lock_sha256:
                return out | {"lock.json": text.decode()}
        except (HpcstackError, OSError):
            continue
    return out


def _find_recipe_lock(recipe: Recipe, site: Site) -> Path | None:
    """Return where the lock of RECIPE lies; None where that place is refused."""
    try:
        return lock_path(recipe, site)
    except HpcstackError:
        return None
