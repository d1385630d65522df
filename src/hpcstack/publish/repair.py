"""Restores what is published to what was written: modulefiles, wrappers, records, what versions
mean, the spider cache.

What has no second copy is reported and left alone: the bytes of images, and a ledger of which no
copy is whole.

Tested in tests/unit/publish/test_damage.py.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.errors import InputError, StoreError
from hpcstack.publish.damage import (
    Damage,
    can_be_mended,
    find_damage,
    find_whole_generations,
    list_names_with_traces,
)
from hpcstack.publish.spider import is_cache_missing, rebuild_cache
from hpcstack.releases.inventory import is_clean
from hpcstack.releases.layout import CURRENT, JOURNAL, STATE
from hpcstack.releases.tree import TreeChange

if TYPE_CHECKING:
    from hpcstack.publish.publisher import Publisher

# A file that is put back may show what else is wrong: a ledger that can be read again, for example.
ROUNDS = 3


@dataclass(frozen=True)
class Repaired:
    """What was put back, and what could not be."""

    mended: tuple[Damage, ...]
    left: tuple[Damage, ...]
    cache: str = ""  # what became of the spider cache, in words; empty where it was left alone


def foretell_repair(publisher: Publisher, names: list[str], subject: str = "") -> Repaired:
    """Return what `repair_names` would do; nothing is written."""
    found = [one for name in names for one in _find_damage_of(publisher, name, subject)]
    mended = tuple(one for one in found if can_be_mended(one))
    return Repaired(mended, tuple(one for one in found if one not in mended))


def repair_names(publisher: Publisher, names: list[str], subject: str = "") -> Repaired:
    """Restore NAMES to what was written; with a SUBJECT, NAME/RELEASE, that release alone.

    Each name is held while it is mended.
    """
    mended: list[Damage] = []
    left: list[Damage] = []
    for name in names:
        # Where nothing is wrong, nothing is written, not even a lease.
        if find_damage(publisher.tree, publisher.store, name):
            mended += _mend_name(publisher, name, subject)
        left += _find_damage_of(publisher, name, subject)

    tree = publisher.tree
    cache = ""
    if mended or tree.stale or is_cache_missing(tree):
        cache = rebuild_cache(tree, publisher.runner)
    return Repaired(tuple(one for one in mended if one not in left), tuple(left), cache)


def _find_damage_of(publisher: Publisher, name: str, subject: str) -> list[Damage]:
    """Return the damage of NAME; with a SUBJECT, that of SUBJECT alone."""
    found = find_damage(publisher.tree, publisher.store, name)
    return [one for one in found if subject in ("", one.subject)]


def _mend_name(publisher: Publisher, name: str, subject: str) -> list[Damage]:
    """Put right what can be of NAME, and return it.

    Damage is looked for again once NAME is held: somebody may have removed a release meanwhile.
    """
    tree = publisher.tree
    mended: list[Damage] = []
    with tree.leased(name, publisher.say):
        for _ in range(ROUNDS):
            damaged_files = [
                one
                for one in _find_damage_of(publisher, name, subject)
                if one.repair == "file" and one.path and one.text is not None
            ]
            if not damaged_files:
                break
            for one in damaged_files:
                _put_back(publisher, one)
            mended += [one for one in damaged_files if one not in mended]

    # The ledger can be read again, if it ever will be: a new generation is written from it.
    states = [one for one in _find_damage_of(publisher, name, subject) if one.repair == "state"]
    if states:
        with tree.hold(name, publisher.say):
            publisher.say(f"rewriting what the versions of {name} mean")
            tree.commit(TreeChange(tree.ledger(name, to_change=True), {}, "repair"))
        mended += states
    return mended


def _put_back(publisher: Publisher, damage: Damage) -> None:
    """Write the file of DAMAGE, whose text is known.

    Whatever lies in its place goes. A link there is replaced, and not followed.
    """
    path, tree = damage.path, publisher.tree
    assert path and damage.text is not None

    # An inventory names the path, and whoever may publish could have written it.
    releases = publisher.store.releases
    top = releases if path.is_relative_to(releases) else tree.root
    if not path.is_relative_to(top) or not is_clean(str(path.relative_to(top))):
        raise StoreError(f"{path} is not below {top}", "nothing was written")
    publisher.say(f"putting back {path}")
    tree.marks.folder(top, path.parent)
    if path.is_dir() and not path.is_symlink():
        descriptors.remove_tree(path)
    tree.marks.write(path, damage.text)


def restore_generation(publisher: Publisher, name: str, number: int) -> None:
    """Make generation NUMBER the current state of NAME.

    InputError where that generation is not whole, or a change was interrupted.
    """
    tree = publisher.tree
    state = tree.root / STATE / name
    with tree.leased(name, publisher.say):
        if (state / JOURNAL).exists():
            raise InputError(
                f"a change of {name} was interrupted, and its journal knows what is to be done",
                "the next verb that writes finishes it",
                page="repair-what-is-published",
            )
        whole = find_whole_generations(tree, name)
        if number not in whole:
            known = ", ".join(map(str, whole)) or "none"
            raise InputError(
                f"{state / str(number)} is not whole (whole are: {known})",
                "name one of those",
                page="repair-what-is-published",
            )
        descriptors.point_link(str(number), state / CURRENT)


def list_names_to_repair(publisher: Publisher, name: str) -> list[str]:
    """Return NAME, or every name of which the tree holds something where NAME is empty.

    InputError for a NAME of which it holds nothing.
    """
    known = list_names_with_traces(publisher.tree)
    if name and name not in known:
        raise InputError(f"nothing is published as {name!r}", "hpcstack status")
    return [name] if name else known


def check_release(publisher: Publisher, name: str, release: str) -> None:
    """Raise InputError where NAME has no RELEASE, or where RELEASE is a version.

    Where the ledger cannot be read, nothing is refused.
    """
    with contextlib.suppress(StoreError):
        ledger = publisher.tree.ledger(name)
        if ledger.of(release):
            newest = ledger.of(release)[-1].release
            raise InputError(
                f"{name}/{release} is a version, with releases of its own",
                f"hpcstack repair {name}/{newest}, or hpcstack repair {name}",
            )
        ledger.entry(release)
