"""The Docker daemon, or podman's compatible socket, through Docker's own SDK.

Tested in tests/integration/test_engines.py.
"""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpcstack.core.errors import BuildError, InputError, MissingToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 600  # seconds for one answer: an import or export of a large image takes minutes


class Daemon:
    """A connection to the daemon. Each method removes the containers that it creates."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def inspect(self, name: str) -> dict[str, Any]:
        """Return the daemon's description of the image NAME. Raise InputError if it has none."""
        from docker.errors import APIError, ImageNotFound

        try:
            found: dict[str, Any] = self.client.api.inspect_image(name)
        except ImageNotFound:
            raise InputError(
                f"the Docker daemon has no image {name}",
                "see what it has: docker images",
                page="import-a-base-image",
            ) from None
        except APIError as error:
            raise BuildError(
                f"the Docker daemon refuses {name}: {error.explanation or error}"
            ) from None
        return found

    def filesystem(self, name: str) -> Iterator[bytes]:
        """Yield the whole tree of the image NAME as one tar.

        It is exported from a container that is created for this, never started, and removed.
        """
        made = self.client.api.create_container(name, command=["/"], network_disabled=True)
        try:
            yield from self.client.api.export(made["Id"], chunk_size=1 << 20)
        finally:
            with contextlib.suppress(Exception):
                self.client.api.remove_container(made["Id"], force=True)

    def has(self, name: str) -> bool:
        """Return whether the daemon has the image NAME."""
        return bool(self.client.images.list(name=name))

    def import_tree(self, tar: IO[bytes], name: str, changes: list[str]) -> None:
        """Create the image NAME with TAR as its only layer.

        CHANGES are Dockerfile instructions such as `ENV A=1`. Raise BuildError if the daemon
        refuses.
        """
        repository, _, tag = name.partition(":")
        answer = self.client.api.import_image_from_stream(
            tar, repository=repository, tag=tag, changes=changes
        )
        if '"error"' in str(answer):
            raise BuildError(f"the Docker daemon did not take the base: {str(answer)[-400:]}")

    def build(
        self,
        context: Path,
        dockerfile: str,
        name: str,
        network: str,
        variables: dict[str, str],
        *,
        fresh: bool,
    ) -> Iterator[dict[str, Any]]:
        """Build DOCKERFILE in the folder CONTEXT as the image NAME. Yield the daemon's messages.

        A failure is the last message, {"error": ...}. Of VARIABLES only those for proxies are
        passed on. FRESH builds without the daemon's cache.
        """
        from docker.errors import APIError

        arguments = {key: value for key, value in variables.items() if key.endswith("_proxy")}
        try:
            yield from self.client.api.build(
                path=str(context),
                dockerfile=dockerfile,
                tag=name,
                network_mode=network,
                buildargs=arguments,
                rm=True,
                forcerm=True,
                nocache=fresh,
                decode=True,
            )
        except APIError as error:
            yield {"error": str(error.explanation or error)}

    def copy_out(self, name: str, path: str, folder: Path) -> None:
        """Copy the files in PATH, a folder of the image NAME, into a folder of its name in FOLDER.

        The daemon's archive is not trusted: only the last part of each member's name is used, so
        that nothing is written elsewhere. Raise BuildError if the image has no PATH, which a script
        in a base was to make: the base's shell may not have done what it was told.
        """
        from docker.errors import NotFound

        made = self.client.api.create_container(name, command=["/"], network_disabled=True)
        try:
            try:
                pieces, _ = self.client.api.get_archive(made["Id"], path)
            except NotFound:
                raise BuildError(
                    f"the base ran our script, and left no {path}",
                    "check that the base's /bin/bash is a real shell",
                ) from None
            with tempfile.TemporaryFile() as file:
                for piece in pieces:
                    file.write(piece)
                file.seek(0)
                with tarfile.open(fileobj=file) as tar:
                    for member in tar:
                        target = folder / Path(path).name / Path(member.name).name
                        target.parent.mkdir(parents=True, exist_ok=True)
                        if not member.isreg():
                            continue
                        body = tar.extractfile(member)
                        if body:
                            target.write_bytes(body.read())
        finally:
            with contextlib.suppress(Exception):
                self.client.api.remove_container(made["Id"], force=True)

    def remove(self, names: list[str], label: str) -> None:
        """Remove the images NAMES of a build, and what a failed build left under its LABEL.

        Nothing is raised: what cannot be removed stays.
        """
        for name in names:
            with contextlib.suppress(Exception):
                self.client.api.remove_image(name, force=True)
        with contextlib.suppress(Exception):
            self.client.api.prune_containers(filters={"label": [label]})
        with contextlib.suppress(Exception):
            self.client.api.prune_images(filters={"dangling": True, "label": [label]})


def connect_daemon() -> Daemon:
    """Connect to the daemon that $DOCKER_HOST names, or to the local one.

    Raise MissingToolError if no daemon answers.
    """
    import docker
    import requests
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=TIMEOUT)
        client.ping()
    except (DockerException, requests.RequestException) as error:
        raise MissingToolError(
            f"no Docker daemon answers: {str(error)[:200]}",
            "start it, or name podman's socket: "
            "DOCKER_HOST=unix://$XDG_RUNTIME_DIR/podman/podman.sock",
            page="choose-an-engine",
        ) from None
    return Daemon(client)
