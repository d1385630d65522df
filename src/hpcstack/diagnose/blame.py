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
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import HpcstackError, InputError, format_count
from hpcstack.diagnose.examine_log import examine_log
from hpcstack.launch.failure import EndedBy
from hpcstack.launch.hang import group_by_step, judge_ranks, parse_ranks
from hpcstack.launch.hang_report import report_hang
from hpcstack.launch.jobs import find_logs
from hpcstack.launch.log_lines import open_log, read_log_blocks
from hpcstack.launch.stacks import ask_job, parse_job
from hpcstack.render.launchers import render_health
from hpcstack.slurm.client import Client
from hpcstack.slurm.nodelist import expand_typed, find_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.diagnose.examine_log import LogReading
    from hpcstack.launch.requeue import Requeueable
    from hpcstack.site.load import Site

LOOK_AGAIN_S = 20.0  # between two looks at the ranks of a job that runs
OF_THE_JOB = ("shm", "tmp")  # what the job's own files may have filled
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


def find_blamed(running: Requeueable, site: Site, runner: Runner) -> tuple[list[Blamed], str]:
    """Return (those of the nodes of a RUNNING job that are to blame; why none is)."""
    job, nodes = running.job, running.nodes
    # Of a partition with nodes of several types, the job may have a part of the largest.
    types = [site.node_types[kind] for kind in site.kinds(running.partition)]
    whole = all(running.gpus >= node.real_gpus for node in types)
    found: list[Blamed] = []
    with contextlib.suppress(HpcstackError):  # it may have no log, or one that is not kept
        for path in find_logs(job, runner):
            found += _blame_by_file(path, nodes)
    # where its step has ended, nobody is left to ask
    with contextlib.suppress(HpcstackError):
        found += _blame_by_asking(job, site, runner)
    found += blame_by_health(job, nodes, site, runner, whole=whole)
    return choose_blamed(found, nodes)


def _blame_by_asking(job: str, site: Site, runner: Runner) -> list[Blamed]:
    """Return the nodes of ranks that stand out in JOB, and still do at the same place later.

    A rank that saves a checkpoint while the others wait stands out, too, for a while.
    """
    first = _blame_once(job, site, runner)
    if not first:
        return []
    time.sleep(LOOK_AGAIN_S)
    second = _blame_once(job, site, runner)
    return [one for one in first if one in second]


def _blame_once(job: str, site: Site, runner: Runner) -> list[Blamed]:
    """Return the nodes of ranks that stand out in JOB now: by the flight recorder, else by stacks."""
    answers = ask_job(parse_job(job), site.hang.command, runner)
    report = report_hang(answers.text, answers.silent, reads_files=answers.own)
    hosts = {rank.number: rank.host for rank in parse_ranks(answers.text)}
    out = []
    for root in (report.document["flights"] or {}).get("roots", []):
        # several ranks that wait for each other, or for the network, are no single node's fault
        if len(root["ranks"]) == 1 and root["ranks"][0] in hosts:
            out.append(Blamed(hosts[root["ranks"][0]], HANG, root["text"]))
    return out or blame_by_stacks(answers.text)


def name_blamed(nodes: str) -> list[Blamed]:
    """Return what a user blames by naming NODES, a list as Slurm writes it."""
    return [Blamed(node, USER, "as you say") for node in expand_typed("--without", nodes)]


def _blame_by_file(path: Path, nodes: Sequence[str]) -> list[Blamed]:
    """Return those of NODES that the log at PATH blames; none where it cannot be read.

    Of a very long log the last LOG_BYTES are read.
    """
    try:
        with open_log(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            return blame_by_log(examine_log(read_log_blocks(file)), nodes)
    except (OSError, InputError):
        return []


def blame_by_health(
    job: str, nodes: Sequence[str], site: Site, runner: Runner, *, whole: bool
) -> list[Blamed]:
    """Return those of the NODES of the running JOB that are not fit for work, by their own check.

    A node that does not answer is blamed where others do. A /dev/shm that the job has filled blames
    no node. Nor do GPUs that the job does not see, unless it has the WHOLE node.
    """
    left_out = OF_THE_JOB if whole else (*OF_THE_JOB, "gpus", "nvlink")
    ignore = (*site.health.ignore, *left_out)
    health = site.health.model_copy(update={"ignore": ignore})
    script = render_health(site.model_copy(update={"health": health}))
    command = ["/bin/sh", "-c", script]
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
            # the script names a check only where it could not even begin
            whys = [str(one["why"]) for one in said["failed"] if one.get("check") not in left_out]
            if whys:
                out.append(Blamed(node, HEALTH, "; ".join(whys)))
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
        # Without a stack nobody knows what a rank does; and others must be seen to wait for it
        waits = bool(verdict.groups and verdict.groups[0][0].collective)
        if not waits or not all(rank.stack for rank in ranks):
            continue
        out += [Blamed(host, HANG, "; ".join(verdict.odd)) for host in verdict.odd_hosts]
    return out


def blame_by_log(log: LogReading, nodes: Sequence[str]) -> list[Blamed]:
    """Return those of NODES on which LOG, a job's, has a message that is about a machine.

    It is about the node that its line names, else about that of the rank which failed first. Of a
    job that has started again, only what it wrote since then counts.
    """
    out = []
    for found in log.found:
        if not found.signature.of_node:
            continue
        named = [node for node in nodes if _names(found.line, node, nodes)]
        hosts = named or list(filter(None, [find_node(log.failure.host, nodes)]))
        out += [Blamed(host, FAILURE, found.cause) for host in hosts]
    if log.failure.ended_by is EndedBy.WATCHDOG:
        out += blame_by_stacks(log.ranks)
    return out


def _names(line: str, node: str, nodes: Sequence[str]) -> bool:
    """Whether LINE has the name of NODE as a word of its own, with its domain or without.

    Without it, it must be that of no other of NODES.
    """
    short = node.partition(".")[0]
    name = short if find_node(short, nodes) == node else node
    return bool(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line))


def choose_blamed(found: Iterable[Blamed], nodes: Sequence[str]) -> tuple[list[Blamed], str]:
    """Return (what is blamed of FOUND, one for each of NODES; why nothing is).

    Nothing is blamed where nothing was found, and where too many nodes were.
    """
    first: dict[str, Blamed] = {}
    for one in found:
        node = find_node(one.node, nodes)
        if node:
            first.setdefault(node, replace(one, node=node))
    if not first:
        return [], "no node stands out"
    if len(first) > MOST_SHARE * len(nodes) and len(nodes) > 1:
        count = format_count(len(nodes), "node")
        return [], f"{len(first)} of {count} stand out, which is no fault of one node"
    return list(first.values()), ""
