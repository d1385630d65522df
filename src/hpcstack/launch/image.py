"""Which image a name means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.releases.lookup import released

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store


def image_of(name: str, store: Store) -> Artifact:
    """The image of NAME that was built last."""
    if artifact := store.newest(name):
        return artifact
    built = ", ".join(store.stacks()) or "none"
    raise InputError(f"no image of {name} is in {store.top} (there: {built})", f"hpcstack build {name}")


def image_to_launch(
    name: str, site: Site, store: Store, environ: Mapping[str, str], release: str = ""
) -> tuple[Artifact, str]:
    """The image that users mean by NAME, and why: the loaded module's, else the published one, else the last built;
    RELEASE is one that they have named."""
    if environ.get("HPCSTACK_STACK") == name and release in ("", environ.get("HPCSTACK_RELEASE")):
        loaded = store.artifact(Path(environ.get("HPCSTACK_IMAGE", "")).parent.name)
        if loaded and str(loaded.image) == environ["HPCSTACK_IMAGE"]:
            return loaded, f"module {environ.get('HPCSTACK_RELEASE', '')}"
    if found := released(name, site, store, release):
        return found
    return image_of(name, store), "not published: the image built last"
