"""The options that ask for resources: Slurm's own words, one mapping."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from hpcstack.core.errors import InputError
from hpcstack.core.names import RUNTIMES, WITHOUT_SLURM
from hpcstack.launch.resources import Resources
from hpcstack.slurm.options import SHORT, VALUED, SlurmOptions


class Passing(click.Command):
    """A verb that hands options it does not know, before `--`, to srun: `--mem=10G -- train.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        valued = {name for param in self.params if _takes_a_value(param) for name in param.opts}
        args = join_values(args, own, valued)
        cut = args.index("--") if "--" in args else 0
        known = [
            word
            for word in args[:cut]
            if not word.startswith("--") or word.partition("=")[0] in (*own, "--help")
        ]
        ctx.meta["passed"] = tuple(word for word in args[:cut] if word not in known)
        ctx.meta["command"] = tuple(args[cut + 1 :]) if "--" in args else None
        if "--" in args and not self._named(ctx, known):
            known.append("")  # STACK is left out: what follows the `--` is not it
        try:
            return super().parse_args(ctx, [*known, *args[cut:]])
        except click.NoSuchOption as error:
            raise self._after(ctx, args, error) or error from None

    def _named(self, ctx: click.Context, words: list[str]) -> bool:
        """Whether a STACK stands in WORDS, which are those before the `--`."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        given, _, _ = parser.parse_args([one for one in words if one not in ("--help", "-h")])
        return isinstance(given.get("name"), str)  # click has a mark of its own for what is missing

    def _after(
        self, ctx: click.Context, args: list[str], error: click.NoSuchOption
    ) -> click.UsageError | None:
        """What to say of an option that belongs to the command, which began without a `--`."""
        place = next(
            (n for n, word in enumerate(args) if word.partition("=")[0] == error.option_name), 0
        )
        begins = next((n for n in range(place) if re.search(COMMAND, args[n])), -1)
        if begins < 0 or "--" in args:
            return None
        line = f"{ctx.command_path} {shlex.join([*args[:begins], '--', *args[begins:]])}"
        return click.UsageError(
            f"{error.option_name} follows {args[begins]}; put `--` before the command: {line}"
        )


def _takes_a_value(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and not param.is_flag and not param.count


def join_values(args: list[str], own: set[str], valued: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """ARGS with `--mem 4G` and `-J name`, as people write them for srun, as one word.

    OWN are options of the verb's, VALUED those of them that take a value, whatever that looks like:
    `--with '-e .'`.
    """
    cut = args.index("--") if "--" in args else len(args)
    out: list[str] = []
    words = iter(args[:cut])
    for word in words:
        if word in valued:
            out += [word, *([value] if (value := next(words, None)) is not None else [])]
            continue
        option = SHORT.get(word, word) if word not in own else word
        if word[:2] in SHORT and word[:2] not in own and len(word) > 2:  # -n4
            out.append(f"{SHORT[word[:2]]}={word[2:].removeprefix('=')}")
        elif option in VALUED and option not in own:
            value = next(words, None)
            out.append(option if value is None else f"{option}={value}")
        else:
            out.append(word)
    return [*out, *args[cut:]]


COMMAND = r"\.(py|sh)$|^(python3?|bash|sh|\./.*)$"  # what looks like the beginning of a command
F = TypeVar("F", bound=Callable[..., Any])


class WholeNumber(click.IntRange):
    """A whole number, refused in plain words."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!r} is not a whole number of at least {self.min}", param, ctx)


NUMBER = WholeNumber(min=0)
OPTIONS = (
    click.option(
        "-N", "--nodes", type=WholeNumber(min=1), help="How many nodes; the allocation's, or 1."
    ),
    click.option(
        "-n",
        "--ntasks",
        type=NUMBER,
        default=0,
        help="Tasks of all nodes together (modes mpi, plain).",
    ),
    click.option(
        "--ntasks-per-node", type=NUMBER, default=0, help="Slurm tasks per node (mode plain)."
    ),
    click.option("--gpus-per-node", type=NUMBER, default=0, help="GPUs per node."),
    click.option("-G", "--gpus", type=NUMBER, default=0, help="GPUs of all nodes together."),
    click.option("-c", "--cpus-per-task", type=NUMBER, default=0, help="CPUs per task."),
    click.option(
        "--nproc-per-node",
        type=NUMBER,
        default=0,
        help="Ranks per node (mode torchrun); one per GPU by default.",
    ),
    click.option("-p", "--partition", default=""),
    click.option("-A", "--account", default=""),
    click.option("-q", "--qos", default=""),
    click.option("--reservation", default=""),
    click.option("-C", "--constraint", default=""),
    click.option("-w", "--nodelist", default="", help="Which nodes."),
    click.option("-t", "--time", default="", help="Time limit: minutes, or 2:30:00 or 1-12."),
    click.option("--exclusive", is_flag=True),
    click.option(
        "--srun",
        "extra",
        multiple=True,
        metavar="OPTION",
        help="Any other option of srun, e.g. --srun=--overlap.",
    ),
    click.option(
        "--runtime",
        default="auto",
        type=click.Choice(["auto", *RUNTIMES]),
        show_default=True,
    ),
)


def resource_options(function: F) -> F:
    """All resource options on a command."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def parse_resources(options: dict[str, Any]) -> Resources:
    """Resources from the parsed options, of which others are left alone; `batch`: for a job of its
    own.
    """
    own = {field.name for field in fields(Resources)}
    given, batch = (
        {name: value for name, value in options.items() if name in own},
        options.get("batch", False),
    )
    extra = SlurmOptions.parse(options.get("extra", ()))
    tasks = extra.value("--ntasks")
    if tasks.isdecimal():
        given["ntasks"] = int(tasks)
        extra = SlurmOptions(tuple(one for one in extra.given if one.name != "--ntasks"))
    given["extra"] = extra
    allocated = (
        os.environ.get("SLURM_JOB_NUM_NODES", "")
        if options["runtime"] != WITHOUT_SLURM and not batch
        else ""
    )
    if not given.get("partition"):
        given["partition"] = os.environ.get("SBATCH_PARTITION" if batch else "SLURM_PARTITION", "")
    nodes_here = int(allocated) if allocated.isdigit() else 1
    if total := options["gpus"]:
        count = options["nodes"] or nodes_here
        if total % count:
            raise InputError(
                f"--gpus {total} on {count} nodes: not as many on each", "--gpus-per-node N"
            )
        given["gpus_per_node"] = given.get("gpus_per_node") or total // count
    nodes = options["nodes"] if options["nodes"] is not None else nodes_here
    return Resources(**{**given, "nodes": nodes})
