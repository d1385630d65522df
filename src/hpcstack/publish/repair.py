"""Puts back what is published as it was written: modulefiles, wrappers, records, what versions mean, the spider cache.

What nobody wrote down twice is named and left alone: the bytes of images, and a ledger of which no copy is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.errors import InputError, StoreError
from hpcstack.publish.damage import Damage, find_damage, names_with_traces
from hpcstack.publish.spider import is_cache_missing, rebuild_cache
from hpcstack.releases.layout import CURRENT, STATE
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
    """What `repair` would do; nothing is written."""
    found = [one for name in names for one in find_damage(publisher.tree, publisher.store, name)]
    found = [one for one in found if subject in ("", one.subject)]
    mended = tuple(one for one in found if can_be_mended(one))
    return Repaired(mended, tuple(one for one in found if one not in mended))


def repair(publisher: Publisher, names: list[str], subject: str = "") -> Repaired:
    """NAMES as they were written; of a SUBJECT, NAME/RELEASE, alone. Each name is held while it is mended."""
    mended: list[Damage] = []
    left: list[Damage] = []
    for name in names:
        for _ in range(ROUNDS):
            found = [one for one in find_damage(publisher.tree, publisher.store, name) if subject in ("", one.subject)]
            now = [one for one in found if can_be_mended(one)]
            if not now:
                break
            _mend(publisher, name, now)
            mended += [one for one in now if one not in mended]
        left += [one for one in find_damage(publisher.tree, publisher.store, name) if subject in ("", one.subject)]
    tree = publisher.tree
    cache = rebuild_cache(tree, publisher.runner) if mended or tree.stale or is_cache_missing(tree) else ""
    return Repaired(tuple(one for one in mended if one not in left), tuple(left), cache)


def can_be_mended(damage: Damage) -> bool:
    return damage.repair == "state" or (damage.repair == "file" and damage.text is not None)


def _mend(publisher: Publisher, name: str, found: list[Damage]) -> None:
    """Files first: the ledger may be among them. Then the state, if more of it is wrong, as a generation of its own."""
    tree = publisher.tree
    with tree.leased(name, publisher.say):
        for one in found:
            if one.repair == "file" and one.path and one.text is not None:
                publisher.say(f"putting back {one.path}")
                parent = publisher.store.top if one.path.is_relative_to(publisher.store.top) else tree.root
                tree.marks.folder(parent, one.path.parent)
                if one.path.is_dir() and not one.path.is_symlink():
                    descriptors.remove_tree(one.path)  # a file or a link is replaced by one rename
                tree.marks.write(one.path, one.text)
    if any(one.repair == "state" for one in found):
        with tree.hold(name, publisher.say):
            publisher.say(f"writing anew what the versions of {name} mean")
            tree.commit(TreeChange(tree.ledger(name, to_change=True), {}, "repair"))


def restore_generation(publisher: Publisher, name: str, number: int) -> None:
    """The state of NAME as generation NUMBER had it. InputError where that is not whole."""
    tree = publisher.tree
    folder = tree.root / STATE / name / str(number)
    if not (folder / "ledger.json").is_file():
        raise InputError(f"{folder} has no ledger", f"hpcstack status {name} --check names those that are whole")
    with tree.leased(name, publisher.say):
        descriptors.point_link(str(number), tree.root / STATE / name / CURRENT)
        try:
            tree.ledger(name)
        except StoreError as error:
            raise InputError(error.message, "name another generation, or restore the state from a backup") from None


def names_to_repair(publisher: Publisher, name: str) -> list[str]:
    """NAME, or all of which something is there. InputError for a name of which nothing is."""
    known = names_with_traces(publisher.tree)
    if name and name not in known:
        raise InputError(f"nothing is published as {name!r}", "hpcstack status")
    return [name] if name else known
