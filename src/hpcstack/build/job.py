"""The folder of one build, and its log without the site's logins.

Tested in tests/hostile/test_gifts.py.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import Job
from hpcstack.core.errors import InputError
from hpcstack.core.files import write_tree
from hpcstack.render.site_files import CA_FILE, make_lent_files
from hpcstack.site.logins import build_for, redact_logins
from hpcstack.store.cache import open_own_cache

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.build.workbench import Workbench
    from hpcstack.site.load import Site

MAX_LOG = 32 << 20  # bytes of a log that are read at once


def make_job(
    work: Path, files: Mapping[str, str], base: Path, registry: str, bench: Workbench
) -> Job:
    """Write the folder WORK of one build, and return the job that an engine gets.

    WORK holds the rendered FILES, what the site lends to a base from REGISTRY (mirrors, proxy, CA
    bundle), an empty log, and later the image. Raise InputError where the site's CA bundle cannot
    be read.
    """
    site = bench.site
    progress = bench.progress

    # Programs of the base can read what is lent, so logins go only to bases of trusted registries.
    settings = build_for(site, registry)
    if settings != site.build:
        progress(
            f"the logins in this site's URLs are not lent to this build: "
            f"registries.{registry}.trusted: true in site.yaml lends them"
        )

    job = Job(
        context=work / "rendered",
        lent=work / "lent",
        work=work,
        base=base,
        layers=open_own_cache(site).top / "steps",
        output=work / "image.sqsh",
        log=work / "build.log",
        settings=settings,
        progress=progress,
    )
    write_tree(job.context, files, on_disk=False)
    write_tree(job.lent, make_lent_files(site, settings), on_disk=False)
    write_tree(work, {"build.log": ""}, on_disk=False)

    bundle = site.build.ca_bundle
    if bundle:
        try:
            shutil.copyfile(bundle, job.lent / CA_FILE)
        except OSError as error:
            raise InputError(
                f"build.ca_bundle in site.yaml: {bundle}: {error.strerror}",
                page="mirror-a-registry",
            ) from None
    return job


def redact_log(log: Path, site: Site) -> None:
    """Rewrite LOG without the site's logins; do so before anything quotes or copies it."""
    clean = log.with_name(f"{log.name}.clean")
    with (
        log.open(encoding="utf-8", errors="replace") as lines,
        clean.open("w", encoding="utf-8") as out,
    ):
        # A program of the base may print a line without end: read it in pieces of 64 KiB.
        for line in iter(lambda: lines.readline(1 << 16), ""):
            out.write(redact_logins(line, site))
    clean.replace(log)


def read_log(log: Path) -> str:
    """Return the text of LOG; where it exceeds MAX_LOG bytes, only its beginning and its end."""
    size = log.stat().st_size
    half = MAX_LOG // 2

    with log.open("rb") as file:
        if size <= MAX_LOG:
            text = file.read()
        else:
            beginning = file.read(half) + b"\n... the log goes on ...\n"
            file.seek(size - half)
            text = beginning + file.read()
    return text.decode("utf-8", "replace")
