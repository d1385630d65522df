"""Looks up what is published: the release that a name means, and its image. Reads only.

Tested in tests/unit/releases/test_seal.py and tests/unit/releases/test_changes.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, StoreError
from hpcstack.releases.inputs import stamp_today
from hpcstack.releases.ledger import Dates, split_name
from hpcstack.releases.modulerc import describe_refusal
from hpcstack.releases.records import read_record
from hpcstack.releases.seal import check_seal
from hpcstack.releases.tree import Tree, open_tree

if TYPE_CHECKING:
    from hpcstack.releases.ledger import Entry, Ledger
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store


@dataclass(frozen=True)
class ChosenImage:
    """The image that a name means."""

    artifact: Artifact
    why: str  # why this one
    doubt: str = ""  # what may not be as its users expect; empty where all is well
    release: str = ""  # that it is; empty where it is none


def find_released(
    name: str, site: Site, store: Store, named: str = "", *, retired: bool = False
) -> ChosenImage | None:
    """Return the image of the release that NAME (`pytorch-24.11`) means; None where there is none.

    NAMED is a release of it (`pytorch/24.11-r2`) that is meant instead. InputError where that is
    removed, or where the version is retired; with RETIRED, for verbs that run nothing, retired
    versions count. StoreError where the image is gone or not the one that was published.
    """
    tree = open_tree(site)
    for published in tree.names():
        if not name.startswith(f"{published}-"):
            continue
        ledger = tree.ledger(published)
        version = name.removeprefix(f"{published}-")
        dates = ledger.dates.get(version, Dates())
        if dates.refuses(stamp_today()) and not retired:
            raise InputError(
                describe_refusal(f"{published}/{version}", dates),
                f"hpcstack status {published}",
                page="retire-a-release",
            )
        chosen = ledger.entry(named.partition("/")[2]) if named else None
        if chosen and chosen.state in ("removed", "gone"):
            raise InputError(
                f"{named} was removed", f"hpcstack status {published}", page="retire-a-release"
            )

        entry = chosen or ledger.aliased(version)
        if entry:
            release = f"{published}/{entry.release}"
            artifact = _find_image(published, entry, store)
            changed = check_seal(release, artifact, site, store)
            doubt = f"the image of {release} {changed}" if changed else ""
            why = f"release {release} in {entry.channel}"
            return ChosenImage(artifact, why, doubt, release)
    return None


def _find_image(name: str, entry: Entry, store: Store) -> Artifact:
    """Return the image of a release of NAME.

    StoreError where it is gone, or its record in the store says that it is another.
    """
    release = f"{name}/{entry.release}"
    stack = f"{name}-{entry.version}"
    record = read_record(store, name, entry.release)
    artifact = store.artifact(record.key) if record else None
    if not artifact:
        raise StoreError(
            f"{release} is published in {entry.channel}, and its image is gone",
            f"hpcstack build {stack}",
            page="repair-what-is-published",
        )

    # Whoever may write to the store can write both an image and its record there.
    if artifact.sha256 != entry.sha256:
        raise StoreError(
            f"the image of {release} is not the one that was published: sha256 "
            f"{artifact.sha256[:12]}, not {entry.sha256[:12]}",
            "tell the site's administrators: hpcstack status --check",
            page="repair-what-is-published",
        )
    if artifact.stack != stack:
        raise StoreError(
            f"the image of {release} says that it is one of {artifact.stack or 'no stack'}",
            "tell the site's administrators: hpcstack status --check",
            page="repair-what-is-published",
        )
    return artifact


def find_version(name: str, tree: Tree) -> tuple[Ledger, str, str]:
    """Return (ledger, version, release) of `pytorch/24.11`, `pytorch-24.11` or `pytorch/24.11-r2`.

    The version of a name alone is that of its default. The release is empty unless it was named.
    InputError where nothing of that name is published.
    """
    one, rest = split_name(name, tree.names())
    ledger = tree.ledger(one)
    if any(entry.release == rest for entry in ledger.entries):
        return ledger, ledger.entry(rest).version, rest

    if not rest:
        newest = ledger.entries[-1].release if ledger.entries else ""
        release = ledger.default or newest
        return ledger, release.rpartition("-r")[0], ""

    versions = dict.fromkeys(entry.version for entry in ledger.entries)
    if rest not in versions:
        # A release that does not exist: of its version, the others are of use to know.
        releases = [
            entry.release for entry in ledger.entries if entry.version == rest.rpartition("-r")[0]
        ]
        known = ", ".join(releases or versions)
        raise InputError(
            f"{one}/{rest} is not published (there are: {known})", f"hpcstack status {one}"
        )
    return ledger, rest, ""


def require_version(verb: str, name: str, tree: Tree) -> tuple[Ledger, str, str]:
    """Do as `find_version`, but refuse a name without a version: VERB must not guess it."""
    ledger, version, release = find_version(name, tree)
    if ledger.name == name:
        versions = ", ".join(dict.fromkeys(one.version for one in ledger.entries))
        raise InputError(
            f"{verb} wants a version; {name} has {versions}", f"hpcstack {verb} {name}/{version}"
        )
    return ledger, version, release
