"""What a build without a network is lent in its place: the packages that a bundle brought."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from hpcstack.build.base import BUNDLED
from hpcstack.core.errors import InputError
from hpcstack.store.cache import offline_folder

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.build.request import BuildRequest


def lend_bundle(job_lent: Path, request: BuildRequest) -> None:
    """Into what the site lends to an offline build: the bundle's packages, for pip and apt in place
    of a network.
    """
    folder = offline_folder(request.site, request.lock, request.platform)
    if not folder.is_dir():
        locked = request.lock.platform(request.platform)
        if locked.apt or locked.pip:
            raise InputError(
                f"there are no packages of {request.stack.full_name} for a build without a network",
                "hpcstack bundle create where there is one, hpcstack bundle apply here",
            )
        return
    target = job_lent / "packages"
    target.mkdir()
    for path in folder.iterdir():
        if not BUNDLED.fullmatch(path.name):
            shutil.copyfile(
                path, target / path.name
            )  # no link: some engines let a step write what it is lent
