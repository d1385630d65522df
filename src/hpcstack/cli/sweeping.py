"""`hpcstack test --sweep`: a partition in pairs."""

from __future__ import annotations

import time
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hpcstack.cli.session import Session, answer, say, show_progress
from hpcstack.core.errors import InputError, format_count

if TYPE_CHECKING:
    from pathlib import Path


class SweepOptions(NamedTuple):
    """In pairs, so many ROUNDS, or by halves (BISECT); MINUTES for all jobs."""

    rounds: int
    bisect: bool
    minutes: float


def sweep_partition(
    session: Session,
    name: str,
    wanted: Any,
    options: dict[str, Any],
    how: SweepOptions,
    *,
    drain: bool,
    as_json: bool,
) -> None:
    """Measure, name the odd ones, write the drain list; with DRAIN ask, then drain.

    Ends 1 if one is odd or failed.
    """
    from hpcstack.core.dirs import state_folder
    from hpcstack.core.outputs import write_output
    from hpcstack.suite import sweep
    from hpcstack.suite.bisect import LEAST

    recipe = session.recipe(name)
    stack = recipe.stack.full_name
    sweep.check_image(stack, session.store)
    nodes, left_out = sweep.usable_nodes(
        session.runner, options["partition"], options["nodelist"], options["reservation"]
    )
    if how.bisect and len(nodes) < LEAST:
        raise InputError(
            f"--bisect with {len(nodes)} nodes: pairs are as quick below {LEAST}",
            "leave out --bisect",
        )
    from hpcstack.site.own_command import hpcstack_on

    stamp = f"{datetime.now(timezone.utc).strftime('%Y%m%dT%H%M%SZ')}-{uuid.uuid4().hex[:6]}"
    folder = (wanted.parent or state_folder() / "sweeps" / stack) / stamp
    with session.store.acting("no folder for the sweep"):
        folder.mkdir(parents=True)
    if left_out:
        shown = ", ".join(f"{node} ({state})" for node, state in list(left_out.items())[:8])
        say(
            f"{format_count(len(left_out), 'node')} left out: "
            f"{shown}{', ...' if len(left_out) > 8 else ''}"
        )
    by = "by halves" if how.bisect else f"in pairs, {format_count(how.rounds, 'round')}"
    say(f"{len(nodes)} nodes {by}; all of it is in {folder}")
    slurm = [
        f"--{key}={options[key]}"
        for key in ("partition", "account", "qos", "reservation", "time")
        if options[key]
    ]
    own = (*hpcstack_on(session.site.node_type(options["partition"])), *session.words())
    command = sweep.Command(own, tuple(_rest(stack, wanted, options)), tuple(slurm))
    until = time.monotonic() + how.minutes * 60
    with show_progress("sweeping") as progress:
        if how.bisect:
            swept = sweep.bisect_nodes(nodes, folder, command, session.runner, progress, until)
        else:
            groups = sweep.submit_groups(
                sweep.pairs_of(nodes, how.rounds), folder, "pair", command, session.runner
            )
            late = sweep.follow_jobs(groups, session.runner, progress, until)
            swept = sweep.read_pairs(groups, nodes, late)
    path = folder / "drain.txt"
    with session.store.acting("the drain list was not written"):
        write_output(path, swept.drain_list())
    answer({**swept.document(), "folder": str(folder)}, as_json, lambda: format_sweep(swept, path))
    if drain and swept.odd:
        _drain(swept.odd, session)
    raise click.exceptions.Exit(1 if swept.odd or swept.failed or swept.unsure else 0)


def _rest(stack: str, wanted: Any, options: dict[str, Any]) -> list[str]:
    """The words of `hpcstack test` for one pair."""
    from hpcstack.suite import sweep

    out = [
        stack,
        "--tier",
        "standard" if wanted.tier == "quick" else wanted.tier,
        "--runtime",
        options["runtime"],
    ]
    out += ["--only", ",".join(wanted.tests) or sweep.ONLY]
    out += ["--skip", ",".join(wanted.skip)] if wanted.skip else []
    out += ["--suite-from-host"] if wanted.suite_from_host else []
    for name in ("gpus_per_node", "nproc_per_node", "cpus_per_task"):
        out += [f"--{name.replace('_', '-')}", str(options[name])] if options[name] else []
    return out


def format_sweep(swept: Any, path: Path) -> str:
    """What a person reads: the pairs, the odd ones, what to do."""
    lines = [
        f"{_names(group):<33} {value:>10.4g} GB/s" for group, value in sorted(swept.busbw.items())
    ]
    lines += [f"{_names(group):<33} FAILED  {why}" for group, why in sorted(swept.failed.items())]
    lines += ["", *(f"ODD {node}: {reason}" for node, reason in sorted(swept.odd.items()))]
    if swept.odd:
        lines += [
            "",
            f"the drain list is {path}; hpcstack test STACK --sweep --drain asks and drains",
        ]
    elif swept.unsure:
        pass
    elif len(swept.nodes) < 3:
        lines += ["two nodes are only one pair: there is nothing to compare it with"]
    else:
        lines += [f"none of {len(swept.nodes)} nodes is odd"]
    lines += [f"UNSURE: {swept.unsure}"] if swept.unsure else []
    return "\n".join(lines) + "\n"


def _names(group: tuple[str, ...]) -> str:
    """Two nodes, or how many from which to which."""
    return (
        f"{group[0]:<16} {group[1]}"
        if len(group) == 2
        else f"{len(group)} nodes, {group[0]} to {group[-1]}"
    )


def _drain(odd: dict[str, str], session: Session) -> None:
    """Ask on the terminal; without one nothing is drained."""
    from hpcstack.core.errors import SlurmError
    from hpcstack.suite import sweep

    if not click.confirm(f"drain {', '.join(sorted(odd))}?", default=False, err=True):
        say("nothing was drained")
        return
    if refused := sweep.drain_nodes(odd, session.runner):
        raise SlurmError(
            f"Slurm refused: {'; '.join(refused)}",
            "an operator or administrator of Slurm may drain nodes",
        )
    say(f"drained: {', '.join(sorted(odd))}")
