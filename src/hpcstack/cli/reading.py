"""The images of releases, read with progress: what `verify --all` and `status --check --deep`
share.
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
    """Each release, or those of NAME, whose image was read: at RATE megabytes a second at most, and
    MOST images.
    """
    from hpcstack.publish.read_images import check_published

    pace = rate * MEGABYTE
    with show_progress("reading") as progress:
        return check_published(
            session.site, session.store, progress, bytes_a_second=pace, most=most, name=name
        )
