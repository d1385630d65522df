"""Build: from a stack to an image in the store.

Local disk first, the store by rename, one builder per key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.diagnose_log import explain_failure
from hpcstack.build.job import make_job, read_log, redact_log
from hpcstack.build.offline import lend_bundle
from hpcstack.build.request import BuildRequest, find_built
from hpcstack.core import sharing
from hpcstack.core.errors import BuildError, InputError, MissingToolError, StoreError
from hpcstack.core.files import digest_of, write_text
from hpcstack.recipe.adopted import describe_adopted
from hpcstack.releases.records import read_releases
from hpcstack.releases.tree import Tree
from hpcstack.render.image import CONTEXT
from hpcstack.render.steps import HOME, plan_steps
from hpcstack.site.logins import redact_logins
from hpcstack.store.artifact import IMAGE, Artifact
from hpcstack.store.contents import read_image_file
from hpcstack.store.workspace import make_workspace
from hpcstack_smoke import __version__ as suite_version

if TYPE_CHECKING:
    from hpcstack.build.engines import Job
    from hpcstack.build.workbench import Workbench
    from hpcstack.store.store import Store

ANOTHER = "--engine auto takes one that can"
Complete = Callable[[BuildRequest, Path], BuildRequest]


@dataclass(frozen=True)
class How:
    """How a build goes about it: FRESH takes nothing from earlier builds, OFFLINE has no network.

    AGAIN is the sha256 of an image that is made again: another is not stored, and its stack names
    what it named before.
    """

    fresh: bool = False
    offline: bool = False
    again: str = ""


def build_image(request: BuildRequest, bench: Workbench, how: How = How()) -> tuple[Artifact, bool]:
    """The image of REQUEST, and whether it had to be built.

    BuildError leaves nothing in the store.
    """
    from hpcstack.build.base import base_of, bundled_base, imported_base

    store, progress = bench.store, bench.progress
    given = bundled_base(request.lock, request.platform, request.site) if how.offline else None
    if how.offline and imported_base(request.lock, request.platform, request.site).exists():
        given = None  # what a registry's digest vouches for comes first
    elif how.offline and not given:
        raise InputError(
            f"the base of {request.stack.full_name} is not here, and --offline fetches nothing",
            "hpcstack bundle create where there is a network, hpcstack bundle apply here",
        )
    if given:  # an image on it is never taken for one on the registry's base: find_built
        request = replace(request, bundled=given.stem)
    if not (how.fresh or how.again) and (found := find_built(request, store)):
        return found, False
    _check_engine(request, bench)
    base = given or base_of(request.lock, request.platform, bench)
    if given:
        progress(
            "on the base that a bundle brought: whoever made the bundle is trusted with this image"
        )
    return _build_once(request, base, bench, how)


def build_on(
    image: Path, request: BuildRequest, bench: Workbench, complete: Complete
) -> tuple[Artifact, bool]:
    """IMAGE, a squashfs of others, with what hpcstack's own images have; and whether it had to be
    made.

    COMPLETE is given the finished image, and adds what is in it to the request's lock.
    """
    if found := find_built(request, bench.store):
        return found, False
    _check_engine(request, bench)
    return _build_once(request, image, bench, How(), complete)


def _check_engine(request: BuildRequest, bench: Workbench) -> None:
    if reason := request.engine.usable(bench.runner):
        raise MissingToolError(
            f"the engine {request.engine.name} cannot be used here: {reason}", ANOTHER
        )


def _build_once(
    request: BuildRequest, base: Path, bench: Workbench, how: How, complete: Complete | None = None
) -> tuple[Artifact, bool]:
    """The image of REQUEST, made on BASE by one builder at a time; and whether it had to be made."""
    store, progress, name = bench.store, bench.progress, request.stack.full_name
    with store.lease(
        request.key, lambda owner: progress(f"waiting for another builder of {name}: {owner}")
    ):
        if not (how.fresh or how.again) and (found := find_built(request, store)):
            return found, False
        if (
            how.again and not how.fresh and (found := _stored(request, store))
        ):  # somebody else made it meanwhile
            return found, False
        if store.below:
            progress(f"into your own store, {store.top}: {store.below.top} is not yours to write")
        progress(
            f"building {name} with {request.engine.name} ({request.why}; key {request.key[:12]})"
        )
        kept = store.top / "logs" / f"{name}-{request.key[:12]}.log"
        with (
            make_workspace(request.site, bench.runner, request.needed_bytes) as work,
            store.incoming() as incoming,
        ):
            job = make_image(work, request, base, bench, how, kept, incoming / IMAGE)
            if complete:
                request = complete(request, job.image)
            return _store(job, request, bench, how), True


def _store(job: Job, request: BuildRequest, bench: Workbench, how: How) -> Artifact:
    store, progress = bench.store, bench.progress
    progress.event("phase", name="inspect")
    artifact = _inspect(request, job)
    progress.event("phase", name="store")
    progress(f"storing {artifact.size / 1e6:.0f} MB{_told(job)}")
    if how.again and artifact.sha256 != how.again:
        said = f"sha256 {artifact.sha256[:12]}, not {how.again[:12]}"
        raise StoreError(
            f"the image was built, and has other bytes than before: {said}",
            "bring it back from a backup; or build, test and publish the stack anew",
        )
    old = _stored(request, store)
    replaces = how.fresh or bool(old and old.bundled and not request.bundled)
    same = old is not None and digest_of(old.image) == artifact.sha256
    if old and how.fresh and same and old.bundled == request.bundled:
        progress("the same bytes as the image that is there, which stays")
        return old
    if names := _others(request, store, artifact.sha256):
        stays = (
            "stays"
            if old
            else (
                f"is gone; the new one is not put in its place, since {names[0]} was proven with "
                f"the old"
            )
        )
        look = f"the files that differ: hpcstack verify --reproducible {request.stack.full_name}"
        bring_back = f"bring {store.top}/images/{request.key}"
        raise StoreError(
            f"the new image differs from the one published as {names[0]}, which {stays}",
            look
            if old
            else f"{bring_back} back from a backup; or: hpcstack remove {names[0]}, then build",
        )
    stored = store.put(
        artifact,
        job.image,
        job.log,
        lock=request.lock.text(),
        instead=replaces or old is None,
        as_newest=not how.again,
    )
    if request.platform == request.stack.base.platforms[0] and not how.again:
        store.point(stored.stack, stored.key)
    return stored


def _told(job: Job) -> str:
    """What of the image is new, and how the rest came."""
    how = {"shared": "shared with it"}
    return "".join(
        f" (the base's as they are, {how.get(one.how, 'copied')}; {one.new / 1e6:.1f} MB new)"
        for one in job.made
    )


def _others(request: BuildRequest, store: Store, sha256: str) -> list[str]:
    """The releases of the image of REQUEST, as far as they can come back, that were made of other
    bytes than SHA256.
    """
    trees = [Tree(one.module_tree) for one in request.site.every_architecture()]
    found = [
        name
        for name, record in read_releases(store)
        if record.key == request.key and record.sha256 != sha256
    ]
    states = {
        f"{name}/{one.release}": one.state
        for tree in trees
        for name in tree.names()
        for one in tree.ledger(name).entries
    }
    return [name for name in found if states.get(name, "live") not in ("removed", "gone")]


def _stored(request: BuildRequest, store: Store) -> Artifact | None:
    """The whole image of REQUEST that is there; a damaged one makes way for the new one."""
    try:
        return store.artifact(request.key)
    except StoreError:
        return None


def make_image(
    work: Path,
    request: BuildRequest,
    base: Path,
    bench: Workbench,
    how: How,
    kept: Path,
    beside: Path | None = None,
) -> Job:
    """The image of REQUEST made in WORK, or as the file BESIDE where a copy is all that it takes;
    in no store yet. The log is KEPT whatever becomes of it.
    """
    job = make_job(work, request.files, base, request.lock.base.registry, bench)
    locked = request.lock.platform(request.platform)
    planned = tuple(plan_steps(request.stack, locked, request.lock.sources))
    if how.offline:
        lend_bundle(job.lent, request)
    job = replace(
        job,
        steps=planned,
        environment=locked.environment,
        fresh=how.fresh,
        offline=how.offline,
        squash=request.squash,
        beside=beside,
    )
    store = bench.store
    bench.progress.event("phase", name="build")
    try:
        try:
            with store.acting("the build ran into the machine's limits"):
                failed = request.engine.build(job, bench.runner)
        finally:
            with store.acting("the log was not kept"):
                redact_log(job.log, request.site)
        with job.log.open("a", encoding="utf-8") as log:
            log.write(job.times())
        if failed.status:
            explained = explain_failure(failed, job.log, kept, request.lock, request.site)
            raise BuildError(explained.message("the build failed"), explained.hint)
        return job
    finally:
        with store.acting("the log was not kept"):
            write_text(
                kept, redact_logins(read_log(job.log), request.site), sharing.log_mode()
            )  # also where the disk was full just now


def _inspect(request: BuildRequest, job: Job) -> Artifact:
    """What the finished image says of itself, read out of the squashfs."""

    def read(path: str) -> str:
        return read_image_file(job.image, path)

    about = json.loads(read(f"{HOME}/stack.json"))
    if about != json.loads(request.files[f"{CONTEXT}/stack.json"]):
        raise BuildError("the image is not of the stack that was built", "this is a bug: tell us")
    return Artifact(
        stack=request.stack.full_name,
        key=request.key,
        sha256=job.made[0].sha256 if job.made else digest_of(job.image),
        size=job.image.stat().st_size,
        platform=request.platform,
        engine=request.engine.name,
        lock_sha256=request.lock.digest(),
        base=str(about["base"]),
        adopted=describe_adopted(request.stack),
        bundled=request.bundled,
        unconfined="; ".join(job.unconfined),
        stand_in=request.lock.stand_in(),
        suite=suite_version,
        facts=request.lock.facts(request.platform),
        apt=_versions(read(f"{HOME}/packages/apt.txt"), "="),
        pip=_versions(read(f"{HOME}/packages/pip.txt"), "=="),
        conda=_versions(read(f"{HOME}/packages/conda.txt"), "="),
        environment=_variables(request),
        mode=request.stack.launch.mode,
        mounts=list(request.stack.launch.mounts),
    )


def _variables(request: BuildRequest) -> dict[str, str]:
    base = request.lock.platform(request.platform).environment
    return base | request.stack.variables(base)


def _versions(text: str, sign: str) -> dict[str, str]:
    pairs = (line.partition(sign) for line in text.splitlines() if sign in line)
    return {name: version for name, _, version in pairs}
