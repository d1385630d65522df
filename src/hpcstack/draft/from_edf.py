"""What a recipe can say of an Environment Definition File (EDF) of CSCS's Container Engine.

Its keys: sarus-suite/raster, src/schema/edf.json, and docs.cscs.ch/software/container-engine/edf.

Tested in tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hpcstack.draft.image_names import complete_image_name
from hpcstack.draft.recipe_draft import RecipeDraft
from hpcstack.draft.source_text import KeyLines, read_source
from hpcstack.requirements.project_files import read_toml

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.yaml import Mark

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
    lines = KeyLines(path, read_source(path))
    document = read_toml(path)
    draft = RecipeDraft(platform=platform)
    for key, value in document.items():
        place = lines.find(key)
        if key == "image" and isinstance(value, str):
            _read_image(draft, place, value)
        elif key == "mounts" and isinstance(value, list):
            for mount in value:
                _add_mount(draft, place, str(mount))
        elif key == "env" and isinstance(value, dict):
            for name, text in value.items():
                _set_variable(draft, lines.find(name), name, text)
        elif key == "entrypoint" and value is False:
            draft.understood += 1  # as launch does
        else:
            why, instead = OTHERS.get(key, ("this is no key of an EDF, or not of this kind", ""))
            draft.leave_out(place, f"{key} = {value}", why, instead)
    return draft


def _read_image(draft: RecipeDraft, place: Mark, image: str) -> None:
    if re.search(r"\.(sqsh|squashfs|sif)$|^[/.$]", image):
        draft.leave_out(
            place,
            f"image = {image}",
            "nothing says how a file was made",
            f"hpcstack adopt {image} --as NAME/VERSION takes it as it is",
        )
        return
    draft.image = complete_image_name(image, str(place))
    draft.understood += 1


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
        with draft.counting():
            draft.add_mount(place, mount if len(parts) > 1 else f"{mount}:{mount}")


def _set_variable(draft: RecipeDraft, place: Mark, name: str, value: Any) -> None:
    """Add one variable. `${NAME}` is filled in by the engine, of the environment of who submits."""
    said = f"{name} = {value}"
    if not isinstance(value, str):
        draft.leave_out(place, said, "a variable's value is text")
    elif not value:
        draft.leave_out(place, said, "a recipe takes no variable away")
    elif "${" in value:
        draft.leave_out(place, said, "its value is another one for each who starts it")
    else:
        with draft.counting():
            draft.set_variable(place, name, value)
