"""A registry client for a service that asks whatever registry a user names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from hpcstack.imagecache.refusals import NotShared
from hpcstack.oci.client import Registry
from hpcstack.oci.protocol import is_address

if TYPE_CHECKING:
    from urllib.parse import SplitResult


class CarefulRegistry(Registry):
    """A registry client that a registry cannot redirect to where its users could not go."""

    def _may_follow(self, _here: SplitResult, there: SplitResult) -> bool:
        """Return whether THERE speaks https and is the name of another machine."""
        return there.scheme == "https" and not is_address(there.hostname or "")

    def _refuse_redirect(self, host: str, target: str) -> NoReturn:
        raise NotShared(
            f"{host} redirects to {target}, which is not followed",
            "tell the site's administrators",
        )
