"""Build: from a stack to an image in the store.

Local disk first, the store by rename, one builder per key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpcstack.build.diagnose_log import explain_failure
from hpcstack.build.engines.base import ProgramFailed
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
from hpcstack.render.steps import HOME
from hpcstack.site.logins import redact_logins
from hpcstack.store.artifact import IMAGE, Artifact
from hpcstack.store.contents import read_image_file
from hpcstack.store.workspace import make_workspace
from hpcstack_smoke import __version__ as suite_version

if TYPE_CHECKING:
    from hpcstack.build.engines.base import BuildResult, Job
    from hpcstack.build.workbench import Workbench
    from hpcstack.store.store import Store

ANOTHER = "--engine auto takes one that can"
Complete = Callable[[BuildRequest, Path], BuildRequest]


@dataclass(frozen=True)
class BuildPolicy:
    """What a build may use: `fresh` takes nothing from earlier builds, `offline` has no network.

    `again` is the sha256 of an image that is made again. An image of other bytes is not stored
    then, and the stack keeps naming the image that it named before.
    """

    fresh: bool = False
    offline: bool = False
    again: str = ""


def build_image(
    request: BuildRequest, bench: Workbench, policy: BuildPolicy = BuildPolicy()
) -> tuple[Artifact, bool]:
    """The image of REQUEST, and whether it had to be built.

    BuildError leaves nothing in the store.
    """
    from hpcstack.build.base import base_of, bundled_base, imported_base

    store, progress = bench.store, bench.progress
    given = bundled_base(request.lock, request.platform, request.site) if policy.offline else None
    if policy.offline and imported_base(request.lock, request.platform, request.site).exists():
        given = None  # what a registry's digest vouches for comes first
    elif policy.offline and not given:
        raise InputError(
            f"the base of {request.stack.full_name} is not here, and --offline fetches nothing",
            "hpcstack bundle create where there is a network, hpcstack bundle apply here",
        )
    if given:  # an image on it is never taken for one on the registry's base: find_built
        request = replace(request, bundled=given.stem)
    if not (policy.fresh or policy.again) and (found := find_built(request, store)):
        return found, False
    _check_engine(request, bench)
    base = given or base_of(request.lock, request.platform, bench)
    if given:
        progress(
            "on the base that a bundle brought: whoever made the bundle is trusted with this image"
        )
    return _build_once(request, base, bench, policy)


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
    return _build_once(request, image, bench, BuildPolicy(), complete)


def _check_engine(request: BuildRequest, bench: Workbench) -> None:
    if reason := request.engine.usable(bench.runner):
        raise MissingToolError(
            f"the engine {request.engine.name} cannot be used here: {reason}", ANOTHER
        )


def _build_once(
    request: BuildRequest,
    base: Path,
    bench: Workbench,
    policy: BuildPolicy,
    complete: Complete | None = None,
) -> tuple[Artifact, bool]:
    """The image of REQUEST, made on BASE by one builder at a time; and whether it had to be made."""
    store, progress, name = bench.store, bench.progress, request.stack.full_name
    with store.lease(
        request.key, lambda owner: progress(f"waiting for another builder of {name}: {owner}")
    ):
        if not (policy.fresh or policy.again) and (found := find_built(request, store)):
            return found, False
        if (
            policy.again and not policy.fresh and (found := _stored(request, store))
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
            job, made = make_image(work, request, base, bench, policy, kept, incoming / IMAGE)
            if complete:
                request = complete(request, made.image)
            return _store_image(made, job.log, request, bench, policy), True


def _store_image(
    made: BuildResult, log: Path, request: BuildRequest, bench: Workbench, policy: BuildPolicy
) -> Artifact:
    """Put the image that was MADE into the store, with its LOG, and return it as it lies there.

    StoreError where a release that can come back was made of other bytes.
    """
    store, progress = bench.store, bench.progress
    progress.event("phase", name="inspect")
    artifact = _describe_image(request, made)
    progress.event("phase", name="store")
    progress(f"storing {artifact.size / 1e6:.0f} MB{_describe_splice(made)}")
    if policy.again and artifact.sha256 != policy.again:
        said = f"sha256 {artifact.sha256[:12]}, not {policy.again[:12]}"
        raise StoreError(
            f"the image was built, and has other bytes than before: {said}",
            "bring it back from a backup; or build, test and publish the stack anew",
        )
    old = _stored(request, store)
    replaces = policy.fresh or bool(old and old.bundled and not request.bundled)
    same = old is not None and digest_of(old.image) == artifact.sha256
    if old and policy.fresh and same and old.bundled == request.bundled:
        progress("the same bytes as the image that is there, which stays")
        return old
    if names := _published_with_other_bytes(request, store, artifact.sha256):
        _refuse_other_bytes(request, store, names[0], there=old is not None)
    stored = store.put(
        artifact,
        made.image,
        log,
        lock=request.lock.text(),
        instead=replaces or old is None,
        as_newest=not policy.again,
    )
    if request.platform == request.stack.base.platforms[0] and not policy.again:
        store.point(stored.stack, stored.key)
    return stored


def _refuse_other_bytes(
    request: BuildRequest, store: Store, release: str, *, there: bool
) -> NoReturn:
    """Raise StoreError: RELEASE was published with other bytes, and its image may be THERE yet."""
    differs = f"the new image differs from the one published as {release}, which "
    if there:
        raise StoreError(
            f"{differs}stays",
            f"the files that differ: hpcstack verify --reproducible {request.stack.full_name}",
        )
    raise StoreError(
        f"{differs}is gone; the new one is not put in its place, since {release} was proven with "
        "the old",
        f"bring {store.top}/images/{request.key} back from a backup; or: "
        f"hpcstack remove {release}, then build",
    )


def _describe_splice(made: BuildResult) -> str:
    """Return what of the image is new, and how the rest came; nothing where all is new."""
    spliced = made.spliced
    if spliced is None:
        return ""
    way = "shared with it" if spliced.how == "shared" else "copied"
    return f" (the base's as they are, {way}; {spliced.new / 1e6:.1f} MB new)"


def _published_with_other_bytes(request: BuildRequest, store: Store, sha256: str) -> list[str]:
    """Return the releases of the image of REQUEST that can come back and were not made of SHA256."""
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
    policy: BuildPolicy,
    kept: Path,
    beside: Path | None = None,
) -> tuple[Job, BuildResult]:
    """Build the image of REQUEST in WORK, or as the file BESIDE where it takes no more than a copy.

    It is in no store yet. The log is KEPT whatever becomes of the build. BuildError where the build
    fails.
    """
    job = make_job(work, request.files, base, request.lock.base.registry, bench)
    locked = request.lock.platform(request.platform)
    if policy.offline:
        lend_bundle(job.lent, request)
    job = replace(
        job,
        steps=request.steps,
        environment=locked.environment,
        fresh=policy.fresh,
        offline=policy.offline,
        squash=request.squash,
        beside=beside,
    )
    store = bench.store
    bench.progress.event("phase", name="build")
    try:
        try:
            with store.acting("the build ran into the machine's limits"):
                made = request.engine.build(job, bench.runner)
        finally:
            with store.acting("the log was not kept"):
                redact_log(job.log, request.site)
                with job.log.open("a", encoding="utf-8") as log:
                    log.write(job.clock.report())
        return job, made
    except ProgramFailed as failed:
        explained = explain_failure(failed.done, job.log, kept, request.lock, request.site)
        raise BuildError(explained.message("the build failed"), explained.hint) from None
    finally:
        with store.acting("the log was not kept"):  # also where the disk was full just now
            log_text = redact_logins(read_log(job.log), request.site)
            write_text(kept, log_text, sharing.log_mode())


def _describe_image(request: BuildRequest, made: BuildResult) -> Artifact:
    """Return the record of the image that was MADE, with what it says of itself."""
    image = made.image

    def read(path: str) -> str:
        return read_image_file(image, path)

    about = json.loads(read(f"{HOME}/stack.json"))
    if about != json.loads(request.files[f"{CONTEXT}/stack.json"]):
        raise BuildError("the image is not of the stack that was built", "this is a bug: tell us")
    return Artifact(
        stack=request.stack.full_name,
        key=request.key,
        sha256=made.spliced.sha256 if made.spliced else digest_of(image),
        size=image.stat().st_size,
        platform=request.platform,
        engine=request.engine.name,
        lock_sha256=request.lock.digest(),
        base=str(about["base"]),
        adopted=describe_adopted(request.stack),
        bundled=request.bundled,
        unconfined=made.unconfined,
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
