"""Asking the service of this node for an image, with one's own logins."""

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
from hpcstack.oci.client import Registry
from hpcstack.oci.reference import registry_image, user_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.progress import Progress
    from hpcstack.site.load import Site

KINDS = {"not shared": NotShared, "registry": RegistryError}
STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")


def ask_service(image: str, site: Site, progress: Progress) -> dict[str, str]:
    """What the service of this node gives for IMAGE, of this machine's platform: {path, digest,
    how}.

    NotShared where there is no service, or it does not share this image; RegistryError or
    StoreError where it cannot be had.
    """
    open_cache(site)
    base, path = registry_image(image), site.image_cache.socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
            line = Line(connection)
            line.say(
                {"image": image, "platform": find_host_platform(), "step": step_name(os.environ)}
            )
            while True:
                said = line.hear()
                if "path" in said:
                    return {name: str(said.get(name, "")) for name in ("path", "digest", "how")}
                if "error" in said:
                    raise KINDS.get(str(said.get("kind")), StoreError)(
                        str(said["error"]), str(said.get("hint", ""))
                    )
                if "challenge" in said:
                    line.say(answer_challenge(said, base.registry, site, user_in(image)))
                elif "says" in said:
                    progress(str(said["says"]))
                elif "total" in said:
                    progress.amount("import", int(said["done"]), int(said["total"]))
        except (OSError, EOFError) as error:
            raise NotShared(
                f"the image service does not answer on {path} ({error})", "tell the site"
            ) from None


def answer_line(line: bytes, image: str, site: Site) -> str:
    """The answer, a line of JSON, to a challenge that came as LINE when IMAGE was asked for.
    InputError for what is none.
    """
    try:
        said = parse_untrusted_json(line, MAX_LINE)
    except ValueError:
        raise InputError(
            "this is not a challenge of a registry's", "the importer asks with one"
        ) from None
    return json.dumps(answer_challenge(said, registry_image(image).registry, site, user_in(image)))


def answer_challenge(
    said: Mapping[str, object], registry: str, site: Site, user: str = ""
) -> dict[str, str]:
    """What the service is told to SAID {challenge, host, image, repository} of REGISTRY, the one
    that was asked for, or of its mirror, by the login of USER there, if one was named:
    {authorization}, {refused, hint} or {cannot, hint}. Another host gets nothing, and a password
    only a registry that this process has seen to know nothing else.
    """
    asking = Registry(site, user=user)
    host, challenge = str(said.get("host")), str(said.get("challenge"))
    try:
        base = registry_image(str(said.get("image")))
        if base.registry != registry or host != asking.place(base)[0]:
            raise InputError(f"{host} is not the registry that was asked for", "tell the site")
        if challenge.lower().startswith("basic") and not asking.wants_basic(base):
            raise InputError(
                f"{host} gives tokens, and yet a password was asked for", "tell the site"
            )
        return {
            "authorization": asking.authorization(
                challenge, host, base, str(said.get("repository"))
            ).header
        }
    except LoginRefused as error:
        with contextlib.suppress(
            HpcstackError
        ):  # a login that counts no more, for an image that needs none
            asking = Registry(site, anonymous=True)
            return {
                "authorization": asking.authorization(
                    challenge, host, base, str(said.get("repository"))
                ).header
            }
        return {"refused": error.message, "hint": error.hint}
    except HpcstackError as error:
        return {"cannot": error.message, "hint": error.hint}


def step_name(environ: Mapping[str, str]) -> str:
    """The job step that this process is of, where it has several nodes; else empty."""
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_JOB_NUM_NODES") or "1"
    if not environ.get("SLURM_JOB_ID") or nodes == "1":
        return ""
    return "+".join(re.sub(r"[^A-Za-z0-9._-]", "-", environ.get(name, "")) for name in STEP)
