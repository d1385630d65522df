"""What is so now of a declared name: data that `plan` compares with the declaration.

Tested in tests/unit/sync/test_plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.releases.ledger import Dates

if TYPE_CHECKING:
    from hpcstack.publish.damage import Damage
    from hpcstack.releases.ledger import Ledger


NO_DATES = Dates(origin="recipe")


@dataclass(frozen=True)
class ProofState:
    """What the reports of an image say of one partition."""

    partition: str  # empty: Slurm's default partition
    reasons: tuple[str, ...] = ()  # why it is not proven there; empty where it is
    tested: str = ""  # when the report was begun that says so, in ISO 8601; empty without a report
    failed: bool = False  # a check of that report has failed
    outdated: bool = False  # a new run might say something else


@dataclass(frozen=True)
class ImageState:
    """An image of a stack that is in the store."""

    key: str
    sha256: str


@dataclass(frozen=True)
class StackState:
    """What is so of one declared version."""

    version: str
    stack: str  # its full name
    problem: str = ""  # why nothing can be said of it, such as a recipe that is wrong
    stale: tuple[str, ...] = ()  # why its lock is not what its recipe asks for
    image: ImageState | None = None  # the image that its lock, or its registry, means now
    proofs: tuple[ProofState, ...] = ()  # one for each partition that must prove it
    shut: tuple[str, ...] = ()  # why the gate to production is shut to the image
    lifecycle: Dates = NO_DATES  # what its recipe says


@dataclass(frozen=True)
class NameState:
    """What is so of one declared name."""

    ledger: Ledger  # empty where it cannot be read
    stacks: tuple[StackState, ...]  # of the versions that are declared, the oldest first
    damage: tuple[Damage, ...] = ()  # that can be repaired
    images: tuple[Damage, ...] = ()  # damage of images, which can be built again
    lost: tuple[Damage, ...] = ()  # damage that nobody can repair here
    unreadable: tuple[str, ...] = ()  # recipes that cannot be read: nobody knows what they declare
    torn: str = ""  # why the ledger cannot be read
    meant: str = ""  # `, did you mean ...` where no recipe has the name
    known: tuple[str, ...] = ()  # the versions that recipes of the name have, declared or not
    second_person: bool = False  # the site wants another person to promote
