"""`hpcstack test --sweep`: a partition in pairs."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.session import Session, answer, say, show_progress
from hpcstack.core.errors import counted

if TYPE_CHECKING:
    from pathlib import Path


def sweep_partition(
    session: Session, name: str, wanted: Any, options: dict[str, Any], rounds: int, *, drain: bool, as_json: bool
) -> None:
    """Measure, name the odd ones, write the drain list; with DRAIN ask, then drain. Ends 1 if one is odd or failed."""
    from hpcstack.core.dirs import state_folder
    from hpcstack.core.outputs import write_output
    from hpcstack.suite import sweep

    recipe = session.recipe(name)
    stack = recipe.stack.full_name
    sweep.check_image(stack, session.store)
    nodes = sweep.idle_nodes(session.runner, options["partition"], options["nodelist"])
    stamp = f"{datetime.now(timezone.utc).strftime('%Y%m%dT%H%M%SZ')}-{uuid.uuid4().hex[:6]}"
    folder = (wanted.parent or state_folder() / "sweeps" / stack) / stamp
    with session.store.acting("no folder for the sweep"):
        folder.mkdir(parents=True)
    say(f"{len(nodes)} nodes in pairs, {counted(rounds, 'round')}; all of it is in {folder}")
    slurm = [
        f"--{key}={options[key]}" for key in ("partition", "account", "qos", "reservation", "time") if options[key]
    ]
    with show_progress("sweeping") as progress:
        pairs = sweep.submit_pairs(
            nodes, rounds, folder, session.words(), _rest(stack, wanted, options), slurm, session.runner
        )
        sweep.follow(pairs, session.runner, progress)
    swept = sweep.read(pairs, nodes)
    path = folder / "drain.txt"
    with session.store.acting("the drain list was not written"):
        write_output(path, swept.drain_list())
    answer({**swept.document(), "folder": str(folder)}, as_json, lambda: text(swept, path))
    if drain and swept.odd:
        _drain(swept.odd, session)
    raise click.exceptions.Exit(1 if swept.odd or swept.failed else 0)


def _rest(stack: str, wanted: Any, options: dict[str, Any]) -> list[str]:
    """The words of `hpcstack test` for one pair."""
    from hpcstack.suite import sweep

    out = [stack, "--tier", "standard" if wanted.tier == "quick" else wanted.tier, "--runtime", options["runtime"]]
    out += ["--only", ",".join(wanted.tests) or sweep.ONLY]
    out += ["--skip", ",".join(wanted.skip)] if wanted.skip else []
    out += ["--suite-from-host"] if wanted.suite_from_host else []
    for name in ("gpus_per_node", "nproc_per_node", "cpus_per_task"):
        out += [f"--{name.replace('_', '-')}", str(options[name])] if options[name] else []
    return out


def text(swept: Any, path: Path) -> str:
    """What a person reads: the pairs, the odd ones, what to do."""
    lines = [f"{a:<16} {b:<16} {value:>10.4g} GB/s" for (a, b), value in sorted(swept.busbw.items())]
    lines += [f"{a:<16} {b:<16} FAILED  {why}" for (a, b), why in sorted(swept.failed.items())]
    lines += ["", *(f"ODD {node}: {reason}" for node, reason in sorted(swept.odd.items()))]
    if swept.odd:
        lines += ["", f"the drain list is {path}; hpcstack test STACK --sweep --drain asks and drains"]
    elif len(swept.nodes) < 3:
        lines += ["two nodes are only one pair: there is nothing to compare it with"]
    else:
        lines += [f"none of {len(swept.nodes)} nodes is odd"]
    return "\n".join(lines) + "\n"


def _drain(odd: dict[str, str], session: Session) -> None:
    """Ask on the terminal; without one nothing is drained."""
    from hpcstack.core.errors import SlurmError
    from hpcstack.suite import sweep

    if not click.confirm(f"drain {', '.join(sorted(odd))}?", default=False, err=True):
        say("nothing was drained")
        return
    if refused := sweep.drain(odd, session.runner):
        raise SlurmError(
            f"Slurm refused: {'; '.join(refused)}", "an operator or administrator of Slurm may drain nodes"
        )
    say(f"drained: {', '.join(sorted(odd))}")
