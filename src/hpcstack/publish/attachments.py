"""What else lies in a release's folder: the lock that its image was built from, and its SBOM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError
from hpcstack.lock.file import LockFile
from hpcstack.store import sbom
from hpcstack.store.contents import read_distribution

if TYPE_CHECKING:
    from hpcstack.core.process import Runner
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact


def collect_attachments(recipe: Recipe, artifact: Artifact, site: Site, runner: Runner) -> dict[str, str]:
    """{file name: text}. A lock that has changed since the build is left out: it is not this image's."""
    out = {"sbom.json": sbom.document(artifact, read_distribution(artifact.image, runner))}
    try:
        file = LockFile(recipe, site)
        lock = file.current()
        if lock and lock.digest() == artifact.lock_sha256:
            out["lock.json"] = file.path.read_text(encoding="utf-8")
    except (HpcstackError, OSError):
        pass
    return out
