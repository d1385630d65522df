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
from hpcstack.core.yaml import Mark
from hpcstack.draft.context_files import CannotCopy, Context
from hpcstack.draft.image_names import complete_image_name
from hpcstack.draft.install_commands import read_installs
from hpcstack.draft.recipe_draft import RecipeDraft
from hpcstack.draft.shell_steps import SH_IS_BASH, Shell, make_command
from hpcstack.draft.source_text import LARGEST, read_source
from hpcstack.draft.words import NotUnderstood, expand_value, mark_base, split_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECTION = re.compile(r"%([A-Za-z]+)(?:[ \t]+(.*))?")
BOOTSTRAP = re.compile(r"(?i)bootstrap[ \t]*:")
ARGUMENT = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
EXPORT = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
# Words of a shell that begin and end what is run on a condition, or again.
OPENS = re.compile(r"(?:if|for|while|until|case)\b|.*(?:\{|\()$")
CLOSES = re.compile(r"(?:fi|done|esac)\b|[})]")
ARGUMENTS = ('"$@"', "$@", '"$*"', "$*")  # what people type behind `apptainer run`
# Variables of the build that %post writes the image's environment through.
ENVIRONMENTS = ("APPTAINER_ENVIRONMENT", "SINGULARITY_ENVIRONMENT")
SHELLS = ("sh", "bash", "dash")
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
    """One section: its NAME, what follows that on its line, its lines with their numbers.

    NUMBER is that of its own line.
    """

    name: str
    rest: str
    lines: tuple[tuple[int, str], ...]
    number: int

    @property
    def said(self) -> list[tuple[int, str]]:
        """(number, line) of the lines that say anything."""
        stripped = ((number, line.strip()) for number, line in self.lines)
        return [(number, line) for number, line in stripped if line and not line.startswith("#")]


def draft_definition(
    path: Path,
    context: Path,
    arguments: Mapping[str, str],
    target: str,
    platform: str,
    *,
    needs_base: bool = True,
) -> RecipeDraft:
    """Return what a recipe can say of the definition file PATH.

    The arguments are those of `draft_dockerfile`. Raise InputError where it cannot be read.
    """
    stages = _split_stages(_fill_in(read_source(path), path, arguments))
    names = [_read_header(stage[0]).get("stage", "") for stage in stages]
    if target and target not in names:
        raise InputError(
            f"{path} has no stage {target}",
            f"it has {', '.join(name for name in names if name) or 'one stage'}",
            page="bring-what-you-have",
        )
    chosen = names.index(target) if target else len(stages) - 1
    reader = _DefinitionReader(path, Context(context), platform)
    for number, stage in enumerate(stages):
        if number != chosen:
            header = stage[0]
            said = next((line for _, line in header.said), "")
            reader.draft.note(
                Mark(path.name, header.number), said, "this stage makes another image"
            )
    return reader.read(stages[chosen], needs_base=needs_base)


def _fill_in(text: str, path: Path, arguments: Mapping[str, str]) -> str:
    """Return TEXT with its `{{ NAME }}` filled in, of ARGUMENTS or of its %arguments."""
    values: dict[str, str] = {}
    for section in _split_sections(text.split("\n"), 1):
        if section.name == "arguments":
            for _, line in section.said:
                name, sign, value = line.partition("=")
                if sign:
                    values[name.strip()] = value.strip()
    asked = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    wanted = ARGUMENT.findall(asked)
    unused = sorted(set(arguments) - {*values, *wanted})
    if unused:
        raise InputError(
            f"{path} has no {{{{ {unused[0]} }}}}", "leave it out", page="bring-what-you-have"
        )
    values |= arguments
    missing = sorted(set(wanted) - set(values))
    if missing:
        raise InputError(
            f"{path}: {{{{ {missing[0]} }}}} has no value",
            f"--build-arg {missing[0]}=VALUE",
            page="bring-what-you-have",
        )
    if len(text) + sum(len(values[name]) for name in wanted) > LARGEST:
        raise InputError(
            f"{path} is too long with its arguments filled in",
            "give shorter ones",
            page="bring-what-you-have",
        )
    return ARGUMENT.sub(lambda match: values.get(match[1], match[0]), text)


def _split_stages(text: str) -> list[list[Section]]:
    """Return the sections of each stage, its header first."""
    lines = text.split("\n")
    starts = [n for n, line in enumerate(lines) if BOOTSTRAP.match(line)]
    if len(starts) < 2:
        return [_split_sections(lines, 1)]
    ends = [*starts[1:], len(lines)]
    return [
        _split_sections(lines[start:end], start + 1)
        for start, end in zip(starts, ends, strict=True)
    ]


def _split_sections(lines: list[str], first: int) -> list[Section]:
    """Return the header, as a section without a name, and the sections of LINES.

    Several sections of a name are one, as they are to Apptainer.
    """
    found: dict[str, Section] = {"": Section("", "", (), first)}
    key = ""
    for number, line in enumerate(lines, first):
        match = SECTION.fullmatch(line.strip())
        if not match:
            one = found[key]
            found[key] = Section(one.name, one.rest, (*one.lines, (number, line)), one.number)
            continue
        name, rest = match[1].lower(), (match[2] or "").strip()
        key = f"{name} {rest}" if name == "files" else name
        found.setdefault(key, Section(name, rest, (), number))
    return list(found.values())


def _read_header(header: Section) -> dict[str, str]:
    """Return {keyword in lower case: value} of HEADER."""
    out = {}
    for _, line in header.said:
        key, sign, value = line.partition(":")
        if sign:
            out[key.strip().lower()] = value.split(" #")[0].strip()
    return out


class _DefinitionReader:
    def __init__(self, path: Path, context: Context, platform: str) -> None:
        self.path = path
        self.context = context
        self.draft = RecipeDraft(platform=platform)
        self.variables: dict[str, str] = {}
        self.copied: dict[str, Path] = {}

    def _mark(self, number: int) -> Mark:
        return Mark(self.path.name, number)

    def read(self, sections: list[Section], *, needs_base: bool) -> RecipeDraft:
        if needs_base:
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
            if not section.said:
                continue
            if section.name in readers:
                readers[section.name](section)
            else:
                self._leave_out(
                    section, "a recipe has no such section", OTHERS.get(section.name, "")
                )
        return self.draft

    def _count(self, section: Section) -> None:
        self.draft.understood += len(section.said)

    def _leave_out(self, section: Section, why: str, instead: str = "") -> None:
        said = f"%{section.name} {section.rest}".strip()
        self.draft.leave_out(
            self._mark(section.number), f"{said} ({len(section.said)} lines)", why, instead
        )

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
                self._mark(header.number),
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
        if section.rest:
            self._leave_out(
                section,
                f"a recipe has one stage: {section.rest}",
                "write what makes them as a step of `run`, or as packages: {source: ...}",
            )
            return
        for number, line in section.said:
            with self.draft.counting():
                try:
                    source, *targets = shlex.split(line, comments=True)
                    target = targets[0] if targets else f"/{source.lstrip('/')}"
                    if not target.startswith("/"):
                        raise CannotCopy("write SOURCE and an absolute TARGET")
                    files = self.context.list_copied_whole(source, target)
                except (CannotCopy, ValueError) as error:
                    self.draft.leave_out(self._mark(number), line, str(error))
                    continue
                for file in files:
                    self.draft.add_file(self._mark(number), file.path, file.content, file.mode)
                    self.copied[file.path] = file.source

    def _read_post(self, section: Section) -> None:
        words = section.rest.split()
        name = posixpath.basename(words[1]) if words[:1] == ["-c"] and len(words) == 2 else ""
        if words and name not in SHELLS:
            self._leave_out(section, f"%post {section.rest}: steps of a recipe are lines of bash")
            return
        text = _outdent([line for _, line in section.lines])
        first = []
        for variable in ENVIRONMENTS:
            for number, line in section.said:
                if variable in line:
                    self.draft.leave_out(
                        self._mark(number),
                        line,
                        "it writes the image's variables, and is written to nowhere here",
                        "write environment: {NAME: value}",
                    )
                    first.append(f"{variable}=/dev/null")
        installs = None
        if not self._has_settings():
            installs = read_installs(text, self.copied.get)
        place = self._mark(section.number)
        if installs:
            self.draft.add_installs(place, "%post", installs)
        else:
            is_bash = name == "bash" or SH_IS_BASH.search(self.draft.image) is not None
            shell = Shell(is_bash=is_bash)
            command = make_command(text, shell, {}, "", list(dict.fromkeys(first)))
            self.draft.add_step(place, command, "post")
        self.draft.understood += len(section.said)

    def _has_settings(self) -> bool:
        """Return whether a file that was copied before decides what packages are."""
        return any(path.startswith(("/etc/", "/root/", "/usr/")) for path in self.copied)

    def _read_environment(self, section: Section) -> None:
        depth = 0
        goes_on = False
        for number, line in section.said:
            place = self._mark(number)
            is_inside = depth > 0 or goes_on
            depth += bool(OPENS.match(line))
            depth -= bool(CLOSES.match(line)) and depth > 0
            goes_on = line.endswith("\\")
            match = EXPORT.fullmatch(line)
            words = split_words(match[2], "\\") if match else []
            if not match or is_inside or len(words) > 1:
                self.draft.leave_out(
                    place, line, "only NAME=VALUE is understood", "write environment: {NAME: value}"
                )
                continue
            name, value = match[1], "".join(words)
            with self.draft.counting():
                try:
                    _refuse_computed(value)
                    self.variables[name] = expand_value(value, self._look_up, "\\")
                except NotUnderstood as error:
                    self.draft.leave_out(place, line, str(error))
                    continue
                self.draft.set_variable(place, name, self.variables[name])

    def _look_up(self, name: str) -> str:
        return self.variables.get(name, mark_base(name))

    def _read_labels(self, section: Section) -> None:
        for number, line in section.said:
            name, _, value = line.partition(" ")
            with self.draft.counting():
                self.draft.set_label(self._mark(number), name, value.strip().strip('"'))

    def _read_runscript(self, section: Section) -> None:
        said = [line for _, line in section.said]
        words = said[0].removeprefix("exec ").split() if len(said) == 1 else []
        program = " ".join(words[:-1])
        is_plain = program and words[-1] in ARGUMENTS and not program.startswith("-")
        if not is_plain or re.search(r"[$`;&|<>\\*?~\[\]{}]", program) or "=" in words[0]:
            self._leave_out(
                section,
                'only one line `exec PROGRAM "$@"` is understood',
                "write entrypoint: [PROGRAM], and a script as files: [{path: PATH, source: FILE}]",
            )
            return
        try:
            argv = shlex.split(program)
        except ValueError as error:
            self._leave_out(section, str(error))
            return
        with self.draft.counting():
            self.draft.set_entrypoint(self._mark(section.number), argv)

    def _read_help(self, section: Section) -> None:
        if not self.draft.summary:
            self.draft.summary = section.said[0][1]
        self.draft.understood += len(section.said)


def _refuse_computed(value: str) -> None:
    """Raise NotUnderstood where a shell would do more with VALUE than to take off its quotes."""
    plain = re.sub(r"'[^']*'", "", value)
    if "`" in plain or "$(" in plain:
        raise NotUnderstood("it is computed when the container starts")
    if re.search(r"[;&|<>()]|^~|:~|\\$", re.sub(r'"[^"]*"', "", plain)):
        raise NotUnderstood("a shell would do more than set a value")


def _outdent(lines: list[str]) -> str:
    import textwrap

    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"
