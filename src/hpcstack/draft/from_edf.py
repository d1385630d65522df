"""What a recipe can say of an Environment Definition File (EDF) of CSCS's Container Engine.

Its keys: sarus-suite/raster, src/schema/edf.json, and docs.cscs.ch/software/container-engine/edf.

Tested in tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hpcstack.core.yaml import Mark
from hpcstack.draft.image_names import complete_image_name
from hpcstack.draft.recipe_draft import RecipeDraft
from hpcstack.requirements.project_files import read_toml

if TYPE_CHECKING:
    from pathlib import Path

# Keys that a recipe has no words for, and why; what to write where there is anything.
OTHERS = {
    "workdir": ("jobs start in the folder that they are submitted in", "launch --workdir DIR"),
    "writable": ("images are never written to", "mounts: SOURCE:TARGET for what a job writes"),
    "devices": ("GPUs and network cards are there without being named", ""),
    "annotations": ("what the site does with hooks is in site.yaml", "hpcstack site init"),
    "entrypoint": ("launch never runs the base's entrypoint of NVIDIA's", "entrypoint: [PROGRAM]"),
    "base_environment": ("another file is to be read first", "name in `extends` what it became"),
}


def draft_edf(path: Path, platform: str) -> RecipeDraft:
    """Return what a recipe can say of the EDF PATH. InputError where it cannot be read."""
    document = read_toml(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    draft = RecipeDraft(platform=platform)

    def place_of(key: str, below: str = "") -> Mark:
        return Mark(path.name, find_line(lines, rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", below))

    image = document.get("image")
    if isinstance(image, str) and re.search(r"\.(sqsh|squashfs|sif)$|^[/.$]", image):
        draft.leave_out(
            place_of("image"),
            f"image = {image}",
            "nothing says how a file was made",
            f"hpcstack adopt {image} --as NAME/VERSION takes it as it is",
        )
    elif isinstance(image, str):
        draft.image = complete_image_name(image, str(place_of("image")))
        draft.understood += 1

    for key, value in document.items():
        if key == "mounts" and isinstance(value, list):
            for mount in value:
                _add_mount(draft, place_of("mounts"), str(mount))
        elif key == "env" and isinstance(value, dict):
            for name, text in value.items():
                _set_variable(draft, place_of(name, r"\s*\[env\]|\s*env\s*="), name, text)
        elif key == "entrypoint" and value is False:
            draft.understood += 1  # as launch does
        elif key != "image":
            why, instead = OTHERS.get(key, ("an EDF has no such key", ""))
            section = find_line(lines, rf"\s*\[{re.escape(key)}[.\]]")
            place = place_of(key) if section == 1 else Mark(path.name, section)
            draft.leave_out(place, f"{key} = {value}", why, instead)
    return draft


def find_line(lines: list[str], pattern: str, below: str = "") -> int:
    """Return the number of the first of LINES that begins as PATTERN, behind the first as BELOW.

    It is 1 where there is none.
    """
    is_below = not below
    for number, line in enumerate(lines, 1):
        is_below = is_below or bool(re.match(below, line))
        if is_below and re.match(pattern, line):
            return number
    return 1


def _add_mount(draft: RecipeDraft, place: Mark, mount: str) -> None:
    parts = mount.split(":")
    if "sqsh" in parts[2:]:
        draft.leave_out(place, mount, "it is an image of data", "launch --data FILE:TARGET")
    elif len(parts) > 2:
        draft.leave_out(place, mount, "a recipe's mounts have no flags", ":".join(parts[:2]))
    elif "$" in mount:
        draft.leave_out(
            place, mount, "a recipe's mounts are the same for all", "launch --mount SOURCE:TARGET"
        )
    else:
        before = len(draft.left_out)
        draft.add_mount(place, mount if len(parts) > 1 else f"{mount}:{mount}")
        draft.understood += len(draft.left_out) == before


def _set_variable(draft: RecipeDraft, place: Mark, name: str, value: Any) -> None:
    """Add one variable. `${NAME}` is filled in by the engine, of the environment of who submits."""
    if not isinstance(value, str) or "${" in value:
        draft.leave_out(
            place, f"{name} = {value}", "its value is another one for each who starts it", ""
        )
        return
    before = len(draft.left_out)
    draft.set_variable(place, name, value)
    draft.understood += len(draft.left_out) == before
