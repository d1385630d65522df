"""What a recipe can say of a devcontainer.json.

Its keys: https://containers.dev/implementors/json_reference/. It is JSON with comments.

Tested in tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text
from hpcstack.core.yaml import Mark
from hpcstack.draft.from_dockerfile import draft_dockerfile
from hpcstack.draft.from_edf import find_line
from hpcstack.draft.image_names import complete_image_name
from hpcstack.draft.recipe_draft import RecipeDraft

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LARGEST = 1 << 20  # bytes
# Keys that say how an editor works with the container, and nothing of the image.
OF_EDITORS = (
    *("$schema", "name", "customizations", "extensions", "settings", "secrets", "waitFor"),
    *("forwardPorts", "portsAttributes", "otherPortsAttributes", "appPort", "shutdownAction"),
    *("overrideCommand", "workspaceFolder", "workspaceMount", "userEnvProbe"),
    "updateRemoteUserUID",
)
COMMANDS = (
    "onCreateCommand",
    "updateContentCommand",
    "postCreateCommand",
)
# Keys that a recipe has no words for: why, and what to write.
OTHERS = {
    "features": ("it is a script that installs something", "packages: {apt: [...], pip: [...]}"),
    "dockerComposeFile": ("it describes several containers", "hpcstack draft DOCKERFILE"),
    "runArgs": ("launch says how a container is started", "hpcstack launch --help"),
    "remoteEnv": ("it is for the editor's own processes", "environment: {NAME: value}"),
    "containerUser": ("containers run as whoever starts them", ""),
    "remoteUser": ("containers run as whoever starts them", ""),
    "initializeCommand": ("it runs on the machine of the editor", ""),
    "postStartCommand": ("it runs at each start", "write it into the job's script"),
    "postAttachCommand": ("it runs at each start", "write it into the job's script"),
    "hostRequirements": ("jobs ask for nodes: launch -N, --gpus", ""),
    "privileged": ("no container of a job is that", ""),
    "capAdd": ("containers of jobs have the rights of whoever starts them", ""),
    "securityOpt": ("containers of jobs have the rights of whoever starts them", ""),
    "init": ("Slurm ends what a job leaves behind", ""),
}


def draft_devcontainer(
    path: Path, arguments: Mapping[str, str], target: str, platform: str
) -> RecipeDraft:
    """Return what a recipe can say of the devcontainer.json PATH, and of the Dockerfile it names.

    The arguments are those of `draft_dockerfile`. Raise InputError where it cannot be read.
    """
    text, document = _load(path)
    lines = text.splitlines()

    def place_of(key: str) -> Mark:
        return Mark(path.name, find_line(lines, rf".*[\"']{re.escape(key)}[\"']\s*:"))

    build = document.get("build", {})
    build = build if isinstance(build, dict) else {}
    named = document.get("dockerFile") or build.get("dockerfile")
    if isinstance(named, str):
        own = {key: str(value) for key, value in build.get("args", {}).items()}
        context = path.parent / str(build.get("context") or document.get("context") or ".")
        draft = draft_dockerfile(
            path.parent / named,
            context,
            {**own, **arguments},
            target or str(build.get("target", "")),
            platform,
        )
    elif isinstance(document.get("image"), str):
        draft = RecipeDraft(platform=platform)
        draft.image = complete_image_name(document["image"], str(place_of("image")))
    else:
        draft = RecipeDraft(platform=platform)
    draft.understood += bool(draft.image)

    for key, value in document.items():
        _read_key(draft, place_of(key), key, value)
    return draft


def _load(path: Path) -> tuple[str, dict[str, Any]]:
    import json5

    try:
        text = read_text(path.resolve(), LARGEST)
        document = json5.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read: {error}",
            "name a devcontainer.json",
            page="bring-what-you-have",
        ) from None
    if not isinstance(document, dict):
        raise InputError(
            f"{path} is no devcontainer.json", "it is a mapping", page="bring-what-you-have"
        )
    return text, document


def _read_key(draft: RecipeDraft, place: Mark, key: str, value: Any) -> None:
    said = f"{key}: {value}"
    before = len(draft.left_out)
    if key in ("image", "build", "dockerFile", "context"):
        return
    if key in OF_EDITORS:
        draft.note(place, said, "it is for the editor")
        return
    if key == "containerEnv" and isinstance(value, dict):
        for name, text in value.items():
            _set_variable(draft, place, name, str(text))
    elif key == "mounts" and isinstance(value, list):
        for mount in value:
            _add_mount(draft, place, mount)
    elif key in COMMANDS and isinstance(value, str):
        draft.leave_out(
            place, said, "it runs when the container is made", "write it as a step of `run`"
        )
    elif not value:
        draft.note(place, said, "it asks for nothing")
    else:
        why, instead = OTHERS.get(key, ("this key is not understood", ""))
        draft.leave_out(place, said, why, instead)
    draft.understood += len(draft.left_out) == before


def _set_variable(draft: RecipeDraft, place: Mark, name: str, value: str) -> None:
    if "${" in value:
        draft.leave_out(place, f"{name}={value}", "its value is another one on each machine", "")
    else:
        draft.set_variable(place, name, value)


def _add_mount(draft: RecipeDraft, place: Mark, mount: Any) -> None:
    """Add a mount, in Docker's words (`source=A,target=B,type=bind`) or as a mapping."""
    if isinstance(mount, str):
        pairs = (part.partition("=") for part in mount.split(","))
        found = {name.strip(): value for name, _, value in pairs}
    else:
        found = {str(key): str(value) for key, value in dict(mount).items()}
    source = found.get("source") or found.get("src", "")
    target = found.get("target") or found.get("dst") or found.get("destination", "")
    if found.get("type", "bind") != "bind" or "${" in f"{source}{target}":
        draft.leave_out(
            place, f"mount {mount}", "nodes have no such folder", "launch --mount SOURCE:TARGET"
        )
    else:
        draft.add_mount(place, f"{source}:{target}")
