"""Features of nodes as --constraint asks for them. Pure.

Source of the forms: srun(1), --constraint: AND (`a&b`), OR (`a|b`), matching OR (`[a|b]`), a number of
nodes (`graphics*4`: of the others nothing is asked), parentheses.
"""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9_.=:@+-]+")


def list_feature_sets(constraint: str) -> list[frozenset[str]] | None:
    """Return sets of features: each node of a job has all those of one of these sets.

    None where nothing is asked for, and for a form that mixes AND with OR, or has numbers of nodes
    or parentheses: which nodes that means is left to Slurm.
    """
    is_matching_or = re.fullmatch(r"\[([^&]*)\]", constraint.strip())
    inner = is_matching_or[1] if is_matching_or else constraint
    names = [name.strip() for name in re.split("[&|]", inner)]
    if not all(NAME.fullmatch(name) for name in names):
        return None

    if "&" not in inner:
        return [frozenset([name]) for name in names]
    return None if "|" in inner else [frozenset(names)]
