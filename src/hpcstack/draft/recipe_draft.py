"""A recipe that is being written of somebody's file, and what of that file it cannot say.

Tested in tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from hpcstack.core.characters import VARIABLE
from hpcstack.core.quote import join_lines
from hpcstack.draft.words import OF_BASE, NotUnderstood, mark_base, split_around_base
from hpcstack.recipe.fields import (
    LABEL,
    check_absolute,
    check_mount,
    check_part_of_variable,
    check_script,
    check_value_of_label,
    check_value_of_variable,
)
from hpcstack.recipe.model import OF_RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.core.yaml import Mark

MAX_NAME = 80  # characters of a step's name
MAX_SHOWN = 100  # characters of a line that is left out
MAX_FILES = 1 << 19  # characters of all files of a draft: a recipe holds 1 MiB


@dataclass(frozen=True)
class LeftOut:
    """A line that the recipe does not say: WHY, and what to write INSTEAD where that is known."""

    place: Mark
    text: str
    why: str
    instead: str = ""


@dataclass(frozen=True)
class Note:
    """A line that a recipe needs no words for, and why."""

    place: Mark
    text: str
    why: str


@dataclass
class RecipeDraft:
    """What is known of the recipe so far.

    `understood` counts the lines (of a Dockerfile: instructions) that it says.
    """

    image: str = ""
    extends: str = ""
    summary: str = ""
    platform: str = ""
    apt: list[str] = field(default_factory=list)
    pip: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    no_build_isolation: list[str] = field(default_factory=list)
    files: dict[str, dict[str, str]] = field(default_factory=dict)  # by their path in the image
    run: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    understood: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def leave_out(self, place: Mark, text: str, why: str, instead: str = "") -> None:
        """Name a line that the recipe does not say."""
        self.left_out.append(LeftOut(place, _shorten(text, MAX_SHOWN), why, instead))

    def note(self, place: Mark, text: str, why: str) -> None:
        """Name a line that a recipe needs no words for."""
        self.notes.append(Note(place, _shorten(text, MAX_SHOWN), why))

    def _accept(self, place: Mark, text: str, check: Callable[[], object]) -> bool:
        """Return whether CHECK, which refuses with ValueError, takes what TEXT says; else name it."""
        try:
            check()
        except (NotUnderstood, ValueError) as error:
            self.leave_out(place, text, str(error))
            return False
        return True

    def set_variable(self, place: Mark, name: str, value: str) -> None:
        """Let the image have the variable NAME with VALUE, which may hold marks of the base."""
        if value == mark_base(name):
            return  # as it is
        said = f"{name}={OF_BASE.sub(lambda mark: f'${mark[1]}', value)}"
        if not VARIABLE.fullmatch(name):
            self.leave_out(place, said, f"{name!r} is not a variable's name")
            return
        if name.startswith(OF_RUNTIMES):
            self.leave_out(place, said, f"{name} belongs to the container runtime or to Slurm")
            return

        def take() -> None:
            if OF_BASE.search(value):
                separator, before, behind = split_around_base(name, value)
                for part in (*before, *behind):
                    check_part_of_variable(part)
                setting: dict[str, Any] = {"prepend": before, "append": behind}
                setting = {key: parts for key, parts in setting.items() if parts}
                if separator != ":":
                    setting["separator"] = separator
                self.environment[name] = setting
            else:
                self.environment[name] = check_value_of_variable(value)

        self._accept(place, said, take)

    def set_label(self, place: Mark, name: str, value: str) -> None:
        """Give the image a label."""
        said = f"{name}={value}"
        if not LABEL.fullmatch(name) or name.startswith("org.hpcstack."):
            self.leave_out(place, said, f"{name!r} is not a label's name in a recipe")
        elif not value.strip():
            self.note(place, said, "a label that is empty says nothing")
        elif self._accept(place, said, lambda: check_value_of_label(value.strip())):
            self.labels[name] = value.strip()

    def add_mount(self, place: Mark, mount: str) -> None:
        """Let every job see a folder of the nodes: SOURCE:TARGET."""
        if self._accept(place, mount, lambda: check_mount(mount)):
            self.mounts.append(mount)

    def add_file(self, place: Mark, path: str, content: str, mode: str) -> None:
        """Put a text file into the image."""
        had = sum(len(one["content"]) for one in self.files.values())
        if had + len(content) > MAX_FILES:
            self.leave_out(
                place,
                path,
                "the files are too large for a recipe",
                "mount them: launch: {mounts: [SOURCE:TARGET]}; or fetch them in a step of `run`",
            )
            return

        def check() -> None:
            check_absolute(path)
            check_script(content)

        if self._accept(place, path, check):
            self.files[path] = {"path": path, "content": content, "mode": mode}

    def add_step(self, place: Mark, command: str, title: str, *, network: bool = True) -> None:
        """Add COMMAND, lines of bash, to what runs in the image."""
        if "${stack." in command:
            self.leave_out(place, title, "a recipe fills in ${stack.NAME} itself")
            return
        if not self._accept(place, title, lambda: check_script(command)):
            return
        ending = f" ({place})"
        name = _shorten(title, MAX_NAME - len(ending)) + ending
        step: dict[str, Any] = {"name": name, "command": f"{command.rstrip()}\n"}
        if not network:
            step["network"] = False
        self.run.append(step)


def _shorten(text: str, length: int) -> str:
    line = re.sub(r"\s+", " ", join_lines(text)).strip()
    return line if len(line) <= length else f"{line[: length - 3]}..."


def render_draft(draft: RecipeDraft, source: str, name: str, version: str) -> str:
    """Return DRAFT, which was made of the file SOURCE, as the text of the recipe NAME-VERSION."""
    packages = {
        "apt": draft.apt,
        "pip": draft.pip,
        "constraints": draft.constraints,
        "no_build_isolation": draft.no_build_isolation,
    }
    spec: dict[str, Any] = {"apiVersion": "hpcstack/v1"}
    if draft.extends:
        spec["extends"] = draft.extends
    spec |= {"name": name, "version": version}
    spec["summary"] = draft.summary or _shorten(f"Made of {source}", 100)
    if draft.image:
        spec["base"] = {"image": draft.image, "platforms": [draft.platform]}
    rest: dict[str, Any] = {
        "packages": {key: found for key, found in packages.items() if found},
        "files": list(draft.files.values()),
        "run": draft.run,
        "environment": draft.environment,
        "labels": draft.labels,
        "entrypoint": draft.entrypoint,
        "launch": {"mounts": draft.mounts} if draft.mounts else {},
    }
    spec |= {key: found for key, found in rest.items() if found}

    lines = [f"Written by hpcstack draft of {source}."]
    for one in draft.left_out:
        lines.append(f"LEFT OUT {one.place}: {one.text}: {one.why}")
        if one.instead:
            lines.append(f"  {one.instead}")
    head = "".join(f"# {join_lines(line)}\n" for line in lines)
    body = yaml.dump(spec, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return head + body


class _Dumper(yaml.SafeDumper):
    """Writes several lines of text as a block, as people do."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
