"""A recipe that is being written of somebody's file, and what of that file it cannot say.

Tested in tests/unit/draft/test_draft.py.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import yaml

from hpcstack.core.characters import VARIABLE
from hpcstack.core.quote import join_lines
from hpcstack.draft.words import OF_BASE, NotUnderstood, mark_base, split_around_base
from hpcstack.recipe.fields import (
    LABEL,
    check_absolute,
    check_apt,
    check_dnf,
    check_mount,
    check_one_line,
    check_part_of_variable,
    check_requirement,
    check_script,
    check_value_of_label,
    check_value_of_variable,
)
from hpcstack.recipe.model import OF_RUNTIMES
from hpcstack.recipe.packages import normalize_project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hpcstack.core.yaml import Mark
    from hpcstack.draft.install_commands import Installs

MAX_NAME = 80  # characters of a step's name
MAX_SHOWN = 100  # characters of a line that is left out
MAX_TEXT = 3 << 18  # characters of all files and steps of a draft: a recipe holds 1 MiB
MAX_TOLD = 200  # lines that are left out, and that the recipe names
REFERENCE = "${stack."  # which a recipe fills in, in any text


Kind = Literal["apt", "dnf", "pip"]


def _name_of_package(package: str) -> str:
    """Return the name in NAME=VERSION, a package of apt or dnf."""
    return package.partition("=")[0]


# {kind of packages: (what gives a package's name, what refuses one that a recipe cannot name)}
CHECKS: dict[Kind, tuple[Callable[[str], str], Callable[[str], str]]] = {
    "apt": (_name_of_package, check_apt),
    "dnf": (_name_of_package, check_dnf),
    "pip": (normalize_project, check_requirement),
}


@dataclass(frozen=True)
class LeftOut:
    """A line that the recipe does not say: WHY, and what to write INSTEAD where that is known."""

    place: Mark
    text: str
    why: str
    instead: str = ""


@dataclass(frozen=True)
class Note:
    """A line that a recipe needs no words for, or says in another way; and why."""

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
    dnf: list[str] = field(default_factory=list)
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
    size: int = 0  # characters of files and steps

    def leave_out(self, place: Mark, text: str, why: str, instead: str = "") -> None:
        """Name a line that the recipe does not say."""
        self.left_out.append(LeftOut(place, _shorten(text, MAX_SHOWN), why, instead))

    def note(self, place: Mark, text: str, why: str) -> None:
        """Name a line that a recipe needs no words for, or says in another way."""
        self.notes.append(Note(place, _shorten(text, MAX_SHOWN), why))

    @contextmanager
    def counting(self, lines: int = 1) -> Iterator[None]:
        """Count LINES as understood, unless something is left out meanwhile."""
        before = len(self.left_out)
        yield
        if len(self.left_out) == before:
            self.understood += lines

    def _accept(self, place: Mark, text: str, check: Callable[[], object]) -> bool:
        """Return whether CHECK, which refuses with ValueError, takes what TEXT says; else name it."""
        try:
            check()
        except (NotUnderstood, ValueError) as error:
            self.leave_out(place, text, str(error))
            return False
        return True

    def add_installs(self, place: Mark, said: str, installs: Installs) -> None:
        """Add the packages that SAID, a step, installs and does nothing else."""
        kinds: tuple[tuple[Kind, list[str]], ...] = (
            ("apt", installs.apt),
            ("dnf", installs.dnf),
            ("pip", installs.pip),
        )
        for kind, names in kinds:
            for name in names:
                self.add_package(kind, place, name)
        self.constraints += installs.constraints
        self.no_build_isolation += installs.no_build_isolation
        if installs.has_recommended:
            why = "without the packages that these recommend: name in `packages` what is needed"
            self.note(place, said, why)

    def add_package(self, kind: Kind, place: Mark, text: str) -> None:
        """Add a package. One that is there already is left out, unless it is the very same."""
        found: list[str] = getattr(self, kind)
        name_of, check = CHECKS[kind]
        same = [one for one in found if name_of(one) == name_of(text)]
        if text in same:
            return
        if same:
            self.leave_out(place, text, f"a recipe names a package once, and has {same[0]}")
            return
        if self._accept(place, text, lambda: check(text)):
            found.append(text)

    def set_variable(self, place: Mark, name: str, value: str) -> bool:
        """Let the image have the variable NAME with VALUE, which may hold marks of the base.

        Return whether a recipe can. What it cannot say is left out, and so is an older value.
        """
        if value == mark_base(name):
            return True  # as it is
        said = f"{name}={OF_BASE.sub(lambda mark: f'${mark[1]}', value)}"
        is_taken = self._accept(place, said, lambda: self._take_variable(name, value))
        if not is_taken:
            self.environment.pop(name, None)
        return is_taken

    def _take_variable(self, name: str, value: str) -> None:
        """Raise ValueError or NotUnderstood where a recipe cannot say it."""
        if not VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not a variable's name")
        if name.startswith(OF_RUNTIMES):
            raise ValueError(f"{name} belongs to the container runtime or to Slurm")
        refuse_references(value)
        if not OF_BASE.search(value):
            self.environment[name] = check_value_of_variable(value)
            return
        separator, before, behind = split_around_base(name, value)
        for part in (*before, *behind):
            check_part_of_variable(part)
        setting: dict[str, Any] = {"prepend": before, "append": behind}
        setting = {key: parts for key, parts in setting.items() if parts}
        if separator != ":":
            setting["separator"] = separator
        self.environment[name] = setting

    def set_label(self, place: Mark, name: str, value: str) -> None:
        """Give the image a label."""
        said = f"{name}={value}"
        value = value.strip()
        if not LABEL.fullmatch(name) or name.startswith("org.hpcstack."):
            self.leave_out(place, said, f"{name!r} is not a label's name in a recipe")
        elif not value:
            self.note(place, said, "a label that is empty says nothing")
        elif self._accept(place, said, lambda: check_value_of_label(refuse_references(value))):
            self.labels[name] = value

    def set_entrypoint(self, place: Mark, argv: Sequence[str]) -> None:
        """Let the image have the entrypoint ARGV."""
        said = " ".join(argv)

        def check() -> None:
            for word in argv:
                check_one_line(refuse_references(word))

        if self._accept(place, said, check):
            self.entrypoint = list(argv)

    def add_mount(self, place: Mark, mount: str) -> None:
        """Let every job see a folder of the nodes: SOURCE:TARGET."""
        if self._accept(place, mount, lambda: check_mount(refuse_references(mount))):
            self.mounts.append(mount)

    def add_file(self, place: Mark, path: str, content: str, mode: str) -> None:
        """Put a text file into the image."""

        def check() -> None:
            check_absolute(refuse_references(path))
            check_script(refuse_references(content))
            self._refuse_too_much(content)

        if self._accept(place, path, check):
            self.files[path] = {"path": path, "content": content, "mode": mode}

    def add_step(self, place: Mark, command: str, title: str, *, network: bool = True) -> bool:
        """Add COMMAND, lines of bash, to what runs in the image. Return whether it could be added."""

        def check() -> None:
            check_script(refuse_references(command))
            self._refuse_too_much(command)

        if not self._accept(place, title, check):
            return False
        ending = f" ({place})"
        name = _shorten(title, MAX_NAME - len(ending)) + ending
        step: dict[str, Any] = {"name": name, "command": f"{command.rstrip()}\n"}
        if not network:
            step["network"] = False
        self.run.append(step)
        return True

    def _refuse_too_much(self, text: str) -> None:
        """Count TEXT. Raise ValueError where a recipe could not hold it, too."""
        if self.size + len(text) > MAX_TEXT:
            raise ValueError(
                "files and steps are too large for a recipe: mount them, launch: {mounts: "
                "[SOURCE:TARGET]}, or fetch them in a step of `run`"
            )
        self.size += len(text)


def refuse_references(text: str) -> str:
    """Return TEXT. Raise ValueError where a recipe would fill something in."""
    if REFERENCE in text:
        raise ValueError("a recipe fills in ${stack.NAME} itself")
    return text


def _shorten(text: str, length: int) -> str:
    line = re.sub(r"\s+", " ", join_lines(text)).strip()
    return line if len(line) <= length else f"{line[: length - 3]}..."


def render_draft(draft: RecipeDraft, source: str, name: str, version: str) -> str:
    """Return DRAFT, which was made of the file SOURCE, as the text of the recipe NAME-VERSION."""
    packages = {
        "apt": draft.apt,
        "dnf": draft.dnf,
        "pip": draft.pip,
        "constraints": draft.constraints,
        "no_build_isolation": draft.no_build_isolation,
    }
    spec: dict[str, Any] = {"apiVersion": "hpcstack/v1"}
    if draft.extends:
        spec["extends"] = draft.extends
    spec |= {"name": name, "version": version}
    spec["summary"] = _shorten(draft.summary or f"Made of {source}", 100)
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
    for one in draft.left_out[:MAX_TOLD]:
        lines.append(f"LEFT OUT {one.place}: {one.text}: {one.why}")
        if one.instead:
            lines.append(f"  {one.instead}")
    if len(draft.left_out) > MAX_TOLD:
        lines.append(f"LEFT OUT, too: {len(draft.left_out) - MAX_TOLD} more lines")
    head = "".join(f"# {join_lines(line)}\n" for line in lines)
    body = yaml.dump(spec, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return head + body


class _Dumper(yaml.SafeDumper):
    """Writes several lines of text as a block, as people do."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
