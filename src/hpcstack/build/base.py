"""Imported images: into a file that the user names, or into the cache of bases, where a digest is
kept once.
"""

from __future__ import annotations

import hashlib
import os
import platform as machine
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.outputs import new_file
from hpcstack.oci.importer import VERSION, Imported, pack_image
from hpcstack.oci.metadata import list_files_above
from hpcstack.oci.reference import Reference, parse_reference
from hpcstack.oci.sources import open_source
from hpcstack.recipe.model import Base
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.store.cache import cache_of, hold_cache, mark_used, offline_folder, shared_cache

if TYPE_CHECKING:
    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.model import Lock
    from hpcstack.site.load import Site

BUNDLED = re.compile(r"base-[0-9a-f]{64}\.sqsh")


def import_image(
    text: str, platform: str, output: Path | None, bench: Workbench, *, force: bool = False
) -> Imported:
    """The image that TEXT names, for PLATFORM (this machine's by default), as the file OUTPUT."""
    reference = parse_reference(text)
    final = new_file(output or Path(reference.file_name), force=force)
    return _import(reference, platform or find_host_platform(), final, bench)


def find_host_platform() -> str:
    """This machine's platform, as registries say it."""
    names = {kernel: name for name, kernel in KERNEL_NAMES.items()}
    return names.get(machine.machine(), "linux/amd64")


def base_of(lock: Lock, platform: str, bench: Workbench) -> Path:
    """The squashfs of LOCK's base for PLATFORM, imported once and kept by its digest."""
    digest = lock.platform(platform).digest
    final = imported_base(lock, platform, bench.site)
    if final.exists():
        mark_used(final)
        return final

    of_the_site = shared_cache(bench.site).top / final.name
    if bench.site.own_store != bench.site.store and os.access(of_the_site, os.R_OK):
        bench.progress(f"on the site's own copy of the base, {of_the_site}")
        return of_the_site

    bench.progress(f"importing {lock.base.repository}:{lock.base.tag} ({digest[:19]})")
    base = Base.model_validate({"image": f"{lock.base.registry}/{lock.base.repository}@{digest}"})
    done = _import(Reference("docker", base=base), platform, final, bench, once=True)
    bench.progress(f"imported {done.size / 1e6:.0f} MB in {done.seconds:.1f} s")
    return final


def imported_base(lock: Lock, platform: str, site: Site) -> Path:
    """Where LOCK's base for PLATFORM lies in the cache, once it has been imported from its
    registry.
    """
    return cache_of(site).top / base_name(lock, platform, site)


def bundled_base(lock: Lock, platform: str, site: Site) -> Path | None:
    """The base that a bundle brought for this very LOCK.

    It is named by its own sha256: no registry vouches for it.
    """
    folder = offline_folder(site, lock, platform)
    found = [path for path in folder.glob("base-*.sqsh") if BUNDLED.fullmatch(path.name)]
    return found[0] if found else None


def base_name(lock: Lock, platform: str, site: Site) -> str:
    """The file in the cache that holds LOCK's base: its digest, and how it was imported and packed."""
    return f"{lock.platform(platform).digest.replace(':', '-')}-{VERSION}-{site.build.compression}.sqsh"


def _import(
    reference: Reference, platform: str, final: Path, bench: Workbench, *, once: bool = False
) -> Imported:
    """One import of a digest at a time: what one that was killed has fetched is there for the next.
    ONCE: as a base, to be built on; nothing is done where it is there.
    """
    source = open_source(reference, platform, bench.registry)
    digest, site, progress = source.image.digest, bench.site, bench.progress
    cache = cache_of(site)
    key = f"import{hashlib.sha256(digest.encode()).hexdigest()[:16]}"
    with cache.lease(
        key, lambda owner: progress(f"waiting for another import of the same image: {owner}")
    ):
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
            )
        progress.event(
            "imported", path=str(final), size=done.size, seconds=round(time.monotonic() - began, 3)
        )
        return done
