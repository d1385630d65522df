"""Lists of nodes as Slurm writes them, and which node a name means. Pure.

Source of the form: slurm.conf(5), NodeName; src/common/hostlist.c of Slurm 22.05 to 26.05. A name has
any number of groups of numbers in brackets (`rack[01-02]-tray[1-9]`), and text between and behind
them, be it a domain.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, SlurmError

if TYPE_CHECKING:
    from collections.abc import Iterable

# What Slurm says where there are no nodes: sacct of a job that never had one, squeue, scontrol
NONE = ("", "(null)", "None", "None assigned", "N/A", "Unknown")
# Text, a group of numbers, or what stands between names: hostlist_create takes blanks for commas
PIECE = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9,-]+\]|[,\s]")
MOST_NODES = 100_000  # in one list: Slurm itself has MAX_SLURM_NODES, 65,536
MOST_DIGITS = 15


class NodelistError(SlurmError):
    """A list of nodes that has another form than Slurm's."""


def expand_nodelist(text: str) -> tuple[str, ...]:
    """Return the nodes of TEXT, such as `node[01-03,7],login1`; none where it says that there are none.

    Raise NodelistError for another form.
    """
    said = text.strip()
    if said in NONE:
        return ()
    nodes: list[str] = []
    for name in _split_names(said):
        nodes += _expand_name(name, said)
        if len(nodes) > MOST_NODES:
            raise _refuse(said)
    if not nodes:
        raise _refuse(said)
    return tuple(nodes)


def expand_typed(option: str, text: str) -> tuple[str, ...]:
    """Return the nodes of TEXT, which somebody typed as OPTION. Raise InputError where it names none."""
    try:
        nodes = expand_nodelist(text)
    except NodelistError:
        nodes = ()
    if not nodes:
        raise InputError(
            f"{option} {text[:200]}: no list of nodes",
            f"e.g. {option} node[1-4],gpu7",
            page="check-a-machine",
        )
    return nodes


def _split_names(text: str) -> list[list[str]]:
    """Return the pieces of each name in TEXT: texts, and groups of numbers in brackets."""
    names: list[list[str]] = [[]]
    end = 0
    for piece in PIECE.finditer(text):
        if piece.start() != end:
            raise _refuse(text)
        end = piece.end()
        if piece[0] == "," or piece[0].isspace():
            names.append([])
        else:
            names[-1].append(piece[0])
    found = [name for name in names if name]
    if end != len(text) or any(name[0].startswith("-") for name in found):
        raise _refuse(text)
    return found


def _expand_name(pieces: list[str], text: str) -> list[str]:
    """Return the nodes that PIECES of one name stand for; TEXT is the whole list."""
    choices = [_expand_group(one[1:-1], text) if one[0] == "[" else [one] for one in pieces]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_NODES:
        raise _refuse(text)
    return ["".join(parts) for parts in itertools.product(*choices)]


def _expand_group(group: str, text: str) -> list[str]:
    """Return the numbers of GROUP, `01-03,7`, as they are written in names."""
    numbers: list[str] = []
    for one in group.split(","):
        first, dash, last = one.partition("-")
        is_number = first.isdigit() and (last.isdigit() or not dash)
        if not is_number or max(len(first), len(last)) > MOST_DIGITS:
            raise _refuse(text)
        upto = int(last or first)
        if not 0 <= upto - int(first) < MOST_NODES:
            raise _refuse(text)
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), upto + 1)]
    return numbers


def _refuse(text: str) -> NodelistError:
    return NodelistError(
        f"this list of nodes is not understood: {text[:200]!r}",
        "scontrol show hostnames LIST",
        page="describe-your-cluster",
    )


def find_node(host: str, nodes: Iterable[str]) -> str:
    """Return which of NODES, by their names in Slurm, the name HOST means; empty for none.

    Programs name a node by its host name, with its domain or without. Slurm's name of it may be
    either (slurm.conf(5), NodeName and NodeHostname). A name that could mean several means none.
    """
    known = list(nodes)
    if host in known:
        return host
    short = host.partition(".")[0]
    alike = [node for node in known if node.partition(".")[0] == short]
    # Two full names differ in their domains: they are two machines.
    alike = [node for node in alike if "." not in host or "." not in node]
    return alike[0] if len(alike) == 1 else ""
