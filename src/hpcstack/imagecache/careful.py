"""A registry client for a service that asks whatever registry a user names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from hpcstack.core.errors import RegistryError
from hpcstack.imagecache.refusals import NotShared
from hpcstack.oci.client import Registry
from hpcstack.oci.protocol import is_address

if TYPE_CHECKING:
    import requests

REDIRECTS = 6


class CarefulRegistry(Registry):
    """A registry client that a registry cannot redirect to where its users could not go."""

    def _fetch(self, url: str, method: str = "GET", **how: Any) -> requests.Response:
        """Send one request, and follow its redirects only to https and to names of other machines.

        The Authorization header goes to no other host. Raise NotShared for a redirect to this
        machine or to an IP address, RegistryError for more than REDIRECTS of them.
        """
        follow = how.pop("allow_redirects", True)
        for _ in range(REDIRECTS):
            answer = super()._fetch(url, method, **how, allow_redirects=False)
            if not (follow and answer.is_redirect):
                return answer
            target = urljoin(url, answer.headers["Location"])
            answer.close()

            here, there = urlsplit(url), urlsplit(target)
            if here[:2] != there[:2]:  # another scheme or host
                if there.scheme != "https" or is_address(there.hostname or ""):
                    where = f"{there.scheme}://{there.netloc}"
                    raise NotShared(
                        f"{here.netloc} redirects to {where}, which is not followed",
                        "tell the site's administrators",
                    )
                headers = dict(how.get("headers", {}))
                headers.pop("Authorization", None)
                how = {**how, "headers": headers}
            url = target
        raise RegistryError(
            f"{urlsplit(url).netloc} redirects again and again", "tell the registry's admin"
        )
