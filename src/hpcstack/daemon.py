"""The Docker daemon, or podman's compatible socket, through Docker's own SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hpcstack.errors import BuildError, InputError, MissingToolError

TIMEOUT = 600


class Daemon:
    """A connection. What it starts it removes again."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def inspect(self, name: str) -> dict[str, Any]:
        """What the daemon says of the image NAME. InputError if it has none."""
        from docker.errors import APIError, ImageNotFound

        try:
            found: dict[str, Any] = self.client.api.inspect_image(name)
        except ImageNotFound:
            raise InputError(f"the Docker daemon has no image {name}", "docker images shows what it has") from None
        except APIError as error:
            raise BuildError(f"the Docker daemon refuses {name}: {error.explanation or error}") from None
        return found

    def filesystem(self, name: str) -> Iterator[bytes]:
        """The whole tree of the image NAME as one tar: a container is made for it, never started, and removed."""
        made = self.client.api.create_container(name, command=["/"], network_disabled=True)
        try:
            yield from self.client.api.export(made["Id"], chunk_size=1 << 20)
        finally:
            with contextlib.suppress(Exception):
                self.client.api.remove_container(made["Id"], force=True)


def connect() -> Daemon:
    """MissingToolError if no daemon answers."""
    import docker
    import requests
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=TIMEOUT)
        client.ping()
    except (DockerException, requests.RequestException) as error:
        raise MissingToolError(
            f"no Docker daemon answers: {str(error)[:200]}",
            "start it, or name podman's socket: DOCKER_HOST=unix://$XDG_RUNTIME_DIR/podman/podman.sock",
        ) from None
    return Daemon(client)
