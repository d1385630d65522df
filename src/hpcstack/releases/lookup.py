"""What is published: the releases that aliases name, and their images.

Read by `launch`, written by `publish`.
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
from hpcstack.releases.tree import Tree

if TYPE_CHECKING:
    from hpcstack.releases.ledger import Ledger
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store


@dataclass(frozen=True)
class ChosenImage:
    """The image that a name means, WHY that one, and as DOUBT what may not be as users expect, if
    anything.
    """

    artifact: Artifact
    why: str
    doubt: str = ""


def find_released(
    name: str, site: Site, store: Store, named: str = "", *, retired: bool = False
) -> ChosenImage | None:
    """The image that the published alias of NAME (`pytorch-24.11`) names, and its release; None if
    there is none.

    NAMED is a release of it (`pytorch/24.11-r2`) that is meant instead. InputError where it is
    removed, or its day is past, unless RETIRED ones count, as where nothing is run.
    """
    tree = Tree(site.module_tree)
    for published in tree.names():
        if not name.startswith(f"{published}-"):
            continue
        ledger, version = tree.ledger(published), name.removeprefix(f"{published}-")
        dates = ledger.dates.get(version, Dates())
        if dates.refuses(stamp_today()) and not retired:
            raise InputError(
                describe_refusal(f"{published}/{version}", dates), f"hpcstack status {published}"
            )
        chosen = ledger.entry(named.partition("/")[2]) if named else None
        if chosen and chosen.state in ("removed", "gone"):
            raise InputError(f"{named} was removed", f"hpcstack status {published}")
        if entry := chosen or ledger.aliased(version):
            release = f"{published}/{entry.release}"
            record = read_record(store, published, entry.release)
            artifact = store.artifact(record.key) if record else None
            if not artifact:
                raise StoreError(
                    f"{release} is published in {entry.channel}, and its image is gone",
                    f"hpcstack build {name}",
                )
            if artifact.sha256 != entry.sha256:
                raise StoreError(
                    f"the image of {release} is not the one that was published: sha256 "
                    f"{artifact.sha256[:12]}, not "
                    f"{entry.sha256[:12]}",
                    "tell the site's administrators: hpcstack status --check",
                )
            if artifact.stack != f"{published}-{entry.version}":
                raise StoreError(
                    f"the image of {release} says that it is one of {artifact.stack or 'no stack'}",
                    "tell the site's administrators: hpcstack status --check",
                )
            changed = check_seal(release, artifact, site, store)
            doubt = f"the image of {release} {changed}" if changed else ""
            return ChosenImage(artifact, f"release {release} in {entry.channel}", doubt)
    return None


def find_version(name: str, tree: Tree) -> tuple[Ledger, str, str]:
    """(ledger, version, release) of `pytorch/24.11`, `pytorch-24.11` or `pytorch/24.11-r2`.

    The version of a name alone is that of its default; release is empty unless it was named.
    InputError for others.
    """
    one, rest = split_name(name, tree.names())
    ledger = tree.ledger(one)
    if any(entry.release == rest for entry in ledger.entries):
        return ledger, ledger.entry(rest).version, rest
    if not rest:
        newest = ledger.default or (ledger.entries[-1].release if ledger.entries else "")
        return ledger, newest.rpartition("-r")[0], ""
    if rest not in {entry.version for entry in ledger.entries}:
        releases = [
            entry.release for entry in ledger.entries if entry.version == rest.rpartition("-r")[0]
        ]
        known = ", ".join(releases or dict.fromkeys(entry.version for entry in ledger.entries))
        raise InputError(
            f"{one}/{rest} is not published (there are: {known})", f"hpcstack status {one}"
        )
    return ledger, rest, ""


def require_version(verb: str, name: str, tree: Tree) -> tuple[Ledger, str, str]:
    """`find_version`, for a VERB that must not guess which version is meant."""
    found = find_version(name, tree)
    if found[0].name == name:
        versions = ", ".join(dict.fromkeys(one.version for one in found[0].entries))
        raise InputError(
            f"{verb} wants a version; {name} has {versions}", f"hpcstack {verb} {name}/{found[1]}"
        )
    return found
