"""Errors for an image that cannot be had from the cache, but may be had in another way.

Tested in tests/unit/imagecache/test_provide.py and tests/unit/imagecache/test_careful.py.
"""

from __future__ import annotations

from hpcstack.core.errors import HpcstackError


class NotShared(HpcstackError):
    """This image does not go into the cache: whoever wants it must import it alone.

    launchers/on-node/importer.sh.j2 does so where it sees this exit code.
    """

    exit_code = 8
    page = "set-up-the-image-cache"


class NotHere(NotShared):
    """This node, or this client, cannot do it now. Others may be able to."""


class HolderGone(HpcstackError):
    """The client for whom the import was made is gone, and cannot be asked for a login any more."""
