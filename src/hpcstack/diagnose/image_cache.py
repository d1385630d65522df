"""The doctor on the image cache: can it do its work, as far as this machine sees it?"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.files import name_owner
from hpcstack.diagnose.advice import Finding, report_fine, report_wrong
from hpcstack.imagecache import acl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.site.load import Site


def look_at_image_cache(site: Site, where: str) -> Iterator[Finding]:
    """Check the folder of the site's image cache, and whether its service answers.

    A site without an image cache has no finding.
    """
    settings = site.image_cache
    if not settings.folder:
        return
    folder = Path(settings.folder)
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        yield report_wrong("image-cache", where, f"{folder}: {error.strerror}")
        return

    owner = name_owner(folder)
    if owner != settings.account:
        yield report_wrong(
            "image-cache", where, f"{folder} belongs to {owner}, not to {settings.account}"
        )
    elif mode & 0o022:
        yield report_wrong(
            "image-cache", where, f"others than {settings.account} may write to {folder}"
        )
    elif not acl.keeps_acls(folder):
        yield report_wrong(
            "image-cache.acl", where, f"the filesystem of {folder} keeps no POSIX ACLs"
        )
    else:
        service = "no service of it on this machine"
        if _service_answers(settings.socket):
            service = "its service answers here"
        yield report_fine(
            "image-cache", where, f"{folder} is {settings.account}'s, and keeps ACLs; {service}"
        )


def _service_answers(path: str) -> bool:
    """Whether a program accepts connections at the Unix socket PATH."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(2)
        try:
            one.connect(path)
        except OSError:
            return False
    return True
