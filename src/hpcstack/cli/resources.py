"""The options that ask for resources: Slurm's own words, one mapping."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from hpcstack.errors import InputError
from hpcstack.launch import Resources


class Passing(click.Command):
    """A verb that hands options it does not know, before `--`, to srun: `--mem=10G -- train.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else 0
        own = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        known = [word for word in args[:cut] if not word.startswith("--") or word.partition("=")[0] in (*own, "--help")]
        ctx.meta["passed"] = tuple(word for word in args[:cut] if word not in known)
        ctx.meta["command"] = tuple(args[cut + 1 :]) if cut else None
        return super().parse_args(ctx, [*known, *args[cut:]])


F = TypeVar("F", bound=Callable[..., Any])

NUMBER = click.IntRange(min=0)
OPTIONS = (
    click.option("-N", "--nodes", type=click.IntRange(min=1), help="How many nodes; the allocation's, or 1."),
    click.option("--ntasks-per-node", type=NUMBER, default=0, help="Slurm tasks a node (mode plain)."),
    click.option("--gpus-per-node", type=NUMBER, default=0, help="GPUs a node."),
    click.option("-G", "--gpus", type=NUMBER, default=0, help="GPUs of all nodes together."),
    click.option("-c", "--cpus-per-task", type=NUMBER, default=0, help="CPUs a task."),
    click.option(
        "--nproc-per-node", type=NUMBER, default=0, help="Ranks a node (mode torchrun); one a GPU by default."
    ),
    click.option("-p", "--partition", default=""),
    click.option("-A", "--account", default=""),
    click.option("-q", "--qos", default=""),
    click.option("--reservation", default=""),
    click.option("-C", "--constraint", default=""),
    click.option("-w", "--nodelist", default="", help="Which nodes."),
    click.option("-t", "--time", default="", help="Time limit, as Slurm writes it."),
    click.option("--exclusive", is_flag=True),
    click.option(
        "--srun", "extra", multiple=True, metavar="OPTION", help="Any other option of srun, e.g. --srun=--overlap."
    ),
    click.option(
        "--runtime",
        default="auto",
        type=click.Choice(["auto", "pyxis", "apptainer", "enroot", "podman", "charliecloud", "local"]),
        show_default=True,
    ),
)


def resource_options(function: F) -> F:
    """All resource options on a command."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def resources(options: dict[str, Any]) -> Resources:
    """Resources from the parsed options, of which others are left alone; `batch`: for a job of its own."""
    own = {field.name for field in fields(Resources)}
    given, batch = {name: value for name, value in options.items() if name in own}, options.get("batch", False)
    allocated = os.environ.get("SLURM_JOB_NUM_NODES", "") if options["runtime"] != "local" and not batch else ""
    if not given.get("partition"):
        given["partition"] = os.environ.get("SBATCH_PARTITION" if batch else "SLURM_PARTITION", "")
    if total := options["gpus"]:
        count = options["nodes"] or (int(allocated) if allocated.isdigit() else 1)
        if total % count:
            raise InputError(f"--gpus {total} on {count} nodes: not as many on each", "--gpus-per-node N")
        given["gpus_per_node"] = given.get("gpus_per_node") or total // count
    nodes = options["nodes"] if options["nodes"] is not None else int(allocated) if allocated.isdigit() else 1
    return Resources(**{**given, "nodes": nodes})
