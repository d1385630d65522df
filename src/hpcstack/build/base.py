"""Import images: into a file that the user names, or into the cache of bases.

The cache keeps each digest once, and for an offline build also the base that a bundle brought.

Tested in tests/unit/oci/test_importer.py and tests/unit/oci/test_download.py.
"""

from __future__ import annotations

import hashlib
import os
import platform as machine
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, gate
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import open_file
from hpcstack.core.outputs import new_file
from hpcstack.core.sharing import ALONE
from hpcstack.oci.importer import VERSION, Imported, pack_image
from hpcstack.oci.metadata import list_files_above
from hpcstack.oci.reference import Reference, parse_reference
from hpcstack.oci.sources import open_source
from hpcstack.recipe.model import Base
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.store.cache import (
    cache_of,
    hold_cache,
    mark_used,
    name_offline_folder,
    open_own_cache,
    open_shared_cache,
)

if TYPE_CHECKING:
    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.model import Lock
    from hpcstack.site.load import Site

BUNDLED = re.compile(r"base-[0-9a-f]{64}\.sqsh")  # the name of a base that a bundle brought


def import_image(
    text: str, platform: str, output: Path | None, bench: Workbench, *, force: bool = False
) -> Imported:
    """Import the image that TEXT names into the file OUTPUT.

    PLATFORM is this machine's by default, and the name of OUTPUT is made from the image's. Unless
    FORCE is set, an existing file is not replaced.
    """
    reference = parse_reference(text)
    final = new_file(output or Path(reference.file_name), force=force)
    return _import(reference, platform or find_host_platform(), final, bench)


def find_host_platform() -> str:
    """Return this machine's platform as registries name it; linux/amd64 where it is unknown."""
    names = {kernel: name for name, kernel in KERNEL_NAMES.items()}
    return names.get(machine.machine(), "linux/amd64")


def provide_base(lock: Lock, platform: str, bench: Workbench) -> Path:
    """Return the squashfs of LOCK's base for PLATFORM; import it where the cache has none."""
    digest = lock.platform(platform).digest
    final = locate_imported_base(lock, platform, bench.site)
    if final.exists():
        mark_used(final)
        return final

    # Who builds into a store of his own need not import what the site has imported.
    of_the_site = open_shared_cache(bench.site).top / final.name
    may_read = bench.site.own_store != bench.site.store and os.access(of_the_site, os.R_OK)
    if may_read and not explain_distrust_in(bench.site, of_the_site):
        bench.progress(f"on the site's own copy of the base, {of_the_site}")
        return of_the_site

    bench.progress(f"importing {lock.base.repository}:{lock.base.tag} ({digest[:19]})")
    base = Base.model_validate({"image": f"{lock.base.registry}/{lock.base.repository}@{digest}"})
    done = _import(Reference("docker", base=base), platform, final, bench, once=True)
    bench.progress(f"imported {done.size / 1e6:.0f} MB in {done.seconds:.1f} s")
    return done.path


def locate_imported_base(lock: Lock, platform: str, site: Site) -> Path:
    """Return where the cache keeps LOCK's base for PLATFORM, which may not be imported yet.

    The cache that a group shares may hold a stranger's file of that name. Then it is the builder's
    own cache: whatever is built has the base in it, and names the registry's digest.
    """
    name = base_name(lock, platform, site)
    path = cache_of(site).top / name
    if explain_distrust_in(site, path):
        return open_own_cache(site).top / name
    return path


def explain_distrust_in(site: Site, path: Path) -> str:
    """Return why PATH, a file of the cache that SITE's group shares, is not built on.

    Empty where it may be, and where it is not there. A member of the group cannot give the name of
    a publisher's file to another one, since the folder is sticky (`Sharing.make_own_names_folder`).
    """
    sharing = site.sharing
    if not sharing.names_publishers:
        return ""
    try:
        with descriptors.hold_folder(path.parent) as folder:
            gate.check_names_stay(folder, path.parent, sharing)
        open_file(path, publishers=sharing).close()
    except FileNotFoundError:
        return ""
    except (InputError, StoreError) as error:
        return error.message
    return ""


def find_bundled_base(lock: Lock, platform: str, site: Site) -> Path | None:
    """Return the base that a bundle brought for this very LOCK; None where there is none.

    The file is named by its own sha256, because no registry vouches for it. One that is a
    stranger's counts as none.
    """
    folder = name_offline_folder(site, lock, platform)
    for path in folder.glob("base-*.sqsh"):
        if BUNDLED.fullmatch(path.name) and not explain_distrust_in(site, path):
            return path
    return None


def base_name(lock: Lock, platform: str, site: Site) -> str:
    """Return the file name of LOCK's base in the cache.

    It is made of the base's digest, the version of the importer, and the compression.
    """
    digest = lock.platform(platform).digest.replace(":", "-")
    return f"{digest}-{VERSION}-{site.build.compression}.sqsh"


def _import(
    reference: Reference, platform: str, final: Path, bench: Workbench, *, once: bool = False
) -> Imported:
    """Import the image of REFERENCE for PLATFORM into the file FINAL.

    Each digest has one import at a time. What a killed import has downloaded is kept in `partial`,
    and the next one continues from there. ONCE imports a base to build on: if FINAL exists by now,
    it is returned as it is, and the site's group shares it.
    """
    source = open_source(reference, platform, bench.registry)
    digest = source.image.digest
    site = bench.site
    progress = bench.progress
    cache = cache_of(site)

    def tell_waiting(owner: str) -> None:
        progress(f"waiting for another import of the same image: {owner}")

    key = f"import{hashlib.sha256(digest.encode()).hexdigest()[:16]}"
    with cache.lease(key, tell_waiting):
        # Whoever held the lease until now may have been anybody who can write to the cache.
        if once and explain_distrust_in(site, final):
            final = open_own_cache(site).top / final.name
        if once and final.exists():
            return Imported(final, final.stat().st_size, source.image, 0.0, 0)

        began = time.monotonic()
        with hold_cache(cache):
            done = pack_image(
                source,
                final,
                cache.top / "partial" / digest.replace(":", "-"),
                site.build.compression,
                bench.runner,
                progress,
                lambda image: list_files_above(image, str(reference)),
                str(reference),
                site.build.bounds.as_bounds(),
                rooted=once,
                sharing=site.sharing if once else ALONE,
            )
        seconds = round(time.monotonic() - began, 3)
        progress.event("imported", path=str(final), size=done.size, seconds=seconds)
        return done
