"""The folder of one build, and its log: what an engine is given, and what of it may be kept."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import Job
from hpcstack.core.errors import InputError
from hpcstack.core.files import write_tree
from hpcstack.render.site_files import CA_FILE, lent_files
from hpcstack.site.logins import build_for, redact_logins
from hpcstack.store.cache import own_cache

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.build.workbench import Workbench
    from hpcstack.site.load import Site

MAX_LOG = 32 << 20  # bytes of a log that are read at once


def make_job(
    work: Path, files: Mapping[str, str], base: Path, registry: str, bench: Workbench
) -> Job:
    """The folder of one build: rendered FILES, what the site lends to bases of REGISTRY, where the
    image will be.
    """
    site, progress = bench.site, bench.progress
    settings = build_for(site, registry)
    if settings != site.build:
        progress(
            f"the logins in this site's URLs are not lent: registries.{registry}.trusted in "
            f"site.yaml would do it"
        )
    job = Job(
        context=work / "rendered",
        lent=work / "lent",
        work=work,
        base=base,
        layers=own_cache(site).top / "steps",
        output=work / "image.sqsh",
        log=work / "build.log",
        settings=settings,
        progress=progress,
    )
    write_tree(job.context, files, on_disk=False)
    write_tree(job.lent, lent_files(site, settings), on_disk=False)
    write_tree(work, {"build.log": ""}, on_disk=False)
    if bundle := site.build.ca_bundle:
        try:
            shutil.copyfile(bundle, job.lent / CA_FILE)
        except OSError as error:
            raise InputError(f"build.ca_bundle in site.yaml: {bundle}: {error.strerror}") from None
    return job


def redact_log(log: Path, site: Site) -> None:
    """LOG without the site's logins, before it goes anywhere."""
    clean = log.with_name(f"{log.name}.clean")
    with (
        log.open(encoding="utf-8", errors="replace") as lines,
        clean.open("w", encoding="utf-8") as out,
    ):
        for line in iter(lambda: lines.readline(1 << 16), ""):
            out.write(redact_logins(line, site))
    clean.replace(log)


def read_log(log: Path) -> str:
    """The beginning and the end of LOG: all of it, unless it is very long."""
    size = log.stat().st_size
    with log.open("rb") as file:
        text = file.read(MAX_LOG // 2)
        if size > MAX_LOG:
            text += b"\n... the log goes on ...\n"
        file.seek(max(len(text) if size <= MAX_LOG else 0, size - MAX_LOG // 2))
        return (text + file.read()).decode("utf-8", "replace")
