"""`hpcstack test --sweep`: test the nodes of a partition against each other.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

import time
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from hpcstack.cli.session import Session, answer, say, show_progress
from hpcstack.core.errors import InputError, format_count

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.suite.run import SuiteRequest
    from hpcstack.suite.sweep import Swept


class SweepOptions(NamedTuple):
    """How a sweep is done.

    It is done in pairs, ROUNDS times, or by halves with BISECT. All jobs together have MINUTES.
    """

    rounds: int
    bisect: bool
    minutes: float


def sweep_partition(
    session: Session,
    name: str,
    request: SuiteRequest,
    options: dict[str, Any],
    how: SweepOptions,
    *,
    drain: bool,
    as_json: bool,
) -> NoReturn:
    """Measure all nodes, name those that stand out, and write the drain list. Then end.

    With DRAIN, ask, then drain them. The exit code is 1 if a node stands out, a job failed, or it
    is unsure which node is to blame.
    """
    from hpcstack.core.dirs import find_state_folder
    from hpcstack.core.outputs import write_output
    from hpcstack.suite import sweep
    from hpcstack.suite.bisect import LEAST

    # Each job tests this very image, whatever is built or published meanwhile.
    image = session.naming.find_image(name).artifact
    nodes, left_out = sweep.find_usable_nodes(
        session.runner, options["partition"], options["nodelist"], options["reservation"]
    )
    if how.bisect and len(nodes) < LEAST:
        raise InputError(
            f"--bisect with {len(nodes)} nodes: pairs are as quick below {LEAST}",
            "leave out --bisect",
            page="name-the-slow-node",
        )

    stamp = f"{datetime.now(timezone.utc).strftime('%Y%m%dT%H%M%SZ')}-{uuid.uuid4().hex[:6]}"
    folder = (request.parent or find_state_folder() / "sweeps" / image.stack) / stamp
    with session.store.acting("no folder for the sweep"):
        folder.mkdir(parents=True)
    if left_out:
        shown = [f"{node} ({state})" for node, state in list(left_out.items())[:8]]
        if len(left_out) > len(shown):
            shown.append("...")
        say(f"{format_count(len(left_out), 'node')} left out: {', '.join(shown)}")
    by = "by halves" if how.bisect else f"in pairs, {format_count(how.rounds, 'round')}"
    say(f"{len(nodes)} nodes {by}; all files of the sweep are in {folder}")

    slurm = [
        f"--{key}={options[key]}"
        for key in ("partition", "account", "qos", "reservation", "time")
        if options[key]
    ]
    own = session.command_on(options["partition"])
    words = _test_words(image.key, request, options)
    command = sweep.Command(own, tuple(words), tuple(slurm))

    until = time.monotonic() + how.minutes * 60
    with show_progress("sweeping") as progress:
        if how.bisect:
            swept = sweep.bisect_nodes(nodes, folder, command, session.runner, progress, until)
        else:
            groups = sweep.submit_groups(
                sweep.plan_pairs(nodes, how.rounds), folder, "pair", command, session.runner
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


def _test_words(image: str, request: SuiteRequest, options: dict[str, Any]) -> list[str]:
    """Return the words after `hpcstack test` for one group of nodes."""
    from hpcstack.suite import sweep

    # without GPUs, bandwidth between nodes (nccl.gloo-bandwidth) is measured from standard on
    tier = "standard" if request.tier == "quick" else request.tier
    out = [image, "--tier", tier, "--runtime", options["runtime"]]
    out += ["--only", ",".join(request.tests) or sweep.ONLY]
    if request.skip:
        out += ["--skip", ",".join(request.skip)]
    if request.suite_from_host:
        out.append("--suite-from-host")
    gpus = options["gpus_per_node"]
    if gpus is not None:
        out += ["--gpus-per-node", str(gpus)]
    for name in ("nproc_per_node", "cpus_per_task"):
        if options[name]:
            out += [f"--{name.replace('_', '-')}", str(options[name])]
    return out


def format_sweep(swept: Swept, path: Path) -> str:
    """Return SWEPT as text: the groups, the nodes that stand out, what to do. PATH: drain list."""
    lines = []
    for group, value in sorted(swept.busbw.items()):
        lines.append(f"{_name_group(group):<33} {value:>10.4g} GB/s")
    for group, why in sorted(swept.failed.items()):
        lines.append(f"{_name_group(group):<33} FAILED  {why}")
    lines.append("")
    for node, reason in sorted(swept.odd.items()):
        lines.append(f"ODD {node}: {reason}")

    if swept.odd:
        lines.append("")
        lines.append(
            f"the drain list is {path}; hpcstack test STACK --sweep --drain asks and drains"
        )
    elif not swept.unsure and len(swept.nodes) < 3:
        lines.append("two nodes are only one pair: there is nothing to compare it with")
    elif not swept.unsure:
        lines.append(f"none of {len(swept.nodes)} nodes is odd")
    if swept.unsure:
        lines.append(f"UNSURE: {swept.unsure}")
    return "\n".join(lines) + "\n"


def _name_group(group: tuple[str, ...]) -> str:
    """Return the names of a pair, or how many nodes of a larger group, from which to which."""
    if len(group) == 2:
        return f"{group[0]:<16} {group[1]}"
    return f"{len(group)} nodes, {group[0]} to {group[-1]}"


def _drain(odd: dict[str, str], session: Session) -> None:
    """Ask on the terminal, then drain the nodes ODD. Without a terminal, nothing is drained."""
    from hpcstack.core.errors import SlurmError
    from hpcstack.suite import sweep

    if not click.confirm(f"drain {', '.join(sorted(odd))}?", default=False, err=True):
        say("nothing was drained")
        return

    refused = sweep.drain_nodes(odd, session.runner)
    if refused:
        raise SlurmError(
            f"Slurm refused: {'; '.join(refused)}",
            "an operator or administrator of Slurm may drain nodes",
            page="name-the-slow-node",
        )

    say(f"drained: {', '.join(sorted(odd))}")
