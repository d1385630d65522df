"""Why an image does not come out of the cache, where that is no failure."""

from __future__ import annotations

from hpcstack.core.errors import HpcstackError


class NotShared(HpcstackError):
    """This image does not go into the cache: whoever wants it imports it for himself.
    launchers/on-node/importer.sh.j2 knows its exit code.
    """

    exit_code = 8


class NotHere(NotShared):
    """What this node, or who asked, cannot do now: it says nothing of others."""


class HolderGone(HpcstackError):
    """Who had the import to do is gone: he cannot be asked for a login any more."""
