"""What a recipe can say of an Apptainer definition file.

Its form is that of Apptainer's own reader, pkg/build/types/parser/deffile.go: a header, then sections
that each begin with %NAME. spython, which reads them, too, keeps no numbers of lines.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text
from hpcstack.core.yaml import Mark
from hpcstack.draft.context_files import CannotCopy, list_copied
from hpcstack.draft.image_names import complete_image_name
from hpcstack.draft.install_commands import read_installs
from hpcstack.draft.recipe_draft import RecipeDraft
from hpcstack.draft.words import NotUnderstood, expand_value, mark_base, split_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LARGEST = 1 << 20  # bytes
SECTION = re.compile(r"%([A-Za-z]+)(?:[ \t]+(.*))?")
ARGUMENT = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
EXPORT = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
ARGUMENTS = ('"$@"', "$@", '"$*"', "$*")  # what people type behind `apptainer run`
# Variables of the build that %post writes the image's environment through.
ENVIRONMENTS = ("APPTAINER_ENVIRONMENT", "SINGULARITY_ENVIRONMENT")
# Sections that a recipe has no words for, and what to write.
OTHERS = {
    "setup": "it runs on the machine that builds, and never there for a recipe: write it in a step of "
    "`run`",
    "test": "checks: [{name: NAME, command: LINES}] runs it in `hpcstack test`",
    "startscript": "there are no instances: a job's script starts a service",
    "appinstall": "write it as a step of `run`",
    "appenv": "write environment: {NAME: value}",
    "appfiles": "write files: [{path: PATH, source: FILE}]",
    "apprun": "module: {commands: [NAME]} offers a program of the image",
    "applabels": "write labels: {NAME: VALUE}",
    "apphelp": "write it into `summary`",
    "apptest": "checks: [{name: NAME, command: LINES}] runs it in `hpcstack test`",
}


@dataclass(frozen=True)
class Section:
    """One section: its NAME, what follows that on its line, its lines, the number of its own."""

    name: str
    rest: str
    lines: tuple[str, ...]
    number: int


def draft_definition(
    path: Path, context: Path, arguments: Mapping[str, str], target: str, platform: str
) -> RecipeDraft:
    """Return what a recipe can say of the definition file PATH.

    The arguments are those of `draft_dockerfile`. Raise InputError where it cannot be read.
    """
    try:
        text = read_text(path.resolve(), LARGEST)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read: {error}", "name a definition", page="bring-what-you-have"
        ) from None
    if "\0" in text:
        raise InputError(f"{path} is no text", "name a definition", page="bring-what-you-have")
    stages = _split_stages(_fill_in(text, path, arguments))
    names = [_read_header(stage[0]).get("stage", "") for stage in stages]
    if target and target not in names:
        raise InputError(
            f"{path} has no stage {target}",
            f"it has {', '.join(name for name in names if name) or 'one stage'}",
            page="bring-what-you-have",
        )
    chosen = names.index(target) if target else len(stages) - 1
    reader = _DefinitionReader(path, context, platform)
    for number, stage in enumerate(stages):
        if number != chosen:
            header = stage[0]
            said = next((line for line in header.lines if line.strip()), "")
            reader.draft.note(
                Mark(path.name, header.number), said, "this stage makes another image"
            )
    return reader.read(stages[chosen])


def _fill_in(text: str, path: Path, arguments: Mapping[str, str]) -> str:
    """Return TEXT with its `{{ NAME }}` filled in, of ARGUMENTS or of its %arguments."""
    values: dict[str, str] = {}
    for section in _split_sections(text.split("\n"), 1):
        if section.name == "arguments":
            for line in section.lines:
                name, sign, value = line.strip().partition("=")
                if sign and not name.startswith("#"):
                    values[name.strip()] = value.strip()
    named = {*values, *ARGUMENT.findall(text)}
    unused = sorted(set(arguments) - named)
    if unused:
        raise InputError(
            f"{path} has no {{{{ {unused[0]} }}}}", "leave it out", page="bring-what-you-have"
        )
    values |= arguments
    missing = sorted(set(ARGUMENT.findall(text)) - set(values))
    if missing:
        raise InputError(
            f"{path}: {{{{ {missing[0]} }}}} has no value",
            f"--build-arg {missing[0]}=VALUE",
            page="bring-what-you-have",
        )
    return ARGUMENT.sub(lambda match: values[match[1]], text)


def _split_stages(text: str) -> list[list[Section]]:
    """Return the sections of each stage, its header first."""
    lines = text.split("\n")
    starts = [n for n, line in enumerate(lines) if re.match(r"(?i)[ \t]*bootstrap[ \t]*:", line)]
    if len(starts) < 2:
        return [_split_sections(lines, 1)]
    ends = [*starts[1:], len(lines)]
    return [
        _split_sections(lines[start:end], start + 1)
        for start, end in zip(starts, ends, strict=True)
    ]


def _split_sections(lines: list[str], first: int) -> list[Section]:
    """Return the header, as a section without a name, and the sections of LINES."""
    name = rest = ""
    number = first
    body: list[str] = []
    out = []
    for at, line in enumerate(lines, first):
        match = SECTION.fullmatch(line.strip())
        if match:
            out.append(Section(name, rest, tuple(body), number))
            name, rest, number, body = match[1].lower(), (match[2] or "").strip(), at, []
        else:
            body.append(line)
    return [*out, Section(name, rest, tuple(body), number)]


def _read_header(header: Section) -> dict[str, str]:
    """Return {keyword in lower case: value} of HEADER."""
    out = {}
    for line in header.lines:
        key, sign, value = line.partition(":")
        if sign and not line.lstrip().startswith("#"):
            out[key.strip().lower()] = value.split(" #")[0].strip()
    return out


class _DefinitionReader:
    def __init__(self, path: Path, context: Path, platform: str) -> None:
        self.path = path
        self.context = context
        self.draft = RecipeDraft(platform=platform)
        self.variables: dict[str, str] = {}
        self.copied: dict[str, Path] = {}

    def _place(self, number: int) -> Mark:
        return Mark(self.path.name, number)

    def read(self, sections: list[Section]) -> RecipeDraft:
        self._read_base(sections[0])
        readers = {
            "files": self._read_files,
            "post": self._read_post,
            "environment": self._read_environment,
            "labels": self._read_labels,
            "runscript": self._read_runscript,
            "help": self._read_help,
            "arguments": self._count,
        }
        # %files comes before %post, wherever it stands
        for section in sorted(sections[1:], key=lambda one: one.name != "files"):
            if not _list_said(section):
                continue
            if section.name in readers:
                readers[section.name](section)
            else:
                self._leave_out(
                    section, "a recipe has no such section", OTHERS.get(section.name, "")
                )
        return self.draft

    def _count(self, section: Section) -> None:
        self.draft.understood += len(_list_said(section))

    def _leave_out(self, section: Section, why: str, instead: str = "") -> None:
        said = f"%{section.name} {section.rest}".strip()
        count = len(_list_said(section))
        self.draft.leave_out(self._place(section.number), f"{said} ({count} lines)", why, instead)

    def _read_base(self, header: Section) -> None:
        said = _read_header(header)
        agent, image = said.get("bootstrap", "").lower(), said.get("from", "")
        if not agent or not image:
            raise InputError(
                f"{self.path} is not a definition file",
                "it begins with Bootstrap: and From:",
                page="bring-what-you-have",
            )
        if agent not in ("docker", "oras"):
            self.draft.leave_out(
                self._place(header.number),
                f"Bootstrap: {agent}",
                "a recipe starts from an image of a registry",
                "hpcstack adopt FILE --as NAME/VERSION takes a SIF as it is",
            )
            return
        registry = said.get("registry", "")
        whole = "/".join(part for part in (registry, said.get("namespace", ""), image) if part)
        self.draft.image = complete_image_name(whole, str(self.path))
        self.draft.understood += len(said)

    def _read_files(self, section: Section) -> None:
        if section.rest.split()[:1] == ["from"]:
            self._leave_out(
                section,
                f"a recipe has one stage: {section.rest}",
                "write what makes them as a step of `run`, or as packages: {source: ...}",
            )
            return
        for number, line in _list_said(section):
            try:
                words = shlex.split(line)
                source, target = words[0], words[-1]
                if not target.startswith("/"):
                    raise CannotCopy("write SOURCE and an absolute TARGET")
                files = list_copied(
                    self.context, [source], posixpath.normpath(target), is_into=target.endswith("/")
                )
            except (CannotCopy, ValueError) as error:
                self.draft.leave_out(self._place(number), line, str(error))
                continue
            for file in files:
                self.draft.add_file(self._place(number), file.path, file.content, file.mode)
                self.copied[file.path] = file.source
            self.draft.understood += 1

    def _read_post(self, section: Section) -> None:
        words = section.rest.split()
        is_bash = words[:1] == ["-c"] and any(word.endswith("bash") for word in words[1:])
        if words and not is_bash and not (words[:1] == ["-c"] and words[-1].endswith("sh")):
            self._leave_out(section, f"%post {section.rest}: steps of a recipe are lines of bash")
            return
        kept = []
        for at, line in enumerate(section.lines, section.number + 1):
            if any(name in line for name in ENVIRONMENTS):
                self.draft.leave_out(
                    self._place(at),
                    line,
                    "it writes the image's variables",
                    "write environment: {NAME: value}",
                )
            else:
                kept.append(line)
        text = _outdent(kept)
        installs = read_installs(text, self.copied.get)
        if installs:
            self.draft.apt += installs.apt
            self.draft.pip += installs.pip
            self.draft.constraints += installs.constraints
            self.draft.no_build_isolation += installs.no_build_isolation
        else:
            head = ["set +u"] if "$" in text else []
            head += ["set +o pipefail"] if "|" in text else []
            if "echo" in text and re.search(r"\\[^\n]", text) and not is_bash:
                head.append("shopt -s xpg_echo # as sh's own echo")
            command = "".join(f"{line}\n" for line in head) + text
            self.draft.add_step(self._place(section.number), command, "post")
        self.draft.understood += len([line for line in kept if _is_said(line)])

    def _read_environment(self, section: Section) -> None:
        for number, line in _list_said(section):
            place = self._place(number)
            match = EXPORT.fullmatch(line)
            words = split_words(match[2], "\\") if match else []
            if not match or len(words) > 1:
                self.draft.leave_out(
                    place, line, "only NAME=VALUE is understood", "write environment: {NAME: value}"
                )
                continue
            try:
                if "`" in line or "$(" in line:
                    raise NotUnderstood("it is computed when the container starts")
                value = expand_value("".join(words), self._look_up, "\\")
            except NotUnderstood as error:
                self.draft.leave_out(place, line, str(error))
                continue
            self.variables[match[1]] = value
            before = len(self.draft.left_out)
            self.draft.set_variable(place, match[1], value)
            self.draft.understood += len(self.draft.left_out) == before

    def _look_up(self, name: str) -> str:
        return self.variables.get(name, mark_base(name))

    def _read_labels(self, section: Section) -> None:
        for number, line in _list_said(section):
            name, _, value = line.partition(" ")
            before = len(self.draft.left_out)
            self.draft.set_label(self._place(number), name, value.strip().strip('"'))
            self.draft.understood += len(self.draft.left_out) == before

    def _read_runscript(self, section: Section) -> None:
        said = [line for _, line in _list_said(section)]
        words = said[0].removeprefix("exec ").split() if len(said) == 1 else []
        program = " ".join(words[:-1])
        if not program or words[-1] not in ARGUMENTS or re.search(r"[$`;&|<>\\]", program):
            self._leave_out(
                section,
                'only one line `exec PROGRAM "$@"` is understood',
                "write entrypoint: [PROGRAM], and a script as files: [{path: PATH, source: FILE}]",
            )
            return
        self.draft.entrypoint = shlex.split(program)
        self.draft.understood += 1

    def _read_help(self, section: Section) -> None:
        said = [line for _, line in _list_said(section)]
        if said and not self.draft.summary:
            self.draft.summary = said[0][:100]
        self.draft.understood += len(said)


def _is_said(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("#")


def _list_said(section: Section) -> list[tuple[int, str]]:
    """Return (number, line) of the lines of SECTION that say anything."""
    numbered = enumerate(section.lines, section.number + 1)
    return [(number, line.strip()) for number, line in numbered if _is_said(line)]


def _outdent(lines: list[str]) -> str:
    import textwrap

    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"
