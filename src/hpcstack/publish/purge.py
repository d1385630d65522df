"""Removes what `gc.list_items` has found to go: ledgers first, files after them.

Tested in tests/integration/test_images.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.publish.gc import remove_item
from hpcstack.releases.changes import purge_releases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hpcstack.publish.gc import Item
    from hpcstack.publish.publisher import Publisher
    from hpcstack.releases.ledger import Event, Ledger


def remove_items(items: Iterable[Item], publisher: Publisher) -> None:
    """Remove ITEMS, and record in the ledgers of all module trees which releases are gone.

    The ledgers come first, which also removes modulefiles: no module may offer an image that is
    gone.
    """
    going = list(items)
    _purge_from_ledgers([item.what for item in going if item.kind == "release"], publisher)
    for item in going:
        publisher.say(f"removing {item.kind} {item.what or item.path.name}")
        remove_item(item, publisher.site)


def _purge_from_ledgers(releases: list[str], publisher: Publisher) -> None:
    """Record in their ledgers that RELEASES, such as `pytorch/24.11-r1`, are gone."""
    for site in publisher.site.every_architecture():
        own_publisher = replace(publisher, site=site)
        tree = own_publisher.tree
        names = {release.partition("/")[0] for release in releases} & set(tree.names())
        for name in sorted(names):
            # a release of another architecture is not in the ledger of this one's tree
            known = {entry.release for entry in tree.ledger(name).entries}
            own = [
                release
                for head, _, release in (one.partition("/") for one in releases)
                if head == name and release in known
            ]
            if own:
                own_publisher.change(name, "gc", _make_purge(own), force=True)


def _make_purge(releases: list[str]) -> Callable[[Ledger, Event], Ledger]:
    """Return the change of a ledger that records that the files of RELEASES are gone."""
    return lambda ledger, event: purge_releases(ledger, releases, event)
