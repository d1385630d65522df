"""Names of images as Docker and Enroot write them, as a recipe names its base.

Tested in tests/unit/draft/test_from_dockerfile.py.
"""

from __future__ import annotations

import re

from hpcstack.core.errors import InputError
from hpcstack.recipe.model import IMAGE

DOCKER_HUB = "docker.io"


def complete_image_name(text: str, where: str) -> str:
    """Return the image TEXT as REGISTRY/REPOSITORY:TAG.

    Without a registry it is Docker Hub's, and without a tag `latest`, as everywhere. Enroot's `#`
    behind the registry is a slash. WHERE is where TEXT stands. Raise InputError for what is no
    name of an image.
    """
    name = re.sub(r"^(docker|dockerd|podman|oras)://", "", text).replace("#", "/", 1)
    first, slash, rest = name.partition("/")
    if not slash:
        name = f"{DOCKER_HUB}/library/{name}"
    elif not re.search(r"[.:]|^localhost$", first):
        name = f"{DOCKER_HUB}/{name}"
    elif first == DOCKER_HUB and "/" not in rest:
        name = f"{DOCKER_HUB}/library/{rest}"
    if ":" not in name.rpartition("/")[2]:
        name = f"{name}:latest"
    if not IMAGE.fullmatch(name):
        raise InputError(
            f"{where}: {text!r} is not the name of an image",
            "as in: nvcr.io/nvidia/pytorch:24.11-py3",
            page="bring-what-you-have",
        )
    return name
