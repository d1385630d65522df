"""The options that ask Slurm for resources. Their names are Slurm's own.

Tested in tests/unit/launch/test_plan.py and tests/unit/cli/test_first_day.py.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcstack.core.errors import InputError
from hpcstack.core.names import RUNTIMES, WITHOUT_SLURM
from hpcstack.launch.resources import Resources
from hpcstack.slurm.gpus import Gres, list_requests_of_variables, parse_gpus
from hpcstack.slurm.nodelist import expand_typed
from hpcstack.slurm.options import OPTIONS as OF_SLURM
from hpcstack.slurm.options import (
    SHORT,
    GivenOption,
    SlurmOptions,
    Value,
    list_valued_options,
)
from hpcstack.slurm.query import find_allocation


class Passing(click.Command):
    """A verb that passes long options which it does not know on to srun: `--mem=10G -- train.py`.

    They stand before the `--`. `ctx.meta` keeps them as "passed", and what follows the `--` as
    "command" (None without a `--`).
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        valued = list_valued(self.params)
        flags = own - valued
        args = join_values(args, own, valued)

        cut = args.index("--") if "--" in args else 0
        if "--" not in args and any(word.partition("=")[0] == "--template" for word in args):
            cut = len(args)  # a job script to copy may need no command
        known = []
        passed = []
        for word in args[:cut]:
            option, has_value, _ = word.partition("=")
            row = OF_SLURM.get(option)
            # --exclusive=user, where ours is a flag
            may_have_value = option in flags and row and row.value is Value.OPTIONAL
            is_srun_form = bool(has_value and may_have_value)
            if not word.startswith("--") or (option in (*own, "--help") and not is_srun_form):
                known.append(word)
            else:
                passed.append(word)
        ctx.meta["passed"] = tuple(passed)
        ctx.meta["command"] = tuple(args[cut + 1 :]) if "--" in args else None

        # Click would take the command's first word for a STACK that is left out.
        if "--" in args:
            known += [""] * self._count_missing(ctx, known)

        try:
            return super().parse_args(ctx, [*known, *args[cut:]])
        except click.NoSuchOption as error:
            raise (
                self._explain_missing_dashes(ctx, args, error)
                or _explain_short_form(error)
                or error
            ) from None

    def _count_missing(self, ctx: click.Context, words: list[str]) -> int:
        """Return how many arguments, such as a STACK, are not among WORDS, those before the `--`."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        given, _, _ = parser.parse_args([one for one in words if one not in ("--help", "-h")])
        single = (param for param in self.params if _is_single(param))
        # click has a value of its own, no string, for an argument that is missing
        return sum(not isinstance(given.get(param.name or ""), str) for param in single)

    def _explain_missing_dashes(
        self, ctx: click.Context, args: list[str], error: click.NoSuchOption
    ) -> click.UsageError | None:
        """Return what to say of an unknown option that is the command's, not ours.

        That is the case where a command seems to begin before it, without a `--`. Return None for
        any other unknown option.
        """
        if "--" in args:
            return None

        place = next(
            (n for n, word in enumerate(args) if word.partition("=")[0] == error.option_name), 0
        )
        begins = next((n for n in range(place) if re.search(COMMAND, args[n])), -1)
        if begins < 0:
            return None

        line = f"{ctx.command_path} {shlex.join([*args[:begins], '--', *args[begins:]])}"
        return click.UsageError(
            f"{error.option_name} follows {args[begins]}; put `--` before the command: {line}"
        )


# Options of srun's whose short form is not taken: before a program's own words it could be theirs
SHORT_FORMS = {
    "-B": "--extra-node-info",
    "-F": "--nodefile",
    "-I": "--immediate",
    "-K": "--kill-on-bad-exit",
    "-O": "--overcommit",
    "-S": "--core-spec",
    "-T": "--threads",
    "-W": "--wait",
    "-X": "--disable-status",
    "-Z": "--no-allocate",
    "-i": "--input",
    "-k": "--no-kill",
    "-m": "--distribution",
    "-r": "--relative",
    "-s": "--oversubscribe",
    "-u": "--unbuffered",
    "-v": "--verbose",
}


def _explain_short_form(error: click.NoSuchOption) -> click.UsageError | None:
    """Return what to say of an option that srun knows in this short form; None for any other."""
    long_form = SHORT_FORMS.get(error.option_name[:2])
    if not long_form or error.option_name.startswith("--"):
        return None
    return click.UsageError(
        f"{error.option_name}: write srun's option in its long form: {long_form}"
    )


def _is_single(param: click.Parameter) -> bool:
    return isinstance(param, click.Argument) and param.nargs == 1


def list_valued(params: Iterable[click.Parameter]) -> set[str]:
    """Return the words of those options among PARAMS that take a value."""
    options = [param for param in params if isinstance(param, click.Option)]
    return {word for param in options if not (param.is_flag or param.count) for word in param.opts}


def join_values(args: list[str], own: set[str], valued: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """Return ARGS with srun's options and their values, such as `--mem 4G` or `-J name`, joined.

    They become one word each, `--mem=4G` or `--job-name=name`, so that they can be told from the
    verb's own words. OWN are the verb's options. VALUED are those of them that take a value, which
    may look like an option itself: `--with '-e .'`.
    """
    cut = args.index("--") if "--" in args else len(args)
    out: list[str] = []
    words = iter(args[:cut])
    for word in words:
        if word in valued:
            out.append(word)
            value = next(words, None)
            if value is not None:
                out.append(value)
            continue

        if word[:2] in SHORT and word[:2] not in own and len(word) > 2:  # -Jname
            out.append(f"{SHORT[word[:2]]}={word[2:].removeprefix('=')}")
            continue

        option = word if word in own else SHORT.get(word, word)
        if option.startswith("--") and option not in own and option in list_valued_options():
            value = next(words, None)
            out.append(option if value is None else f"{option}={value}")
        else:
            out.append(word)

    return [*out, *args[cut:]]


COMMAND = r"\.(py|sh)$|^(python3?|bash|sh|\./.*)$"  # a word that a command seems to begin with
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class NodeCount:
    """A number of nodes; with `most`, what Slurm can give of `least` to so many."""

    least: int
    most: int = 0

    def __str__(self) -> str:
        return f"{self.least}-{self.most}" if self.most else str(self.least)


@dataclass(frozen=True)
class GpuCount:
    """A number of GPUs, of some types of gres.conf's or of none: 4, h100:4, volta:3,kepler:5."""

    entries: tuple[Gres, ...]

    @property
    def count(self) -> int:
        return sum(one.count for one in self.entries)

    @property
    def types(self) -> set[str]:
        return {one.type for one in self.entries if one.type}

    def __str__(self) -> str:
        return ",".join(one.value for one in self.entries)


class WholeNumber(click.IntRange):
    """A whole number. Click's own refusal, of a range "x>=1", is said in plain words."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!r} is not a whole number of at least {self.min}", param, ctx)


# A click before 8.4 has a ParamType that takes no type.
if TYPE_CHECKING:
    GpuType = click.ParamType[GpuCount]
    NodeType = click.ParamType[NodeCount]
else:
    GpuType = NodeType = click.ParamType


class GpuNumber(GpuType):
    """A number of GPUs as Slurm takes it: 4, h100:4 for a type of gres.conf's, or several of those."""

    name = "[type:]number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> GpuCount:
        if isinstance(value, GpuCount):
            return value
        text = str(value)
        # Slurm takes a type alone, too: one GPU of it. A word without a digit may be a slip for a
        # number (`all`), which a job would wait for in vain.
        is_word = ":" not in text and not any(sign.isdigit() for sign in text)
        try:
            found = GpuCount(parse_gpus(text))
        except ValueError:
            self.fail(f"{text!r} is no number of GPUs, such as 4 or h100:4", param, ctx)
        if is_word:
            self.fail(
                f"{text!r} is no number of GPUs, such as 4; one GPU of a type is TYPE:1",
                param,
                ctx,
            )
        return found


class NodeNumber(NodeType):
    """A number of nodes as Slurm takes it: 4, or 2-4 for what it can give."""

    name = "number|min-max"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> NodeCount:
        if isinstance(value, NodeCount):
            return value
        found = re.fullmatch(r"([1-9]\d{0,6})(?:-([1-9]\d{0,6}))?", str(value))
        least = int(found[1]) if found else 0
        most = int(found[2] or 0) if found else 0
        if not found or 0 < most < least:
            self.fail(f"{value!r} is no number of nodes, such as 4 or 2-4", param, ctx)
        return NodeCount(least, most if most > least else 0)


NUMBER = WholeNumber(min=0)
GPUS = GpuNumber()
OPTIONS = (
    click.option(
        "-N",
        "--nodes",
        type=NodeNumber(),
        show_default="the allocation's, else 1",
        help="Number of nodes; 2-4 for what Slurm can give.",
    ),
    click.option(
        "-n",
        "--ntasks",
        type=NUMBER,
        default=0,
        help="Number of tasks on all nodes together (modes mpi and plain).",
    ),
    click.option(
        "--ntasks-per-node",
        type=NUMBER,
        default=0,
        help="Number of tasks on each node (mode plain).",
    ),
    click.option(
        "--gpus-per-node",
        type=GPUS,
        show_default="all of them",
        help="Number of GPUs on each node; 0 for none.",
    ),
    click.option(
        "-G", "--gpus", type=GPUS, help="Number of GPUs on all nodes together; 0 for none."
    ),
    click.option("-c", "--cpus-per-task", type=NUMBER, default=0, help="Number of CPUs per task."),
    click.option(
        "--nproc-per-node",
        type=NUMBER,
        default=0,
        show_default="one per GPU",
        help="Number of ranks on each node (mode torchrun).",
    ),
    click.option(
        "-p", "--partition", default="", metavar="PARTITION", help="Partition of the nodes."
    ),
    click.option("-A", "--account", default="", metavar="ACCOUNT", help="Account to charge."),
    click.option("-q", "--qos", default="", metavar="QOS", help="Quality of service."),
    click.option(
        "--reservation", default="", metavar="NAME", help="Reservation to take the nodes from."
    ),
    click.option(
        "-C", "--constraint", default="", metavar="FEATURES", help="Features the nodes must have."
    ),
    click.option(
        "-w", "--nodelist", default="", metavar="NODES", help="Nodes to run on, as node[1-4]."
    ),
    click.option(
        "-t",
        "--time",
        default="",
        metavar="TIME",
        help="Time limit: minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS.",
    ),
    click.option("--exclusive", is_flag=True, help="Share the nodes with no other job."),
    click.option(
        "--srun",
        "extra",
        multiple=True,
        metavar="OPTION",
        help="Pass another option to srun, as in --srun=--overlap. May be given several times.",
    ),
    click.option(
        "--runtime",
        default="auto",
        type=click.Choice(["auto", *RUNTIMES]),
        show_default=True,
        help="Container runtime. local runs the command here, without Slurm.",
    ),
)


def resource_options(function: F) -> F:
    """Add all resource options to a command."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def write_directive(value: object) -> str | None:
    """Return the VALUE of an option as an #SBATCH line has it; None where it asks for nothing."""
    if isinstance(value, GpuCount):
        return str(value) if value.count else None
    if value is True:
        return ""  # a flag has no value
    return str(value) if value else None


def is_in_allocation() -> bool:
    """Return whether this shell has nodes of a job of its own."""
    return bool(find_allocation(os.environ))


def parse_resources(options: dict[str, Any]) -> Resources:
    """Return the Resources that the parsed OPTIONS ask for. Options of other kinds are left alone.

    `batch` among them says that a job of its own is asked for, for which the present allocation
    does not count. Raise InputError where --gpus cannot be divided among the nodes, or where it and
    --gpus-per-node contradict each other.
    """
    own = {field.name for field in fields(Resources)}
    given = {name: value for name, value in options.items() if name in own}
    batch = options.get("batch", False)

    # The number of tasks may also come as an option of srun's: --srun=--ntasks=8.
    extra = SlurmOptions.parse(options.get("extra", ()))
    tasks = extra.value("--ntasks")
    if tasks.isdecimal():
        given["ntasks"] = int(tasks)
        extra = SlurmOptions(tuple(one for one in extra.given if one.name != "--ntasks"))
    given["extra"] = extra

    if not given.get("partition"):
        given["partition"] = os.environ.get("SBATCH_PARTITION" if batch else "SLURM_PARTITION", "")

    allocated = ""
    if options["runtime"] != WITHOUT_SLURM and not batch:
        allocated = find_allocation(os.environ, extra.value("--het-group")).get(
            "SLURM_JOB_NUM_NODES", ""
        )
    nodes_here = int(allocated) if allocated.isdigit() else 1
    nodes: NodeCount = options["nodes"] or NodeCount(nodes_here)
    if not options["nodes"] and not allocated and options.get("nodelist"):
        nodes = NodeCount(_count_named(options["nodelist"]))
    if allocated and nodes.least <= nodes_here:
        nodes = NodeCount(min(nodes.most or nodes.least, nodes_here))
    total: GpuCount | None = options["gpus"]
    each: GpuCount | None = given.pop("gpus_per_node", None)
    if nodes.most and total and total.count:
        raise InputError(
            f"--gpus {total} cannot be divided among {nodes} nodes",
            "--gpus-per-node N",
            page="use-four-gpus-of-eight",
        )
    if any(one and len(one.entries) > 1 for one in (total, each)):
        # Numbers of several types go to Slurm as they stand.
        asked = {"--gpus": total, "--gpus-per-node": each}
        words = tuple(GivenOption(name, str(value)) for name, value in asked.items() if value)
        given["extra"] = SlurmOptions((*words, *extra.given))
    else:
        given |= _divide_gpus(total, each, nodes.least)
    if not allocated:
        given["of_shell"] = list_requests_of_variables(os.environ, "SBATCH" if batch else "SLURM")

    return Resources(**{**given, "nodes": nodes.least, "most_nodes": nodes.most})


def _count_named(nodelist: str) -> int:
    """Return how many nodes NODELIST, a value of -w, names; 1 for a file, and for what Slurm refuses."""
    if "/" in nodelist:
        return 1
    try:
        return max(len(expand_typed("--nodelist", nodelist)), 1)
    except InputError:
        return 1


def _divide_gpus(total: GpuCount | None, each: GpuCount | None, nodes: int) -> dict[str, Any]:
    """Return what --gpus TOTAL and --gpus-per-node EACH ask for on each of NODES, as Resources has it.

    Raise InputError where they contradict each other, or TOTAL cannot be divided.
    """
    if total and each and (total.count == 0) != (each.count == 0):
        raise InputError(
            f"--gpus {total} and --gpus-per-node {each} contradict each other",
            "leave one of them out",
            page="use-four-gpus-of-eight",
        )
    chosen = each or total
    if chosen is None:
        return {"gpus_per_node": 0}
    types = {word for one in (total, each) if one for word in one.types}
    if len(types) > 1:
        raise InputError(
            f"--gpus and --gpus-per-node name two types of GPU: {', '.join(sorted(types))}",
            "leave one of them out",
            page="use-four-gpus-of-eight",
        )
    if not chosen.count:
        return {"gpus_per_node": 0, "without_gpus": True}
    if total and total.count % nodes:
        raise InputError(
            f"--gpus {total} cannot be divided among {nodes} nodes",
            "--gpus-per-node N",
            page="use-four-gpus-of-eight",
        )
    on_a_node = each.count if each else chosen.count // nodes
    return {"gpus_per_node": on_a_node, "gpu_type": "".join(types)}
