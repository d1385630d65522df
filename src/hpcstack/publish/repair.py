"""Puts back what is published as it was written: modulefiles, wrappers, records, what versions
mean, the spider cache.

What nobody wrote down twice is named and left alone: the bytes of images, and a ledger of which no
copy is whole.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.errors import InputError, StoreError
from hpcstack.publish.damage import Damage, find_damage, names_with_traces, whole_generations
from hpcstack.publish.spider import is_cache_missing, rebuild_cache
from hpcstack.releases.inventory import is_clean
from hpcstack.releases.layout import CURRENT, JOURNAL, STATE
from hpcstack.releases.tree import TreeChange

if TYPE_CHECKING:
    from hpcstack.publish.publisher import Publisher

ROUNDS = 3  # what is put back may show what else is wrong: a ledger that can be read again


@dataclass(frozen=True)
class Repaired:
    """What was put back, and what nobody can put back here."""

    mended: tuple[Damage, ...]
    left: tuple[Damage, ...]
    cache: str = ""


def foretell_repair(publisher: Publisher, names: list[str], subject: str = "") -> Repaired:
    """What `repair_names` would do; nothing is written."""
    found = [one for name in names for one in find_damage(publisher.tree, publisher.store, name)]
    found = [one for one in found if subject in ("", one.subject)]
    mended = tuple(one for one in found if can_be_mended(one))
    return Repaired(mended, tuple(one for one in found if one not in mended))


def repair_names(publisher: Publisher, names: list[str], subject: str = "") -> Repaired:
    """NAMES as they were written; of a SUBJECT, NAME/RELEASE, alone.

    Each name is held while it is mended.
    """
    mended: list[Damage] = []
    left: list[Damage] = []
    for name in names:
        if find_damage(
            publisher.tree, publisher.store, name
        ):  # else nothing is written, not even a lease
            mended += _mend_name(publisher, name, subject)
        left += [
            one
            for one in find_damage(publisher.tree, publisher.store, name)
            if subject in ("", one.subject)
        ]
    tree = publisher.tree
    cache = (
        rebuild_cache(tree, publisher.runner)
        if mended or tree.stale or is_cache_missing(tree)
        else ""
    )
    return Repaired(tuple(one for one in mended if one not in left), tuple(left), cache)


def can_be_mended(damage: Damage) -> bool:
    return damage.repair == "state" or (damage.repair == "file" and damage.text is not None)


def _mend_name(publisher: Publisher, name: str, subject: str) -> list[Damage]:
    """What was put back of NAME, which is looked at once it is held: somebody may have removed a
    release meanwhile.
    """
    tree, mended = publisher.tree, []
    with tree.leased(name, publisher.say):
        for _ in range(ROUNDS):
            found = [
                one
                for one in find_damage(tree, publisher.store, name)
                if subject in ("", one.subject)
            ]
            now = [
                one for one in found if one.repair == "file" and one.path and one.text is not None
            ]
            if not now:
                break
            for one in now:
                _put_back(publisher, one)
            mended += [one for one in now if one not in mended]
    found = [
        one for one in find_damage(tree, publisher.store, name) if subject in ("", one.subject)
    ]
    if states := [one for one in found if one.repair == "state"]:
        with tree.hold(name, publisher.say):
            publisher.say(f"writing anew what the versions of {name} mean")
            tree.commit(TreeChange(tree.ledger(name, to_change=True), {}, "repair"))
        mended += states
    return mended


def _put_back(publisher: Publisher, damage: Damage) -> None:
    """A file whose text is known.

    What lies in its place goes: a link is replaced, and not followed.
    """
    path, tree = damage.path, publisher.tree
    assert path and damage.text is not None
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
    """The state of NAME as generation NUMBER had it.

    InputError where that is not whole, or a change was interrupted.
    """
    tree = publisher.tree
    state = tree.root / STATE / name
    with tree.leased(name, publisher.say):
        if (state / JOURNAL).exists():
            raise InputError(
                f"a change of {name} was interrupted, and its journal knows what is to be done",
                "the next verb that writes finishes it",
            )
        whole = whole_generations(tree, name)
        if number not in whole:
            known = ", ".join(map(str, whole)) or "none"
            raise InputError(
                f"{state / str(number)} is not whole (whole are: {known})", "name one of those"
            )
        descriptors.point_link(str(number), state / CURRENT)


def names_to_repair(publisher: Publisher, name: str) -> list[str]:
    """NAME, or all of which something is there. InputError for a name of which nothing is."""
    known = names_with_traces(publisher.tree)
    if name and name not in known:
        raise InputError(f"nothing is published as {name!r}", "hpcstack status")
    return [name] if name else known


def check_release(publisher: Publisher, name: str, release: str) -> None:
    """InputError for a RELEASE that NAME does not have: a version is not one.

    Of a ledger that cannot be read, none.
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
