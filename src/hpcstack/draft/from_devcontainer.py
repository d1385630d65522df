"""What a recipe can say of a devcontainer.json.

Its keys: https://containers.dev/implementors/json_reference/. It is JSON with comments.

Tested in tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError
from hpcstack.draft.from_dockerfile import draft_dockerfile
from hpcstack.draft.image_names import complete_image_name
from hpcstack.draft.recipe_draft import RecipeDraft
from hpcstack.draft.source_text import KeyLines, read_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.core.yaml import Mark

FOLDER = ".devcontainer"  # in which the file lies in a project
OF_BUILD = ("dockerfile", "context", "args", "target")
OF_MOUNT = ("type", "source", "src", "target", "dst", "destination", "consistency")
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
    path: Path,
    context: Path | None,
    arguments: Mapping[str, str],
    target: str,
    platform: str,
    *,
    needs_base: bool = True,
) -> RecipeDraft:
    """Return what a recipe can say of the devcontainer.json PATH, and of the Dockerfile it names.

    CONTEXT counts instead of the one that it names; the other arguments are those of
    `draft_dockerfile`. Raise InputError where it cannot be read, or names files outside of its
    project.
    """
    text, document = _load(path)
    lines = KeyLines(path, text)
    build = document.get("build")
    build = build if isinstance(build, dict) else {}
    named = document.get("dockerFile") or build.get("dockerfile")
    image = document.get("image")
    if isinstance(named, str):
        top = path.absolute().parent
        own, computed = _read_arguments(build.get("args"))
        said = build.get("context") or document.get("context") or "."
        draft = draft_dockerfile(
            _find_inside(path, top / named),
            context or _find_inside(path, top / str(said)),
            {**own, **arguments},
            target or str(build.get("target", "")),
            platform,
            needs_base=needs_base,
            optional=frozenset(own),
        )
        for one in computed:
            draft.leave_out(lines.find("args"), one, "its value is another one on each machine")
    else:
        if arguments or target:
            raise InputError(
                f"{path} names no Dockerfile: it takes neither --build-arg nor --target",
                "leave them out",
                page="bring-what-you-have",
            )
        draft = RecipeDraft(platform=platform)
        if isinstance(image, str) and needs_base:
            draft.image = complete_image_name(image, str(lines.find("image")))
    draft.understood += bool(draft.image)
    for key in build:
        if key not in OF_BUILD:
            draft.leave_out(
                lines.find(key), f"build.{key}: {build[key]}", "a build has no such option"
            )

    for key, value in document.items():
        _read_key(draft, lines.find(key), key, value)
    return draft


def _load(path: Path) -> tuple[str, dict[str, Any]]:
    import json5

    text = read_source(path)
    try:
        document = json5.loads(text)
    except (ValueError, RecursionError) as error:
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


def _find_inside(path: Path, named: Path) -> Path:
    """Return NAMED, which PATH names. Raise InputError where it lies outside of its project."""
    top = path.absolute().parent.resolve()
    if top.name == FOLDER:
        top = top.parent
    try:
        found = named.resolve()
    except (OSError, RuntimeError, ValueError):
        found = named
    if not found.is_relative_to(top):
        raise InputError(
            f"{path} names {named}, which is outside of its project {top}",
            "--context DIR names a folder; a Dockerfile can be drafted by itself",
            page="bring-what-you-have",
        )
    return found


def _read_arguments(said: Any) -> tuple[dict[str, str], list[str]]:
    """Return (the build arguments SAID that are plain, the others in words)."""
    if not isinstance(said, dict):
        return {}, [f"args: {said}"] if said else []
    plain = {
        str(key): value
        for key, value in said.items()
        if isinstance(value, str) and "${" not in value
    }
    others = [f"args.{key}: {value}" for key, value in said.items() if str(key) not in plain]
    return plain, others


def _read_key(draft: RecipeDraft, place: Mark, key: str, value: Any) -> None:
    said = f"{key}: {value}"
    if key in ("image", "build", "dockerFile", "context"):
        return
    if key in OF_EDITORS:
        draft.note(place, said, "it is for the editor")
    elif not value:
        draft.note(place, said, "it asks for nothing")
    elif key == "containerEnv" and isinstance(value, dict):
        for name, text in value.items():
            _set_variable(draft, place, str(name), text)
    elif key == "mounts" and isinstance(value, list):
        for mount in value:
            _add_mount(draft, place, mount)
    elif key in COMMANDS:
        draft.leave_out(
            place, said, "it runs when the container is made", "write it as a step of `run`"
        )
    else:
        why, instead = OTHERS.get(key, ("this key is not understood", ""))
        draft.leave_out(place, said, why, instead)


def _set_variable(draft: RecipeDraft, place: Mark, name: str, value: Any) -> None:
    if not isinstance(value, str) or "${" in value:
        draft.leave_out(
            place, f"{name}={value}", "its value is no text, or another on each machine"
        )
        return
    with draft.counting():
        draft.set_variable(place, name, value)


def _add_mount(draft: RecipeDraft, place: Mark, mount: Any) -> None:
    """Add a mount, in Docker's words (`source=A,target=B,type=bind`) or as a mapping."""
    found: dict[str, str] = {}
    if isinstance(mount, str):
        pairs = (part.partition("=") for part in mount.split(","))
        found = {name.strip(): value for name, _, value in pairs}
    elif isinstance(mount, dict):
        found = {str(key): str(value) for key, value in mount.items()}
    source = found.get("source") or found.get("src", "")
    target = found.get("target") or found.get("dst") or found.get("destination", "")
    others = [name for name in found if name not in OF_MOUNT]
    if found.get("type", "bind") != "bind" or others or "${" in f"{source}{target}":
        draft.leave_out(
            place, f"mount {mount}", "nodes have no such folder", "launch --mount SOURCE:TARGET"
        )
        return
    with draft.counting():
        draft.add_mount(place, f"{source}:{target}")
