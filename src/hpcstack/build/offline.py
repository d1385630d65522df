"""Lend a build without a network the packages that a bundle brought.

Tested in tests/integration/test_images.py and tests/hostile/test_colleagues.py.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from hpcstack.build.base import BUNDLED
from hpcstack.core.errors import InputError
from hpcstack.core.files import open_file
from hpcstack.store.cache import name_offline_folder

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.build.request import BuildRequest


def lend_bundle(job_lent: Path, request: BuildRequest) -> None:
    """Copy the bundle's packages for REQUEST into JOB_LENT, where its pip and apt find them.

    Raise InputError where the lock has packages and no bundle has brought them, and for what is no
    file, or not a publisher's.
    """
    folder = name_offline_folder(request.site, request.lock, request.platform)
    if not folder.is_dir():
        locked = request.lock.platform(request.platform)
        if locked.apt or locked.dnf or locked.pip:
            raise InputError(
                f"the packages of {request.stack.full_name} are not here, and --offline fetches "
                "nothing",
                "hpcstack bundle create where there is a network, hpcstack bundle apply here",
                page="air-gap",
            )
        return

    target = job_lent / "packages"
    target.mkdir()
    for path in folder.iterdir():
        if not BUNDLED.fullmatch(path.name):
            # A copy, not a link: some engines let a step write to what it is lent. Members of the
            # group may write to FOLDER, so a link there could lead to any file of the builder's.
            with (
                open_file(path, publishers=request.site.sharing) as source,
                (target / path.name).open("xb") as copy,
            ):
                shutil.copyfileobj(source, copy, 1 << 20)
