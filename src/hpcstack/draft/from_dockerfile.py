"""What a recipe can say of a Dockerfile.

A recipe is built in another order than a Dockerfile: packages, then files, then steps. So packages
are taken out of steps only as long as no other step comes before them, and a file that comes after a
step which names it is left out. Each step gets the variables and the folder that it has in the
Dockerfile.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, did_you_mean
from hpcstack.core.files import read_text
from hpcstack.core.quote import quote_words
from hpcstack.core.yaml import Mark
from hpcstack.draft.context_files import CannotCopy, find_folder, list_copied
from hpcstack.draft.dockerfile import Dockerfile, Instruction, parse_dockerfile
from hpcstack.draft.image_names import complete_image_name
from hpcstack.draft.install_commands import read_installs
from hpcstack.draft.recipe_draft import RecipeDraft
from hpcstack.draft.words import (
    OF_BASE,
    NotUnderstood,
    expand_value,
    mark_base,
    quote_value,
    split_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

LARGEST = 1 << 20  # bytes
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
# Folders that any base has, and /workspace of NVIDIA's: a file that is copied there goes into them.
FOLDERS = frozenset(
    [
        "/",
        "/bin",
        "/etc",
        "/home",
        "/lib",
        "/media",
        "/mnt",
        "/opt",
        "/root",
        "/sbin",
        "/srv",
        "/tmp",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/local",
        "/usr/local/bin",
        "/usr/local/lib",
        "/usr/local/sbin",
        "/usr/sbin",
        "/usr/share",
        "/usr/src",
        "/var",
        "/var/lib",
        "/var/tmp",
        "/workspace",
    ]
)
SHELL_OF_STEPS = ("/bin/sh", "-c")
ARCHITECTURES = {"linux/amd64": "amd64", "linux/arm64": "arm64"}
ARCHIVE = re.compile(r".*\.(tar|tar\.gz|tgz|tar\.bz2|tar\.xz)")


@dataclass(frozen=True)
class Stage:
    """One stage of a Dockerfile: FROM, and what follows it."""

    start: Instruction
    base: str
    name: str
    instructions: tuple[Instruction, ...]


@dataclass
class _State:
    """What holds at one instruction: variables, the folder, the shell, files that were copied."""

    variables: dict[str, str] = field(default_factory=dict)
    unset: set[str] = field(default_factory=set)  # arguments without a value
    lost: set[str] = field(default_factory=set)  # variables whose values were left out
    workdirs: set[str] = field(default_factory=set)
    workdir: str = ""  # empty: the base's, which is not known
    shell: tuple[str, ...] = SHELL_OF_STEPS
    user: str = ""
    copied: dict[str, Path] = field(default_factory=dict)
    folders: list[tuple[str, Path]] = field(default_factory=list)  # also those that are left out
    has_steps: bool = False


def draft_dockerfile(
    path: Path, context: Path, arguments: Mapping[str, str], target: str, platform: str
) -> RecipeDraft:
    """Return what a recipe can say of the Dockerfile PATH, built in the folder CONTEXT.

    ARGUMENTS are build arguments. TARGET is a stage; empty for the last one. Raise InputError where
    the file cannot be read, or has no such stage.
    """
    try:
        text = read_text(path.resolve(), LARGEST)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read: {error}", "name a Dockerfile", page="bring-what-you-have"
        ) from None
    dockerfile = parse_dockerfile(text, path)
    reader = _DockerfileReader(path, context, dockerfile, arguments, platform)
    return reader.read(target)


class _DockerfileReader:
    def __init__(
        self,
        path: Path,
        context: Path,
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

    def read(self, target: str) -> RecipeDraft:
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
        self._read_base(chain[0])
        self.draft.understood += len(chain)
        for stage in chain:
            for instruction in stage.instructions:
                self._read_instruction(instruction)
        unused = sorted(set(self.given) - self.used)
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
        platform = self._expand_global(start, start.find_flag("platform"))
        if platform in ARCHITECTURES:
            self.draft.platform = platform
        elif platform:
            self._leave_out(start, f"{platform} is not a platform of nodes")

    # -- instructions

    def _read_instruction(self, one: Instruction) -> None:
        before = len(self.draft.left_out)
        readers = {
            "ADD": self._read_copy,
            "ARG": self._read_arg,
            "COPY": self._read_copy,
            "ENTRYPOINT": self._read_entrypoint,
            "ENV": self._read_env,
            "LABEL": self._read_label,
            "RUN": self._read_run,
            "SHELL": self._read_shell,
            "USER": self._read_user,
            "WORKDIR": self._read_workdir,
        }
        if one.name in WITHOUT_EFFECT:
            self.draft.note(self._place(one), f"{one.name} {one.text}", WITHOUT_EFFECT[one.name])
        elif one.name not in readers:
            self._leave_out(one, "Dockerfiles have no such instruction")
        else:
            try:
                readers[one.name](one)
            except (NotUnderstood, CannotCopy) as error:
                self._leave_out(one, str(error))
        if len(self.draft.left_out) == before:
            self.draft.understood += 1

    def _look_up(self, name: str) -> str:
        """Return the value of the variable NAME; a mark where only the base has it, if anybody."""
        if name in self.state.lost:
            raise NotUnderstood(f"it depends on {name}, which was left out")
        if name in self.state.variables:
            return self.state.variables[name]
        if name in self.state.unset:
            return ""
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

    def _read_pairs(self, one: Instruction) -> list[tuple[str, str]]:
        """Return (name, value) of ENV and LABEL, also in their old form `ENV NAME VALUE`."""
        words = split_words(one.text, self.escape)
        if words and "=" not in words[0]:
            name, *value = re.split(r"[ \t]+", one.text, maxsplit=1)
            return [(name, self._expand("".join(value)))]
        return [self._read_pair(one, word) for word in words]

    def _read_pair(self, one: Instruction, word: str) -> tuple[str, str]:
        """Return (name, value) of WORD, NAME=VALUE. Leave out what is not understood, with no name."""
        name, _, value = word.partition("=")
        try:
            return self._expand_plain(name), self._expand(value)
        except NotUnderstood as error:
            self.draft.leave_out(self._place(one), f"{one.name} {word}", str(error))
            self.state.lost.add(name)
            return "", ""

    def _read_env(self, one: Instruction) -> None:
        known = {name: value for name, value in self._read_pairs(one) if name}
        self.state.lost -= set(known)
        for name, value in known.items():
            self.draft.set_variable(self._place(one), name, value)
            self.state.variables[name] = value

    def _read_label(self, one: Instruction) -> None:
        for name, value in self._read_pairs(one):
            if OF_BASE.search(value):
                why = "it depends on a variable of the base, which is not known here"
                self._leave_out(one, why)
            elif name:
                self.draft.set_label(self._place(one), name, value)

    def _read_arg(self, one: Instruction) -> None:
        for word in split_words(one.text, self.escape):
            name, sign, value = word.partition("=")
            self.used.add(name)
            known = {**self.predefined, **self.given}
            if name in known:
                self.state.variables[name] = known[name]
            elif sign:
                self.state.variables[name] = self._expand(value)
            elif name in self.globals:
                self.state.variables[name] = self.globals[name]
            else:
                self.state.unset.add(name)

    def _read_workdir(self, one: Instruction) -> None:
        path = self._expand_plain(one.text)
        if not path.startswith("/") and not self.state.workdir:
            raise NotUnderstood("the base's own folder is not known here: write an absolute path")
        self.state.workdir = posixpath.normpath(posixpath.join(self.state.workdir or "/", path))
        self.state.workdirs.add(self.state.workdir)

    def _read_shell(self, one: Instruction) -> None:
        argv = one.argv or ()
        is_known = argv[:1] and posixpath.basename(argv[0]) in ("sh", "bash") and "c" in argv[-1]
        if not is_known:
            raise NotUnderstood("steps of a recipe are lines of bash")
        self.state.shell = argv

    def _read_user(self, one: Instruction) -> None:
        user = self._expand_plain(one.text).partition(":")[0]
        if user in ("root", "0"):
            return
        raise NotUnderstood("steps run as root of the image, and containers as whoever starts them")

    def _read_entrypoint(self, one: Instruction) -> None:
        argv = one.argv if one.argv is not None else ("/bin/sh", "-c", one.text)
        if not argv:
            raise NotUnderstood("a recipe cannot take away the base's entrypoint")
        self.draft.entrypoint = list(argv)

    # -- files

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
        words = list(one.argv) if one.argv else split_words(one.text, self.escape)
        words = [self._expand_plain(word) for word in words]
        if len(words) < 2:
            raise NotUnderstood("write COPY SOURCE TARGET")
        *sources, target = words
        is_into = target.endswith("/") or len(sources) > 1 or target in (".", "./")
        if not target.startswith("/") and not self.state.workdir:
            raise NotUnderstood("the base's own folder is not known here: write an absolute path")
        target = posixpath.normpath(posixpath.join(self.state.workdir or "/", target))
        is_into = is_into or target in FOLDERS or target in self.state.workdirs
        self._refuse_after_step(target)
        if one.heredocs:
            self._copy_heredocs(one, sources, target, is_into=is_into)
            return
        for source in sources:
            if "://" in source or source.startswith("git@"):
                raise CannotCopy(
                    "a recipe fetches nothing but packages: write a step of `run` with curl, or "
                    "packages: {source: ...} for a repository"
                )
            if one.name == "ADD" and ARCHIVE.fullmatch(source):
                raise CannotCopy("it unpacks an archive: fetch and unpack it in a step of `run`")
        for source in sources:
            folder = find_folder(self.context, source)
            if folder:
                self.state.folders.append((target, folder))
        mode = one.find_flag("chmod")
        for file in list_copied(self.context, sources, target, is_into=is_into):
            self.draft.add_file(
                self._place(one), file.path, file.content, _read_mode(mode, file.mode)
            )
            self.state.copied[file.path] = file.source

    def _copy_heredocs(
        self, one: Instruction, sources: list[str], target: str, *, is_into: bool
    ) -> None:
        if any(not source.lstrip("0123456789").startswith("<<") for source in sources):
            raise CannotCopy("it mixes files of the context with lines of its own")
        for heredoc in one.heredocs:
            content = heredoc.content
            if heredoc.is_expanded:
                content = _expand_heredoc(content, self._expand_plain)
            path = posixpath.join(target, heredoc.name) if is_into else target
            mode = _read_mode(one.find_flag("chmod"), "0644")
            self.draft.add_file(self._place(one), path, content, mode)

    def _refuse_after_step(self, target: str) -> None:
        """Raise CannotCopy where a step before it names TARGET: files come before all steps."""
        for step in self.draft.run:
            if re.search(rf"{re.escape(target)}(?![\w.-])", _without_head(step["command"])):
                raise CannotCopy(
                    f"the step `{step['name']}` names {target}, and files are copied before steps: "
                    "write the file in a step of `run`"
                )

    # -- steps

    def _read_run(self, one: Instruction) -> None:
        network = True
        for flag in one.flags:
            name, _, value = flag.partition("=")
            kind = re.search(r"(?:^|,)type=([a-z]+)", value)
            if name == "--network":
                network = value != "none"
            elif name != "--mount" or (kind and kind[1] not in ("cache", "tmpfs")):
                raise NotUnderstood(
                    f"{flag} is not understood: a step has the site's mirrors and logins, and "
                    "files of the recipe"
                )

        text = self._read_script(one)
        title = f"{one.text.splitlines()[0]}" if not one.heredocs else _first_line(text)
        installs = None
        if not self.state.has_steps and network:
            installs = read_installs(text, self._find_copied)
        if installs:
            self.draft.apt += [name for name in installs.apt if name not in self.draft.apt]
            self.draft.pip += [name for name in installs.pip if name not in self.draft.pip]
            self.draft.constraints += installs.constraints
            self.draft.no_build_isolation += installs.no_build_isolation
            return
        self.state.has_steps = True
        command = f"{self._make_head(text)}{text}"
        self.draft.add_step(self._place(one), command, title, network=network)

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
        for target, folder in reversed(self.state.folders):
            file = folder / posixpath.relpath(whole, target)
            if whole.startswith(f"{target}/") and file.is_file():
                return file
        return None

    def _make_head(self, text: str) -> str:
        """Return the lines that give a step of TEXT what it has in the Dockerfile."""
        lines = []
        if "$" in text or any(OF_BASE.search(value) for value in self.state.variables.values()):
            lines.append("set +u")
        is_pipefail = "pipefail" in self.state.shell
        if "|" in text and not is_pipefail:
            lines.append("set +o pipefail")
        is_bash = posixpath.basename(self.state.shell[0]) == "bash"
        if "echo" in text and re.search(r"\\[^\n]", text) and not is_bash:
            lines.append("shopt -s xpg_echo # as sh's own echo")
        pairs = [f"{name}={quote_value(value)}" for name, value in self.state.variables.items()]
        if pairs:
            lines.append(f"export {' '.join(pairs)}")
        if self.state.workdir:
            folder = quote_words([self.state.workdir])
            lines.append(f"mkdir -p {folder} && cd {folder}")
        return "".join(f"{line}\n" for line in (*lines, HEAD_ENDS)) if lines else ""


HEAD_ENDS = "# what the Dockerfile runs:"


def _without_head(command: str) -> str:
    """Return COMMAND without the lines that `_make_head` has put before it."""
    head, sign, rest = command.partition(f"\n{HEAD_ENDS}\n")
    return rest if sign else head


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return lines[0] if lines else "a script"


def _read_mode(flag: str, otherwise: str) -> str:
    """Return the mode that --chmod names, else OTHERWISE. Raise CannotCopy for one in letters."""
    if not flag:
        return otherwise
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
    return out + content[at:]
