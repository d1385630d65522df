"""The registry client of a service that asks whatever registry a user names."""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin, urlsplit

from hpcstack.core.errors import RegistryError
from hpcstack.imagecache.refusals import NotShared
from hpcstack.oci.client import Registry
from hpcstack.oci.protocol import is_address

REDIRECTS = 6


class CarefulRegistry(Registry):
    """A registry that cannot send the service to where its users could not go."""

    def _fetch(self, url: str, method: str = "GET", **how: Any) -> Any:
        """One request, sent on only to where a registry may send one: not to this machine, nor to a
        bare address. The login goes to no other host.
        """
        follow = how.pop("allow_redirects", True)
        for _ in range(REDIRECTS):
            answer = super()._fetch(url, method, **how, allow_redirects=False)
            if not (follow and answer.is_redirect):
                return answer
            target = urljoin(url, answer.headers["Location"])
            answer.close()
            here, there = urlsplit(url), urlsplit(target)
            if here[:2] != there[:2]:
                if there.scheme != "https" or is_address(there.hostname or ""):
                    where = f"{there.scheme}://{there.netloc}"
                    raise NotShared(
                        f"{here.netloc} sends on to {where}, where nobody follows", "tell the site"
                    )
                plain = {
                    name: value
                    for name, value in how.get("headers", {}).items()
                    if name != "Authorization"
                }
                how = {**how, "headers": plain}
            url = target
        raise RegistryError(f"{urlsplit(url).netloc} sends on and on", "tell its admin")
