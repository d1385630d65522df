"""What else lies in a release's folder: the lock that its image was built from, and its SBOM."""

from __future__ import annotations

from hpcstack import sbom, verifying
from hpcstack.errors import HpcstackError
from hpcstack.lock.place import lock_path
from hpcstack.locking import current_lock
from hpcstack.process import Runner
from hpcstack.site import Site
from hpcstack.spec.catalog import Recipe
from hpcstack.store import Artifact


def extras(recipe: Recipe, artifact: Artifact, site: Site, runner: Runner) -> dict[str, str]:
    """{file name: text}. A lock that has changed since the build is left out: it is not this image's."""
    out = {"sbom.json": sbom.document(artifact, verifying.distribution(artifact.image, runner))}
    try:
        lock = current_lock(recipe, site)
        if lock and lock.digest() == artifact.lock_sha256:
            out["lock.json"] = lock_path(recipe, site).read_text(encoding="utf-8")
    except (HpcstackError, OSError):
        pass
    return out
