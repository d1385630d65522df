"""Whether the image cache that site.yaml names can do its work, as far as this machine sees it."""

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
    """Nothing where the site has none."""
    settings = site.image_cache
    if not settings.folder:
        return
    folder = Path(settings.folder)
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        yield report_wrong("image-cache", where, f"{folder}: {error.strerror}")
        return
    if name_owner(folder) != settings.account:
        yield report_wrong(
            "image-cache",
            where,
            f"{folder} belongs to {name_owner(folder)}, not to {settings.account}",
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
        service = (
            "its service answers here"
            if _answers(settings.socket)
            else "no service of it on this machine"
        )
        yield report_fine(
            "image-cache", where, f"{folder} is {settings.account}'s, and keeps ACLs; {service}"
        )


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(2)
        try:
            one.connect(path)
        except OSError:
            return False
    return True
