"""Ask this node's service for an image, and answer its challenges with the user's own logins.

Tested in tests/unit/imagecache/test_serve.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from typing import TYPE_CHECKING

from hpcstack.build.base import find_host_platform
from hpcstack.core.errors import HpcstackError, InputError, LoginRefused, RegistryError, StoreError
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.imagecache.layout import open_cache
from hpcstack.imagecache.messages import MAX_LINE, Line
from hpcstack.imagecache.refusals import NotShared
from hpcstack.oci.challenges import choose_challenge
from hpcstack.oci.client import Registry
from hpcstack.oci.reference import parse_registry_image, parse_user

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.progress import Progress
    from hpcstack.site.load import Site

KINDS = {"not shared": NotShared, "registry": RegistryError}
STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")


def ask_service(image: str, site: Site, progress: Progress) -> dict[str, str]:
    """Ask this node's service for IMAGE, for this machine's platform. Return {path, digest, how}.

    Raise NotShared if there is no service, or it does not share this image; RegistryError or
    StoreError if the image cannot be had.
    """
    open_cache(site)  # raises InputError if the site has no cache
    base = parse_registry_image(image)
    path = site.image_cache.socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
            line = Line(connection)
            line.say(
                {
                    "image": image,
                    "platform": find_host_platform(),
                    "step": make_step_name(os.environ),
                }
            )

            while True:  # until the last message: a path or an error
                said = line.hear()
                if "path" in said:
                    return {name: str(said.get(name, "")) for name in ("path", "digest", "how")}
                if "error" in said:
                    kind = KINDS.get(str(said.get("kind")), StoreError)
                    raise kind(str(said["error"]), str(said.get("hint", "")))
                if "challenge" in said:
                    line.say(answer_challenge(said, base.registry, site, parse_user(image)))
                elif "says" in said:
                    progress(str(said["says"]))
                elif "total" in said:
                    progress.amount("import", int(said["done"]), int(said["total"]))
        except (OSError, EOFError) as error:
            raise NotShared(
                f"the image service does not answer on {path} ({error})",
                "tell the site's administrators",
            ) from None


def answer_line(line: bytes, image: str, site: Site) -> str:
    """Return the answer, a line of JSON, to the challenge LINE that came for IMAGE.

    Raise InputError if LINE is not a challenge.
    """
    try:
        said = parse_untrusted_json(line, MAX_LINE)
    except ValueError:
        raise InputError(
            "standard input is not a registry's challenge",
            "the importer calls this, not people; to get an image: hpcstack cache get IMAGE",
        ) from None
    return json.dumps(
        answer_challenge(said, parse_registry_image(image).registry, site, parse_user(image))
    )


def answer_challenge(
    said: Mapping[str, object], registry: str, site: Site, user: str = ""
) -> dict[str, str]:
    """Return the answer to the service's message SAID {challenge, host, image, repository}.

    REGISTRY is the one that the user asked for, and USER whose login to take there, if the user
    named one. The answer is {authorization}, {refused, hint} or {cannot, hint}.

    The service is not trusted with more than it needs. Nothing is sent for another host than
    REGISTRY or its mirror. A password itself is sent only if this process has seen that the
    registry knows no tokens; a token opens only one repository, and not for long.
    """
    asking = Registry(site, user=user)
    host = str(said.get("host"))
    challenge = str(said.get("challenge"))
    repository = str(said.get("repository"))
    try:
        base = parse_registry_image(str(said.get("image")))
        if base.registry != registry or host != asking.place(base)[0]:
            raise InputError(
                f"{host} is not the registry that was asked for", "tell the site's administrators"
            )
        way = choose_challenge(challenge)
        if way and way.scheme == "basic" and not asking.wants_basic(base):
            raise InputError(
                f"{host} gives tokens, and yet a password was asked for",
                "tell the site's administrators",
            )
        return {"authorization": asking.authorization(challenge, host, base, repository).header}
    except LoginRefused as error:
        # The login may have expired, and the image may need none.
        with contextlib.suppress(HpcstackError):
            asking = Registry(site, anonymous=True)
            return {"authorization": asking.authorization(challenge, host, base, repository).header}
        return {"refused": error.message, "hint": error.hint}
    except HpcstackError as error:
        return {"cannot": error.message, "hint": error.hint}


def make_step_name(environ: Mapping[str, str]) -> str:
    """Return the name of this process's job step if it has several nodes, else the empty string."""
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_JOB_NUM_NODES") or "1"
    if not environ.get("SLURM_JOB_ID") or nodes == "1":
        return ""
    return "+".join(re.sub(r"[^A-Za-z0-9._-]", "-", environ.get(name, "")) for name in STEP)
