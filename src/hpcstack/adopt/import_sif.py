"""Import a SIF as a squashfs that Pyxis and Enroot run, too.

A SIF is a squashfs with what Apptainer reads of an image. It is packed again with what Enroot reads,
which says the same: the variables, and /.singularity.d/runscript as the command.

Tested in tests/integration/test_adopting.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.adopt.survey import survey_image
from hpcstack.build.base import import_image
from hpcstack.core.errors import InputError
from hpcstack.core.files import digest_of
from hpcstack.core.outputs import new_file
from hpcstack.core.replacing import replace_file
from hpcstack.oci.flatten import NeedsTwoPasses
from hpcstack.oci.importer import Imported, pack_tars, read_tars
from hpcstack.oci.manifest import Image
from hpcstack.oci.metadata import (
    ETC,
    SINGULARITY,
    make_file_member,
    name_provenance,
    render_entrypoint,
    render_environment,
)
from hpcstack.oci.pack import read_back
from hpcstack.store.sif import SIF_SUFFIX, extract_squashfs
from hpcstack.store.workspace import make_workspace

if TYPE_CHECKING:
    from hpcstack.build.workbench import Workbench
    from hpcstack.oci.metadata import Added

PIECE = 1 << 20  # bytes that are read at once


def import_any(
    text: str, platform: str, output: Path | None, bench: Workbench, *, force: bool = False
) -> Imported:
    """Import what TEXT names: a file that ends in .sif, or what `import_image` takes.

    Raise InputError for a SIF that is not there.
    """
    if not text.endswith(SIF_SUFFIX):
        return import_image(text, platform, output, bench, force=force)
    sif = Path(text).expanduser()
    if not sif.is_file():
        raise InputError(f"there is no file {sif}", "name a SIF, or REGISTRY/NAME:TAG")
    return import_sif(sif, platform, output, bench, force=force)


def import_sif(
    sif: Path, platform: str, output: Path | None, bench: Workbench, *, force: bool = False
) -> Imported:
    """Import SIF into the file OUTPUT, by default its own name with .sqsh, in this folder.

    Unless FORCE is set, an existing file is not replaced. Raise InputError for what is no SIF, and
    for one that is not for PLATFORM, where that is named.
    """
    began = time.monotonic()
    final = new_file(output or Path(f"{sif.stem}.sqsh"), force=force)
    with make_workspace(bench.site, bench.runner, sif.stat().st_size) as work:
        inner = work / "extracted.sqsh"
        extract_squashfs(sif, inner, bench.runner)
        survey = survey_image(inner)
        if platform and survey.platform != platform:
            raise InputError(f"{sif} is for {survey.platform}", "leave --platform out")
        for one in survey.unknown:
            bench.progress(f"UNKNOWN: {one}")

        start = (f"/{SINGULARITY}/runscript",)
        texts = {
            f"{ETC}/environment": render_environment(survey.environment),
            f"{ETC}/fstab": "",
            f"{ETC}/rc": render_entrypoint("/", (), start, name_provenance(sif.name)),
        }
        above = [make_file_member(path, text) for path, text in texts.items()]
        bench.progress("packing")
        with replace_file(final, bench.site.sharing) as part:
            try:
                _pack_again(inner, above, part, work, bench)
            except NeedsTwoPasses as error:
                raise InputError(
                    f"{sif} cannot be given what Enroot reads: {error}",
                    "is its /etc a folder? no tool makes such an image by accident",
                ) from None
            read_back(part, bench.runner)

    image = Image(f"sha256:{digest_of(sif)}", survey.platform, {}, ())
    return Imported(final, final.stat().st_size, image, time.monotonic() - began, 1)


def _pack_again(inner: Path, above: Added, output: Path, work: Path, bench: Workbench) -> None:
    """Pack the squashfs INNER with the files ABOVE over it into OUTPUT. WORK takes the log."""
    compression = bench.site.build.compression
    with bench.runner.read(["sqfs2tar", str(inner)]) as pipe:
        pieces = iter(lambda: pipe.read(PIECE), b"")
        pack_tars(read_tars(above, pieces), output, work, compression, bench.runner)
