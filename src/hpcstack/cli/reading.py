"""Read the images of releases with progress, for `verify --all` and `status --check --deep`.

Tested in tests/integration/test_rebuilding.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.cli.session import Session, show_progress

if TYPE_CHECKING:
    from hpcstack.publish.read_images import Checked

MEGABYTE = 1_000_000


def read_released_images(
    session: Session, rate: int = 0, most: int = 0, name: str = ""
) -> list[Checked]:
    """Read the images of all releases, or of those of NAME. Return what was found of each release.

    RATE is in megabytes a second, and MOST is a number of images; 0 means no limit.
    """
    from hpcstack.publish.read_images import check_published

    pace = rate * MEGABYTE
    with show_progress("reading") as progress:
        return check_published(
            session.site, session.store, progress, bytes_a_second=pace, most=most, name=name
        )
