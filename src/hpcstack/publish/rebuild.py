"""Builds the images of releases again, to the same bytes or not at all.

`hpcstack build` makes what the recipe says today. A release keeps the spec and the lock that it was
published with, and its image is made of these.

Tested in tests/integration/test_rebuilding.py.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack import __version__
from hpcstack.build.build import build_image
from hpcstack.build.engines import ENGINES, find_engine
from hpcstack.build.options import BuildOptions
from hpcstack.build.request import BuildRequest
from hpcstack.core.errors import HpcstackError, InputError, StoreError
from hpcstack.core.files import digest_of, read_bytes
from hpcstack.lock.model import MAX_LOCK, parse_lock
from hpcstack.publish.damage import find_damage
from hpcstack.publish.make_release import sign_and_check
from hpcstack.recipe.model import Stack
from hpcstack.releases.records import name_release_folder, parse_version_of, read_record
from hpcstack.resolve.signed_base import refuse_unsigned

if TYPE_CHECKING:
    from hpcstack.build.workbench import Workbench
    from hpcstack.publish.publisher import Publisher
    from hpcstack.releases.ledger import Entry
    from hpcstack.releases.records import ReleaseRecord
    from hpcstack.store.artifact import Artifact

FROM_BACKUP = "bring it back from a backup; or build, test and publish the stack anew"


@dataclass(frozen=True)
class Rebuilt:
    """What became of the image of one release."""

    release: str  # NAME/VERSION-rN
    key: str
    failed: str = ""  # why it is not back; empty where it is
    remedy: str = ""


def list_releases_without_images(
    publisher: Publisher, names: list[str], subject: str = ""
) -> list[tuple[str, Entry]]:
    """Return (NAME, release) of NAMES whose image is gone or not the file that was last read.

    Each image is named once. With a SUBJECT it is that release, whatever its file looks like.
    Releases that were removed are left out: gc takes their images.
    """
    wanted = {subject} if subject else _find_damaged_images(publisher, names)
    by_key: dict[str, tuple[str, Entry]] = {}
    for one in sorted(wanted):
        name, _, release = one.partition("/")
        entry = publisher.tree.ledger(name).entry(release)
        if entry.state not in ("removed", "gone"):
            by_key.setdefault(entry.key, (name, entry))
    return list(by_key.values())


def _find_damaged_images(publisher: Publisher, names: list[str]) -> set[str]:
    """Return the releases, NAME/VERSION-rN, whose image is gone or not the file last read."""
    found = [one for name in names for one in find_damage(publisher.tree, publisher.store, name)]
    return {one.subject for one in found if one.repair == "image"}


def rebuild_images(
    publisher: Publisher, bench: Workbench, releases: list[tuple[str, Entry]]
) -> list[Rebuilt]:
    """Bring back the images of RELEASES, one after the other.

    One that fails does not keep the others from being made.
    """
    done = []
    for name, entry in releases:
        release = f"{name}/{entry.release}"
        try:
            _bring_back(publisher, bench, name, entry)
            done.append(Rebuilt(release, entry.key))
        except HpcstackError as error:
            done.append(Rebuilt(release, entry.key, error.message, error.hint))
    return done


def _bring_back(publisher: Publisher, bench: Workbench, name: str, entry: Entry) -> None:
    """Bring back the image of one release, by a build where its bytes are not there.

    Then renew the seals of all releases of that image. HpcstackError where it cannot be brought
    back.
    """
    release = f"{name}/{entry.release}"
    artifact = _find_stored(publisher, entry)
    if artifact:
        publisher.say(f"reading {artifact.image}")
    if not artifact or digest_of(artifact.image) != entry.sha256:
        publisher.say(f"building the image of {release} again")
        request = request_of_release(publisher, name, entry)
        refuse_unsigned(request.lock, bench.site)
        options = replace(request.options, fresh=artifact is not None)
        again = replace(request, options=options, again=entry.sha256)
        artifact, _ = build_image(again, bench)

    sign_and_check(artifact, publisher)
    for other in publisher.tree.ledger(name).entries:
        if other.key == entry.key and other.state != "gone":
            publisher.renew_image_seal(name, other, artifact)


def _find_stored(publisher: Publisher, entry: Entry) -> Artifact | None:
    """Return the image of ENTRY as the store has it; None where it is gone or damaged."""
    with contextlib.suppress(StoreError):
        return publisher.store.artifact(entry.key)
    return None


def request_of_release(publisher: Publisher, name: str, entry: Entry) -> BuildRequest:
    """Return the build request that made the image of a release.

    InputError or StoreError where that is not known, or where this version of hpcstack, with this
    site's settings, would make another image of it.
    """
    release = f"{name}/{entry.release}"
    record = read_record(publisher.store, name, entry.release)
    if not record:
        raise StoreError(
            f"the record of {release} is gone",
            f"hpcstack repair {release}",
            page="repair-what-is-published",
        )
    try:
        stack = Stack.model_validate(record.stack)
    except ValueError as error:
        raise StoreError(
            f"the record of {release} has a stack that this hpcstack cannot read: {error}"[:500],
            "use the version that published it",
            page="repair-what-is-published",
        ) from None
    if stack.adopted:
        raise InputError(
            f"{release} was adopted: hpcstack did not build its image",
            FROM_BACKUP,
            page="repair-what-is-published",
        )

    path = name_release_folder(publisher.store, name, entry.release) / "lock.json"
    try:
        lock = parse_lock(read_bytes(path, MAX_LOCK), str(path)).lock
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}", FROM_BACKUP, page="repair-what-is-published"
        ) from None
    if lock.digest() != record.lock_sha256:
        raise StoreError(
            f"{path} is not the lock that the image was built of",
            FROM_BACKUP,
            page="repair-what-is-published",
        )

    # A release records neither its platform, nor its engine, nor whether the image was packed anew.
    # All of these go into the image's key: the request that has this key is the one that made it.
    requests = [
        BuildRequest(
            stack,
            lock,
            publisher.site,
            platform,
            find_engine(one),
            "as it was built",
            BuildOptions(squash=squash),
        )
        for platform in lock.base.platforms
        for one in ENGINES
        for squash in (False, True)
    ]
    found = next((one for one in requests if one.key == entry.key), None)
    if not found:
        why = _explain_other_image(record, parse_version_of(entry.release), name)
        raise InputError(why, FROM_BACKUP, page="repair-what-is-published")
    return found


def _explain_other_image(record: ReleaseRecord, version: str, name: str) -> str:
    """Return why the image of a release cannot be made again to the same bytes, if it is known."""
    what = f"the lock of {name}-{version} would give another image now"
    if record.hpcstack == __version__:
        return f"{what}: build.compression or another setting of site.yaml is not what it was"
    return (
        f"{what}: it was published by hpcstack {record.hpcstack or 'of an unknown version'}, and "
        f"this is {__version__}"
    )
