"""What a recipe can say of a Dockerfile.

A recipe is built in another order than a Dockerfile: packages, then files, then steps. So packages
are taken out of steps only as long as nothing comes before them that may decide what they are, and a
file that is copied between two steps is written by a step. Each step gets the variables, the shell
and the folder that it has in the Dockerfile. What is not understood is left out, and so is what
depends on it.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, did_you_mean
from hpcstack.core.quote import quote_words
from hpcstack.core.yaml import Mark
from hpcstack.draft.context_files import FOLDERS, CannotCopy, Context
from hpcstack.draft.dockerfile import Dockerfile, Instruction, parse_dockerfile
from hpcstack.draft.image_names import complete_image_name
from hpcstack.draft.install_commands import HARMLESS, OF_INSTALLERS, read_installs
from hpcstack.draft.recipe_draft import MAX_TEXT, RecipeDraft
from hpcstack.draft.shell_steps import (
    SH_IS_BASH,
    Shell,
    can_export,
    find_named,
    make_command,
    read_shell,
    write_file_by_shell,
)
from hpcstack.draft.source_text import read_source
from hpcstack.draft.words import (
    OF_BASE,
    NotUnderstood,
    expand_value,
    mark_base,
    split_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# Instructions that nothing on a cluster heeds, and why.
WITHOUT_EFFECT = {
    "CMD": "containers run what launch, shell or srun is told to",
    "EXPOSE": "jobs share the node's network",
    "HEALTHCHECK": "nothing asks a container of a job for its health",
    "MAINTAINER": "labels: {org.example.contact: NAME} says who is to be asked",
    "ONBUILD": "it is for images that are built on this one",
    "STOPSIGNAL": "Slurm says how jobs are ended",
    "VOLUME": "what a job writes goes into mounted folders: launch: {mounts: [SOURCE:TARGET]}",
}
ARCHITECTURES = {"linux/amd64": "amd64", "linux/arm64": "arm64"}
ARCHIVE = re.compile(r".*\.(tar|tar\.gz|tgz|tar\.bz2|tar\.xz)")
# Places that decide what packages are installed, or how: a file there comes before them.
OF_SYSTEM = re.compile(r"/(?:bin|etc|home|lib|root|sbin|usr|var)(?:/|$)")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_VARIABLES = 1 << 16  # characters of all variables at one instruction: each step repeats them
WORKDIR, SHELL = "WORKDIR", "SHELL"  # as names of what was lost


@dataclass(frozen=True)
class Stage:
    """One stage of a Dockerfile: FROM, and what follows it."""

    start: Instruction
    base: str
    name: str
    instructions: tuple[Instruction, ...]


@dataclass
class _State:
    """What holds at one instruction.

    `variables` are those with a value, `set_by_env` those of ENV among them, `unset` arguments
    without a value, `lost` what could not be understood: variables, and WORKDIR and SHELL.
    """

    variables: dict[str, str] = field(default_factory=dict)
    set_by_env: set[str] = field(default_factory=set)
    unset: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    workdir: str = ""  # empty: the base's, which is not known
    has_made_workdir: bool = True
    shell: Shell = field(default_factory=Shell)
    folders: set[str] = field(default_factory=set)  # that are there since a COPY or WORKDIR
    copied: dict[str, Path] = field(default_factory=dict)
    copied_folders: list[tuple[str, Path]] = field(default_factory=list)  # also those left out
    has_steps: bool = False
    has_settings: bool = False  # files that decide about packages


def draft_dockerfile(
    path: Path,
    context: Path,
    arguments: Mapping[str, str],
    target: str,
    platform: str,
    *,
    needs_base: bool = True,
    optional: frozenset[str] = frozenset(),
) -> RecipeDraft:
    """Return what a recipe can say of the Dockerfile PATH, built in the folder CONTEXT.

    ARGUMENTS are build arguments; those of OPTIONAL need not be asked for. TARGET is a stage; empty
    for the last one. Without NEEDS_BASE, another base than its own is taken. Raise InputError where
    the file cannot be read, or has no such stage.
    """
    dockerfile = parse_dockerfile(read_source(path), path)
    own_list = path.with_name(f"{path.name}.dockerignore")
    ignore = own_list if own_list.is_file() else context / ".dockerignore"
    reader = _DockerfileReader(path, Context(context, ignore), dockerfile, arguments, platform)
    return reader.read(target, needs_base=needs_base, optional=optional)


class _DockerfileReader:
    def __init__(
        self,
        path: Path,
        context: Context,
        dockerfile: Dockerfile,
        arguments: Mapping[str, str],
        platform: str,
    ) -> None:
        self.path = path
        self.context = context
        self.escape = dockerfile.escape
        self.instructions = dockerfile.instructions
        self.given = arguments
        self.used: set[str] = set()  # arguments that an ARG names
        of_machine = {
            "TARGETPLATFORM": platform,
            "TARGETOS": "linux",
            "TARGETARCH": ARCHITECTURES[platform],
            "TARGETVARIANT": "",
        }
        of_builder = {name.replace("TARGET", "BUILD"): value for name, value in of_machine.items()}
        self.predefined = {**of_machine, **of_builder}
        self.globals: dict[str, str] = {}
        self.draft = RecipeDraft(platform=platform)
        self.state = _State()

    def read(self, target: str, *, needs_base: bool, optional: frozenset[str]) -> RecipeDraft:
        stages = self._split_stages()
        chain = self._find_chain(stages, target)
        for stage in stages:
            if stage not in chain:
                count = len(stage.instructions) + 1
                self.draft.note(
                    self._place(stage.start),
                    f"FROM {stage.start.text}",
                    f"its {count} instructions make another image",
                )
        if needs_base:
            self._read_base(chain[0])
        self.draft.understood += len(chain)
        for stage in chain:
            for instruction in stage.instructions:
                with self.draft.counting():
                    self._read_instruction(instruction)
        self._make_last_workdir(chain[-1].start)
        unused = sorted(set(self.given) - self.used - optional)
        if unused:
            raise InputError(
                f"{self.path} has no ARG {', '.join(unused)}",
                "leave it out",
                page="bring-what-you-have",
            )
        return self.draft

    def _place(self, instruction: Instruction) -> Mark:
        return Mark(self.path.name, instruction.number)

    def _leave_out(self, instruction: Instruction, why: str, instead: str = "") -> None:
        said = " ".join([instruction.name, *instruction.flags, instruction.text])
        self.draft.leave_out(self._place(instruction), said, why, instead)

    # -- stages

    def _split_stages(self) -> list[Stage]:
        """Return the stages, and remember the arguments before the first."""
        stages: list[Stage] = []
        for one in self.instructions:
            if one.name == "FROM":
                words = split_words(one.text, self.escape)
                name = words[2] if len(words) == 3 and words[1].upper() == "AS" else ""
                if len(words) not in (1, 3) or (len(words) == 3 and not name):
                    raise self._make_error(one, "write FROM IMAGE, or FROM IMAGE AS NAME")
                base = self._expand_global(one, words[0])
                stages.append(Stage(one, base, name.lower(), ()))
            elif stages:
                last = stages[-1]
                stages[-1] = Stage(last.start, last.base, last.name, (*last.instructions, one))
            elif one.name == "ARG":
                for word in split_words(one.text, self.escape):
                    name, sign, value = word.partition("=")
                    self.used.add(name)
                    if name in self.given:
                        self.globals[name] = self.given[name]
                    elif sign:
                        self.globals[name] = self._expand_global(one, value)
            else:
                raise self._make_error(one, "a Dockerfile begins with FROM IMAGE")
        if not stages:
            raise InputError(
                f"{self.path} has no FROM", "FROM IMAGE names the base", page="bring-what-you-have"
            )
        return stages

    def _make_error(self, one: Instruction, hint: str) -> InputError:
        return InputError(
            f"{self.path}:{one.number}: {one.name} {one.text[:80]} is not understood",
            hint,
            page="bring-what-you-have",
        )

    def _expand_global(self, one: Instruction, text: str) -> str:
        known = {**self.predefined, **self.globals}
        try:
            return expand_value(text, lambda name: known.get(name, ""), self.escape)
        except NotUnderstood as error:
            raise self._make_error(one, str(error)) from None

    def _find_chain(self, stages: list[Stage], target: str) -> list[Stage]:
        """Return the stages of which each goes on from the one before; the last one is TARGET."""
        names = {stage.name: number for number, stage in enumerate(stages) if stage.name}
        names |= {str(number): number for number in range(len(stages))}
        if target and target.lower() not in names:
            near = did_you_mean(target, names)
            raise InputError(
                f"{self.path} has no stage {target}{near}",
                f"it has {', '.join(one.name for one in stages if one.name) or 'one stage'}",
                page="bring-what-you-have",
            )
        number = names[target.lower()] if target else len(stages) - 1
        chain = [stages[number]]
        while chain[0].base.lower() in names and names[chain[0].base.lower()] < number:
            number = names[chain[0].base.lower()]
            chain.insert(0, stages[number])
        return chain

    def _read_base(self, stage: Stage) -> None:
        start = stage.start
        if not stage.base:
            raise InputError(
                f"{self.path}:{start.number}: FROM {start.text}: its argument has no value",
                "--build-arg NAME=VALUE gives it one",
                page="bring-what-you-have",
            )
        if stage.base.lower() == "scratch":
            raise InputError(
                f"{self.path}:{start.number}: FROM scratch: a recipe starts from an image",
                "FROM an image of a registry",
                page="bring-what-you-have",
            )
        self.draft.image = complete_image_name(stage.base, str(self._place(start)))
        self.state.shell = Shell(is_bash=SH_IS_BASH.search(self.draft.image) is not None)
        said = self._expand_global(start, start.find_flag("platform"))
        platform = "/".join(said.split("/")[:2])  # linux/arm64/v8 is what every such node has
        if platform in ARCHITECTURES:
            self.draft.platform = platform
        elif said:
            self._leave_out(start, f"{said} is not a platform of nodes")

    # -- instructions

    def _read_instruction(self, one: Instruction) -> None:
        readers: dict[str, Callable[[Instruction], None]] = {
            "ADD": self._read_copy,
            "ARG": self._read_arg,
            "COPY": self._read_copy,
            "ENTRYPOINT": self._read_entrypoint,
            "ENV": self._read_env,
            "LABEL": self._read_label,
            "RUN": self._read_run,
            SHELL: self._read_shell,
            "USER": self._read_user,
            WORKDIR: self._read_workdir,
        }
        if one.name in WITHOUT_EFFECT:
            self.draft.note(self._place(one), f"{one.name} {one.text}", WITHOUT_EFFECT[one.name])
        elif one.name not in readers:
            self._leave_out(one, "Dockerfiles have no such instruction")
        elif not one.text and not one.heredocs:
            self._leave_out(one, "nothing follows it")
        else:
            try:
                readers[one.name](one)
            except (NotUnderstood, CannotCopy) as error:
                self._leave_out(one, str(error))
                # Whoever writes it into the recipe writes a step: what comes later stays behind it.
                self.state.has_steps |= one.name == "RUN"

    # -- variables

    def _look_up(self, name: str) -> str | None:
        """Return the value of the variable NAME; a mark where only the base has it, if anybody."""
        if name in self.state.lost:
            raise NotUnderstood(f"it depends on {name}, which was left out")
        if name in self.state.variables:
            return self.state.variables[name]
        if name in self.state.unset or not IDENTIFIER.fullmatch(name):
            return None
        return mark_base(name)

    def _expand(self, text: str) -> str:
        return expand_value(text, self._look_up, self.escape)

    def _expand_plain(self, text: str) -> str:
        """Return TEXT with its variables. Raise NotUnderstood where it takes one of the base's."""
        value = self._expand(text)
        mark = OF_BASE.search(value)
        if mark:
            raise NotUnderstood(f"it depends on {mark[1]} of the base, which is not known here")
        return value

    def _set(self, name: str, value: str) -> None:
        """Let NAME have VALUE from here on. Raise NotUnderstood for more than steps can repeat."""
        others = sum(len(one) for key, one in self.state.variables.items() if key != name)
        if others + len(value) > MAX_VARIABLES:
            self._lose(name)
            raise NotUnderstood(
                f"all variables together are longer than {MAX_VARIABLES} characters"
            )
        self.state.variables[name] = value
        self.state.lost.discard(name)

    def _lose(self, name: str) -> None:
        """Forget NAME, whose value is not understood: what depends on it is left out, too."""
        self.state.lost.add(name)
        self.state.variables.pop(name, None)
        self.draft.environment.pop(name, None)

    def _read_pairs(self, one: Instruction) -> list[tuple[str, str]]:
        """Return (name, value) of ENV and LABEL, also in their old form `ENV NAME VALUE`.

        What is not understood is left out, and has no name.
        """
        words = split_words(one.text, self.escape)
        if "=" not in words[0]:
            name, *value = re.split(r"[ \t]+", one.text, maxsplit=1)
            words = [f"{name}={''.join(value)}"]
        return [self._read_pair(one, word) for word in words]

    def _read_pair(self, one: Instruction, word: str) -> tuple[str, str]:
        name, _, value = word.partition("=")
        try:
            return self._expand_plain(name), self._expand(value)
        except NotUnderstood as error:
            self.draft.leave_out(self._place(one), f"{one.name} {word}", str(error))
            if one.name == "ENV":
                self._lose(name)
            return "", ""

    def _read_env(self, one: Instruction) -> None:
        for name, value in self._read_pairs(one):
            if not name:
                continue
            is_taken = self.draft.set_variable(self._place(one), name, value)
            if is_taken or can_export(name):
                self._set(name, value)
                self.state.set_by_env.add(name)
            else:
                self._lose(name)

    def _read_label(self, one: Instruction) -> None:
        for name, value in self._read_pairs(one):
            if OF_BASE.search(value):
                self._leave_out(one, "it depends on the base, whose variables are not known here")
            elif name:
                self.draft.set_label(self._place(one), name, value)

    def _read_arg(self, one: Instruction) -> None:
        for word in split_words(one.text, self.escape):
            name, sign, value = word.partition("=")
            self.used.add(name)
            if name in self.state.set_by_env:
                continue  # ENV counts
            known = {**self.predefined, **self.given}
            if name not in known and not sign and name not in self.globals:
                self.state.unset.add(name)
                continue
            if not can_export(name):
                self._lose(name)
                raise NotUnderstood(f"bash lets no step set {name}: give it another name")
            try:
                given = known.get(name)
                own = self._expand(value) if sign else self.globals.get(name, "")
                self._set(name, own if given is None else given)
            except NotUnderstood:
                self._lose(name)
                raise

    # -- what steps have

    def _read_workdir(self, one: Instruction) -> None:
        try:
            path = self._expand_plain(one.text)
            if not path.startswith("/") and (not self.state.workdir or WORKDIR in self.state.lost):
                raise NotUnderstood(
                    "the base's own folder is not known here: write an absolute path"
                )
        except NotUnderstood:
            self.state.lost.add(WORKDIR)
            raise
        self.state.lost.discard(WORKDIR)
        self.state.workdir = posixpath.normpath(posixpath.join(self.state.workdir or "/", path))
        self.state.has_made_workdir = False
        self._add_folders(self.state.workdir)

    def _make_last_workdir(self, start: Instruction) -> None:
        """Add a step that makes the last WORKDIR, where no step does, and say what becomes of it."""
        workdir = self.state.workdir
        if not workdir:
            return
        if not self.state.has_made_workdir and workdir not in FOLDERS:
            made = f"mkdir -p {quote_words([workdir])}"
            self.draft.add_step(self._place(start), made, f"WORKDIR {workdir}")
        why = "containers start in the folder that they are started from"
        self.draft.note(self._place(start), f"WORKDIR {workdir}", why)

    def _read_shell(self, one: Instruction) -> None:
        self.state.lost.add(SHELL)
        self.state.shell = read_shell(one.argv or ())
        self.state.lost.discard(SHELL)

    def _read_user(self, one: Instruction) -> None:
        user = self._expand_plain(one.text).partition(":")[0]
        if user not in ("root", "0"):
            raise NotUnderstood(
                "steps run as root of the image, and containers as whoever starts them"
            )

    def _read_entrypoint(self, one: Instruction) -> None:
        if SHELL in self.state.lost and one.argv is None:
            raise NotUnderstood("the shell that would run it was left out")
        argv = one.argv if one.argv is not None else (*self.state.shell.argv, one.text)
        if not argv:
            raise NotUnderstood("a recipe cannot take away the base's entrypoint")
        self.draft.set_entrypoint(self._place(one), argv)

    # -- files

    def _add_folders(self, path: str) -> None:
        """Note that PATH and the folders above it are there."""
        while path not in ("", "/"):
            self.state.folders.add(path)
            path = posixpath.dirname(path)

    def _read_copy(self, one: Instruction) -> None:
        stage = one.find_flag("from")
        if stage:
            made = one.text.rpartition(" ")[0] or one.text
            self._leave_out(
                one,
                f"a recipe has one stage: {made} would come from {stage}",
                f"write what makes {made} as a step of `run`, or as packages: {{source: "
                "[{name: NAME, git: URL, ref: TAG, build: LINES}]}",
            )
            return
        mode = self._read_copy_flags(one)
        words = list(one.argv) if one.argv else split_words(one.text, self.escape)
        words = [self._expand_plain(word) for word in words]
        if len(words) < 2 or not all(words):
            raise NotUnderstood("write COPY SOURCE TARGET: one of them is empty")
        *sources, said = words
        target = self._place_target(said)
        is_into = said.endswith(("/", "/.")) or len(sources) > 1 or said in (".", "./")
        is_into = is_into or target in FOLDERS or target in self.state.folders
        if one.heredocs:
            self._copy_heredocs(one, sources, target, mode, is_into=is_into)
            return
        for source in sources:
            _refuse_remote(one.name, source)
            folder = self.context.find_folder(source)
            if folder:
                self.state.copied_folders.append((target, folder))
        for file in self.context.list_copied(sources, target, is_into=is_into):
            self._write_file(one, file.path, file.content, mode or file.mode)
            self.state.copied[file.path] = file.source

    def _read_copy_flags(self, one: Instruction) -> str:
        """Return the mode of --chmod; empty without. NotUnderstood for flags that change more."""
        for flag in one.flags:
            name, _, value = flag.partition("=")
            owner = self._expand_plain(value).partition(":")[0]
            if name == "--chown" and owner not in ("0", "root"):
                why = "files of an image are root's; --chmod says who may read and run them"
                self.draft.note(self._place(one), f"{one.name} {flag}", why)
            elif name not in ("--chmod", "--chown", "--link", "--checksum", "--keep-git-dir"):
                raise CannotCopy(f"{flag} is not understood")
        return _read_mode(self._expand_plain(one.find_flag("chmod")))

    def _place_target(self, said: str) -> str:
        """Return the path of the image that SAID is, in the folder of the steps."""
        if not said.startswith("/") and (not self.state.workdir or WORKDIR in self.state.lost):
            raise NotUnderstood("the base's own folder is not known here: write an absolute path")
        return posixpath.normpath(posixpath.join(self.state.workdir or "/", said))

    def _copy_heredocs(
        self, one: Instruction, sources: list[str], target: str, mode: str, *, is_into: bool
    ) -> None:
        if any(not source.lstrip("0123456789").startswith("<<") for source in sources):
            raise CannotCopy("it mixes files of the context with lines of its own")
        for heredoc in one.heredocs:
            content = heredoc.content
            if heredoc.is_expanded:
                content = _expand_heredoc(content, self._expand_plain)
            path = posixpath.join(target, heredoc.name) if is_into else target
            self._write_file(one, path, content, mode or "0644")
            self.state.copied.pop(path, None)

    def _write_file(self, one: Instruction, path: str, content: str, mode: str) -> None:
        """Put a file into the image: before all steps, or by a step where there is one already."""
        self._add_folders(posixpath.dirname(path))
        self.state.has_made_workdir |= path.startswith(f"{self.state.workdir}/")
        self.state.has_settings |= OF_SYSTEM.match(path) is not None
        if self.state.has_steps:
            command = write_file_by_shell(path, content, mode)
            self.draft.add_step(self._place(one), command, f"COPY {path}", network=False)
        else:
            self.draft.add_file(self._place(one), path, content, mode)

    # -- steps

    def _read_run(self, one: Instruction) -> None:
        network = _read_run_flags(one)
        text = self._read_script(one)
        self._refuse_lost(text, is_shells=one.argv is None)
        if not self.state.has_steps and not self._has_settings() and network:
            installs = read_installs(text, self._find_copied)
            if installs:
                self.draft.add_installs(self._place(one), f"RUN {one.text}", installs)
                return
        self.state.has_steps = True
        self.state.has_made_workdir = True
        named = {name: value for name, value in self.state.variables.items() if can_export(name)}
        command = make_command(text, self.state.shell, named, self.state.workdir)
        title = _first_line(text) if one.heredocs else one.text
        self.draft.add_step(self._place(one), command, title, network=network)

    def _refuse_lost(self, text: str, *, is_shells: bool) -> None:
        """Raise NotUnderstood where a step of TEXT depends on what was left out.

        IS_SHELLS says that a shell reads it, which fills in variables.
        """
        lost = WORKDIR if WORKDIR in self.state.lost else ""
        if is_shells and not lost:
            lost = SHELL if SHELL in self.state.lost else find_named(text, self.state.lost)
        if lost:
            raise NotUnderstood(f"it depends on {lost}, which was left out")

    def _has_settings(self) -> bool:
        """Return whether files or variables before a step decide what its packages are."""
        named = (*self.state.variables, *self.state.lost)
        return self.state.has_settings or any(
            OF_INSTALLERS.match(name) and name not in HARMLESS for name in named
        )

    def _read_script(self, one: Instruction) -> str:
        """Return what a RUN gives to its shell."""
        if one.argv is not None:
            return quote_words(one.argv)
        if len(one.heredocs) == 1 and one.text.lstrip("<-").strip("\"'") == one.heredocs[0].name:
            content = one.heredocs[0].content
            if not content.startswith("#!"):
                return content
            program = content.splitlines()[0].removeprefix("#!").strip()
            return f"{program} <<'{one.heredocs[0].name}'\n{content}{one.heredocs[0].name}\n"
        text = one.script
        for heredoc in one.heredocs:
            text += f"\n{heredoc.content}{heredoc.name}"
        return text

    def _find_copied(self, path: str) -> Path | None:
        """Return the file of the context that PATH is in the image, where it was copied."""
        whole = posixpath.normpath(posixpath.join(self.state.workdir or "/", path))
        if whole in self.state.copied:
            return self.state.copied[whole]
        for target, folder in reversed(self.state.copied_folders):
            if whole.startswith(f"{target}/"):
                return self.context.find_file(folder, posixpath.relpath(whole, target))
        return None


def _refuse_remote(name: str, source: str) -> None:
    """Raise CannotCopy for a SOURCE of ADD or COPY that is no plain file of the context."""
    if "://" in source or source.startswith("git@"):
        raise CannotCopy(
            "a recipe fetches nothing but packages: write a step of `run` with curl, or packages: "
            "{source: ...} for a repository"
        )
    if name == "ADD" and ARCHIVE.fullmatch(source):
        raise CannotCopy("it unpacks an archive: fetch and unpack it in a step of `run`")


def _read_run_flags(one: Instruction) -> bool:
    """Return whether the flags of a RUN let it use the network. NotUnderstood for others."""
    network = True
    for flag in one.flags:
        name, _, value = flag.partition("=")
        kind = re.search(r"(?:^|,)type=([a-z]+)", value)
        if name == "--network":
            network = value != "none"
        elif name != "--mount" or not kind or kind[1] not in ("cache", "tmpfs"):
            raise NotUnderstood(
                f"{flag} is not understood: a step has the site's mirrors and logins, and files of "
                "the recipe"
            )
    return network


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return lines[0] if lines else "a script"


def _read_mode(flag: str) -> str:
    """Return the mode that --chmod names; empty for none. Raise CannotCopy for one in letters."""
    if not flag:
        return ""
    if not re.fullmatch(r"0?[0-7]{3}", flag):
        raise CannotCopy(f"--chmod={flag}: a recipe has modes in octal, as 0755")
    return flag if len(flag) == 4 else f"0{flag}"


def _expand_heredoc(content: str, expand_plain: Callable[[str], str]) -> str:
    """Return the lines of a heredoc with their variables; quotes in them are text."""
    out = ""
    at = 0
    for match in re.finditer(r"\\\$|\$(?:\{[^{}]*\}|\w+)", content):
        said = match[0]
        out += content[at : match.start()] + ("$" if said == "\\$" else expand_plain(said))
        at = match.end()
        if len(out) > MAX_TEXT:
            raise CannotCopy(f"it is longer than {MAX_TEXT} characters")
    return out + content[at:]
