"""Find the nodes that a job's failure is to be blamed on, so that it can start again without them.

Three things name a node: the health check that runs on each of them, ranks that stand out where the
job hangs, and known messages in its log that are about a machine and not about a program. A program
that fails by itself blames no node.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import HpcstackError, format_count
from hpcstack.diagnose.logs import explain_log
from hpcstack.launch.failure import EndedBy, find_failure
from hpcstack.launch.hang import group_by_step, judge_ranks, parse_ranks
from hpcstack.launch.jobs import find_logs
from hpcstack.launch.stacks import ask_job, parse_job
from hpcstack.render.launchers import render_health
from hpcstack.slurm.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.site.load import Site

LOG_BYTES = 64 << 20  # of a log's end that are read
HEALTH_S = 60  # how long the nodes' health check may take
# Blamed on more than this share of a job's nodes, a failure is not the nodes'
MOST_SHARE = 0.5
HANG, HEALTH, FAILURE, USER = "hang", "health", "failure", "user"


@dataclass(frozen=True)
class Blamed:
    """A node that a failure is blamed on: BY is what names it, WHY says so in words."""

    node: str
    by: str
    why: str


def find_blamed(
    job: str, nodes: Sequence[str], site: Site, runner: Runner
) -> tuple[list[Blamed], str]:
    """Return (those of the NODES of the running JOB that are to blame; why none is)."""
    found = []
    for path in find_logs(job, runner):
        found += blame_by_log(_read_end(path), nodes)
    # where its step has ended, nobody is left to ask
    with contextlib.suppress(HpcstackError):
        found += blame_by_stacks(ask_job(parse_job(job), site.hang.command, runner).text)
    found += blame_by_health(job, nodes, site, runner)
    return choose_blamed(found, nodes)


def name_blamed(nodes: str, runner: Runner) -> list[Blamed]:
    """Return what a user blames by naming NODES, a list as Slurm writes it."""
    return [Blamed(node, USER, "as you say") for node in Client(runner).expand_nodes(nodes)]


def _read_end(path: Path) -> str:
    """Return the last LOG_BYTES of the log at PATH as text; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES))
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def blame_by_health(job: str, nodes: Sequence[str], site: Site, runner: Runner) -> list[Blamed]:
    """Return those of the NODES of the running JOB that are not fit for work, by their own check.

    A node that does not answer is blamed where others do.
    """
    command = ["/bin/sh", "-c", render_health(site)]
    done = Client(runner).run_beside(job, len(nodes), HEALTH, command, HEALTH_S)
    answers = {}
    for line in done.stdout.splitlines():
        said = _read_answer(line)
        if said:
            answers[str(said.get("node", ""))] = said
    out = []
    for node in nodes:
        said = answers.get(node)
        if said is None:
            if answers:
                out.append(Blamed(node, HEALTH, "it does not answer"))
        elif said.get("healthy") is False:
            why = "; ".join(str(one["why"]) for one in said["failed"])
            out.append(Blamed(node, HEALTH, why or "it is not fit for work"))
    return out


def _read_answer(line: str) -> dict[str, Any] | None:
    """Return what a node's check said in LINE, which srun has labelled; None for another line."""
    _, _, text = line.partition(": ")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) and "healthy" in said else None


def blame_by_stacks(text: str) -> list[Blamed]:
    """Return the nodes of ranks that stand out in TEXT, what stacks.sh printed for a job that hangs.

    That is what the watchdog of a launch writes into the job's log, too.
    """
    out = []
    for ranks in group_by_step(parse_ranks(text)).values():
        verdict = judge_ranks(ranks)
        out += [Blamed(host, HANG, "; ".join(verdict.odd)) for host in verdict.odd_hosts]
    return out


def blame_by_log(text: str, nodes: Iterable[str]) -> list[Blamed]:
    """Return those of NODES on which TEXT, a job's log, has a message that is about a machine.

    It is about the node that its line names, else about that of the rank which failed first.
    """
    failure = find_failure(text)
    out = []
    for found in explain_log(text):
        if not found.signature.of_node:
            continue
        named = [node for node in nodes if _names(found.line, node)]
        hosts = named or [node for node in nodes if node == failure.host]
        out += [Blamed(host, FAILURE, found.cause) for host in hosts]
    if failure.ended_by is EndedBy.WATCHDOG:
        out += blame_by_stacks(text)
    return out


def _names(line: str, node: str) -> bool:
    """Whether LINE has the name of NODE as a word of its own."""
    return bool(re.search(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", line))


def choose_blamed(found: Iterable[Blamed], nodes: Sequence[str]) -> tuple[list[Blamed], str]:
    """Return (what is blamed of FOUND, one for each of NODES; why nothing is).

    Nothing is blamed where nothing was found, and where too many nodes were.
    """
    first: dict[str, Blamed] = {}
    for one in found:
        if one.node in nodes:
            first.setdefault(one.node, one)
    if not first:
        return [], "no node stands out"
    if len(first) > MOST_SHARE * len(nodes) and len(nodes) > 1:
        count = format_count(len(nodes), "node")
        return [], f"{len(first)} of {count} stand out, which is no fault of one node"
    return list(first.values()), ""
