"""Job scripts for users to copy: the templates in launchers/to-copy/templates, filled.

A template says its own options of sbatch and of `hpcstack launch` by calling the functions that it
is given: `directives`, `launch`, `launch_own` and `prepare`. So what a user asks for takes the place
of the template's own before a line is written.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.quote import check_unbroken, quote_sh
from hpcstack.render.template import fill_template
from hpcstack.site.model import NodeType
from hpcstack.slurm.gpus import list_requests, read_gpu_request
from hpcstack.slurm.options import GivenOption
from hpcstack.slurm.rivals import find_rivals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.site.load import Site

# An option of `hpcstack launch` with its value; None where it has none.
Option = tuple[str, "str | None"]
# Options that may be repeated: one that was asked for stands beside the template's own.
REPEATED = ("--with", "--mount", "--stage-in", "--srun")
# What a program that the template itself starts, such as JupyterLab, takes of the options that were
# asked for. The others are about the user's own program.
FOR_ANY_PROGRAM = ("--with", "--mount", "--runtime", "--home", "--no-home")
# Options that say in another way what a template's own one says. Of a core's threads Slurm gives one
# then, and how many a core has no template knows.
SAID_OTHERWISE = {
    "--ntasks-per-node": ("--tasks-per-node", "--ntasks-per-gpu"),
    "--cpus-per-task": ("--hint", "--threads-per-core"),
}


@dataclass(frozen=True)
class _Asked:
    """What a user asked for: options of SBATCH by name, of LAUNCH in their order."""

    stack: str
    sbatch: Mapping[str, str | None]
    launch: Sequence[Option]

    def directives(self, own: Mapping[str, object]) -> str:
        """Return the #SBATCH lines: the template's OWN options, or what was asked for in place.

        An own option is True where it has no value; one that is empty or 0 is left out. So is one
        for which None was asked, and one that Slurm refuses beside what was asked, or that says
        the same in another way.
        """
        options: dict[str, str | None] = {}
        given = [
            GivenOption(f"--{name}", value or None)
            for name, value in self.sbatch.items()
            if value is not None
        ]
        for name, value in own.items():
            text = "" if value is True else str(value)
            if value and not _is_said_otherwise(GivenOption(f"--{name}", text), given):
                options[name] = text
        options |= self.sbatch
        return "\n".join(
            _write_directive(name, value) for name, value in options.items() if value is not None
        )

    def launch_line(self, *own: Option) -> str:
        """Return a call of `hpcstack launch` up to its `--`, for the user's program.

        What was asked for takes the place of the template's OWN options. Their values are written
        as they are: they may name variables of the shell.
        """
        return self._write(own, self.launch)

    def launch_own(self, *own: Option) -> str:
        """Return the same for a program that the template starts itself, with its OWN options."""
        return self._write(own, [one for one in self.launch if one[0] in FOR_ANY_PROGRAM])

    def prepare(self, package: str) -> str:
        """Return what prepares PACKAGE, and those asked for, on the login node."""
        packages = [one for one in self.launch if one[0] == "--with"]
        own = (("--runtime", "local"), ("--with", package))
        return f"{self._write(own, packages)} --mode plain -- true"

    def _write(self, own: Sequence[Option], asked: Sequence[Option]) -> str:
        replaced = {name for name, _ in asked if name not in REPEATED}
        kept = [one for one in own if one[0] not in replaced]
        words = [_write_option(name, value) for name, value in kept]
        for name, value in asked:
            words.append(_write_option(name, None if value is None else shlex.quote(value)))
        return " ".join(["hpcstack launch", self.stack, *words])


def _is_said_otherwise(own: GivenOption, given: Sequence[GivenOption]) -> bool:
    """Return whether what was GIVEN takes the place of OWN, an option of a template."""
    if own.name == "--gpus-per-node" and list_requests(given):
        return True
    others = [one for one in given if one.name in SAID_OTHERWISE.get(own.name, ())]
    return bool(others or find_rivals(own, given))


def render_job_template(
    kind: str,
    stack: str,
    site: Site,
    sbatch: Mapping[str, str | None],
    launch: Sequence[Option] = (),
    command: Sequence[str] = (),
) -> str:
    """Return a job script for STACK that users copy: launchers/to-copy/templates/KIND, filled.

    SBATCH are options of sbatch that replace the template's; None removes the template's line, and
    an empty value stands for an option without one. LAUNCH are options of `hpcstack launch`.
    COMMAND is what the script runs when sbatch gives it no arguments.
    """
    node = site.node_type() or NodeType()
    default = next((name for name, partition in site.partitions.items() if partition.default), "")
    gpus = node.gpus.count if node.gpus else 0
    asked = _Asked(stack, sbatch, launch)
    return fill_template(
        "launchers",
        f"to-copy/templates/{kind}.sbatch.j2",
        stack=stack,
        partition=default,
        gpus=gpus,
        cpus=_share_of_cpus(node.cpus, gpus, sbatch.get("gpus-per-node")),
        command=shlex.join(command),
        directives=asked.directives,
        launch=asked.launch_line,
        launch_own=asked.launch_own,
        prepare=asked.prepare,
    )


def _share_of_cpus(cpus: int, gpus: int, wanted: str | None) -> int:
    """Return how many of a node's CPUS go with the WANTED of its GPUS; all where none is named.

    Whoever takes four GPUs of eight leaves the other half of the CPUs to others.
    """
    request = read_gpu_request("--gpus-per-node", wanted or "", "")
    count = request.devices if request else 0
    if not 0 < count < gpus:
        return cpus
    return max(1, cpus * count // gpus)


def _write_option(name: str, value: str | None) -> str:
    """Return an option of `hpcstack launch` with its VALUE, which is quoted already."""
    if value is None:
        return name
    if value.startswith("-"):  # else it would be taken for an option
        return f"{name}={value}"
    return f"{name} {value}"


def _write_directive(name: str, value: str) -> str:
    if not value:
        return f"#SBATCH --{name}"
    return f"#SBATCH --{name}={quote_sh(check_unbroken(value))}"
