"""Makes the images of releases again, of the spec and lock that each release keeps: to the same
bytes, or not at all.

`hpcstack build` makes what the recipe says today; a release was published with what it said then.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack import __version__
from hpcstack.build.build import BuildPolicy, build_image
from hpcstack.build.engines import ENGINES, find_engine
from hpcstack.build.request import BuildRequest
from hpcstack.core.errors import HpcstackError, InputError, StoreError
from hpcstack.core.files import digest_of, read_bytes
from hpcstack.lock.model import MAX_LOCK, parse_lock
from hpcstack.publish.damage import find_damage
from hpcstack.publish.make_release import sign_and_check
from hpcstack.recipe.model import Stack
from hpcstack.releases.records import read_record, release_folder, version_of
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
    """A RELEASE, NAME/VERSION-rN, whose image was looked after: FAILED says why it is not back,
    empty where it is.
    """

    release: str
    key: str
    failed: str = ""
    remedy: str = ""


def releases_without_images(
    publisher: Publisher, names: list[str], subject: str = ""
) -> list[tuple[str, Entry]]:
    """(NAME, release) of NAMES whose image is gone or not the file that was read last, each image
    once; a SUBJECT that is named, whatever its file looks like. What was removed is gc's.
    """
    wanted = {subject} if subject else _with_other_files(publisher, names)
    by_key: dict[str, tuple[str, Entry]] = {}
    for one in sorted(wanted):
        name, _, release = one.partition("/")
        entry = publisher.tree.ledger(name).entry(release)
        if entry.state not in ("removed", "gone"):
            by_key.setdefault(entry.key, (name, entry))
    return list(by_key.values())


def _with_other_files(publisher: Publisher, names: list[str]) -> set[str]:
    """The releases, NAME/VERSION-rN, whose image's file is gone or not as it was when somebody read
    it.
    """
    found = [one for name in names for one in find_damage(publisher.tree, publisher.store, name)]
    return {one.subject for one in found if one.repair == "image"}


def rebuild_images(
    publisher: Publisher, bench: Workbench, releases: list[tuple[str, Entry]]
) -> list[Rebuilt]:
    """The images of RELEASES again, one after the other; what cannot be made does not keep the
    others from it.
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
    """The image of a release is its own again: because its bytes are there, or by a build.

    HpcstackError where not.
    """
    release = f"{name}/{entry.release}"
    artifact = _stored(publisher, entry)
    if artifact:
        publisher.say(f"reading {artifact.image}")
    if not artifact or digest_of(artifact.image) != entry.sha256:
        publisher.say(f"building the image of {release} again")
        request = request_of_release(publisher, name, entry)
        refuse_unsigned(request.lock, bench.site)
        artifact, _ = build_image(
            request, bench, BuildPolicy(fresh=artifact is not None, again=entry.sha256)
        )
    sign_and_check(artifact, publisher)
    for other in publisher.tree.ledger(name).entries:
        if other.key == entry.key and other.state != "gone":
            publisher.renew_image_seal(name, other, artifact)


def _stored(publisher: Publisher, entry: Entry) -> Artifact | None:
    with contextlib.suppress(StoreError):
        return publisher.store.artifact(entry.key)
    return None


def request_of_release(publisher: Publisher, name: str, entry: Entry) -> BuildRequest:
    """What made the image of a release. InputError or StoreError where that is not known, or this
    hpcstack, with this site's settings, would make another one of it.
    """
    release = f"{name}/{entry.release}"
    record = read_record(publisher.store, name, entry.release)
    if not record:
        raise StoreError(f"the record of {release} is gone", f"hpcstack repair {release}")
    try:
        stack = Stack.model_validate(record.stack)
    except ValueError as error:
        raise StoreError(
            f"the record of {release} has a stack that this hpcstack cannot read: {error}"[:500],
            "use the version that published it",
        ) from None
    if stack.adopted:
        raise InputError(f"{release} was adopted: hpcstack did not build its image", FROM_BACKUP)
    path = release_folder(publisher.store, name, entry.release) / "lock.json"
    try:
        lock = parse_lock(read_bytes(path, MAX_LOCK), str(path)).lock
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", FROM_BACKUP) from None
    if lock.digest() != record.lock_sha256:
        raise StoreError(f"{path} is not the lock that the image was built of", FROM_BACKUP)
    requests = [
        BuildRequest(
            stack, lock, publisher.site, platform, find_engine(one), "as it was built", squash
        )
        for platform in lock.base.platforms
        for one in ENGINES
        for squash in (False, True)
    ]
    found = next((one for one in requests if one.key == entry.key), None)
    if not found:
        raise InputError(_why_another(record, version_of(entry.release), name), FROM_BACKUP)
    return found


def _why_another(record: ReleaseRecord, version: str, name: str) -> str:
    """Why the image of a release cannot be made again to the same bytes, as far as it is known."""
    what = f"another image would be made of the lock of {name}-{version}"
    if record.hpcstack == __version__:
        return f"{what}: build.compression or another setting of site.yaml is not what it was"
    return (
        f"{what}: it was published by hpcstack {record.hpcstack or 'of an unknown version'}, and "
        f"this is {__version__}"
    )
