"""Build the image of a stack, and put it into the store.

An image is made in a workspace on local disk and enters the store by a rename, so that the store
never shows half an image. Each key has one builder at a time; others wait for its image.

Tested in tests/integration/test_engines.py and tests/integration/test_faults.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpcstack.build.diagnose_log import explain_failure
from hpcstack.build.engines.base import ProgramFailed
from hpcstack.build.job import make_job, read_log, redact_log
from hpcstack.build.offline import lend_bundle
from hpcstack.build.request import BuildRequest, find_built
from hpcstack.core.errors import BuildError, InputError, MissingToolError, StoreError
from hpcstack.core.files import digest_of, write_text
from hpcstack.recipe.adopted import describe_adopted
from hpcstack.releases.records import read_releases
from hpcstack.releases.tree import open_tree
from hpcstack.render.image import CONTEXT
from hpcstack.render.steps import HOME
from hpcstack.site.logins import redact_logins
from hpcstack.store.artifact import IMAGE, Artifact
from hpcstack.store.contents import read_image_file
from hpcstack.store.package_lists import read_package_lists
from hpcstack.store.workspace import make_workspace
from hpcstack_smoke import __version__ as suite_version

if TYPE_CHECKING:
    from hpcstack.build.engines.base import BuildResult, Job
    from hpcstack.build.workbench import Workbench
    from hpcstack.core.process import Runner
    from hpcstack.store.store import Store

ANOTHER = "--engine auto takes one that can"
Complete = Callable[[BuildRequest, Path], BuildRequest]


def build_image(request: BuildRequest, bench: Workbench) -> tuple[Artifact, bool]:
    """Return the image of REQUEST, and whether it had to be built.

    Raise BuildError where the build fails; nothing is left in the store then.
    """
    from hpcstack.build.base import provide_base

    given = _find_offline_base(request) if request.options.offline else None
    if given:
        # find_built uses this mark: an image on a bundle's base, for which no registry vouches, is
        # never returned where the registry's base is wanted.
        request = replace(request, bundled=given.stem)

    if not (request.options.fresh or request.again):
        found = find_built(request, bench.store)
        if found:
            return found, False

    _check_engine(request, bench)
    if given:
        base = given
        bench.progress(
            "on the base that a bundle brought: whoever made the bundle is trusted with this image"
        )
    else:
        base = provide_base(request.lock, request.platform, bench)
    return _build_once(request, base, bench)


def _find_offline_base(request: BuildRequest) -> Path | None:
    """Return the base that a bundle brought for REQUEST; None where an imported one is here.

    An imported base comes first, because a registry's digest vouches for it. Raise InputError where
    neither is here.
    """
    from hpcstack.build.base import find_bundled_base, locate_imported_base

    if locate_imported_base(request.lock, request.platform, request.site).exists():
        return None
    given = find_bundled_base(request.lock, request.platform, request.site)
    if given:
        return given

    raise InputError(
        f"the base of {request.stack.full_name} is not here, and --offline fetches nothing",
        "hpcstack bundle create where there is a network, hpcstack bundle apply here",
        page="air-gap",
    )


def build_on(
    image: Path, request: BuildRequest, bench: Workbench, complete: Complete
) -> tuple[Artifact, bool]:
    """Return the adopted IMAGE as one of hpcstack's own, and whether it had to be made.

    IMAGE is a squashfs that somebody else built; it serves as the base of REQUEST. COMPLETE gets
    the request and the finished image, and returns the request with a lock that records what the
    image contains.
    """
    found = find_built(request, bench.store)
    if found:
        return found, False
    _check_engine(request, bench)
    return _build_once(request, image, bench, complete)


def _check_engine(request: BuildRequest, bench: Workbench) -> None:
    """Raise MissingToolError where the engine of REQUEST cannot be used on this machine."""
    reason = request.engine.usable(bench.runner)
    if reason:
        raise MissingToolError(
            f"the engine {request.engine.name} cannot be used here: {reason}",
            ANOTHER,
            page="choose-an-engine",
        )


def _build_once(
    request: BuildRequest,
    base: Path,
    bench: Workbench,
    complete: Complete | None = None,
) -> tuple[Artifact, bool]:
    """Build the image of REQUEST on BASE, one builder per key at a time.

    Return the image, and whether it had to be built: another builder may have stored it while this
    one waited.
    """
    store = bench.store
    progress = bench.progress
    name = request.stack.full_name

    def tell_waiting(owner: str) -> None:
        progress(f"waiting for another builder of {name}: {owner}")

    with store.lease(request.key, tell_waiting):
        found = _find_built_meanwhile(request, store)
        if found:
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
            job, made = make_image(work, request, base, bench, kept, incoming / IMAGE)
            if complete:
                request = complete(request, made.image)
            return _store_image(made, job.log, request, bench), True


def _find_built_meanwhile(request: BuildRequest, store: Store) -> Artifact | None:
    """Return the image of REQUEST that another builder has stored; None where a fresh one is wanted."""
    if request.options.fresh:
        return None
    if request.again:
        return _read_stored(request, store)
    return find_built(request, store)


def _store_image(made: BuildResult, log: Path, request: BuildRequest, bench: Workbench) -> Artifact:
    """Put the image that was MADE into the store, with its LOG, and return its record.

    Raise StoreError where a release that can still be brought back was published with other bytes,
    or where REQUEST wants the bytes of an earlier image and these are others.
    """
    store = bench.store
    progress = bench.progress

    progress.event("phase", name="inspect")
    if made.spliced:
        sha256 = made.spliced.sha256  # known since it was written: no need to read it again
    else:
        sha256 = digest_of(made.image)
    artifact = describe_image_of(request, made.image, sha256, bench.runner, made.unconfined)

    progress.event("phase", name="store")
    progress(f"storing {artifact.size / 1e6:.0f} MB{_describe_splice(made)}")
    if request.again and artifact.sha256 != request.again:
        raise StoreError(
            f"the image was built, but its bytes are not those of before: "
            f"sha256 {artifact.sha256[:12]}, not {request.again[:12]}",
            "bring it back from a backup; or build, test and publish the stack anew",
            page="repair-what-is-published",
        )

    old = _read_stored(request, store)
    # An image on the registry's base takes the place of one on a bundle's.
    replaces = request.options.fresh or bool(old and old.bundled and not request.bundled)
    same = old is not None and digest_of(old.image) == artifact.sha256
    if old and request.options.fresh and same and old.bundled == request.bundled:
        progress("the same bytes as the image that is there, which stays")
        return old

    # What users run under a release's name must stay the bytes that were tested for it.
    releases = _published_with_other_bytes(request, store, artifact.sha256)
    if releases:
        _refuse_other_bytes(request, store, releases[0], there=old is not None)

    stored = store.put(
        artifact,
        made.image,
        log,
        lock=request.lock.text(),
        instead=replaces or old is None,  # without OLD there is none, or a damaged one
        as_newest=not request.again,
    )
    # put() lets no other platform's image take the stack's place; the first platform's may.
    if request.platform == request.stack.base.platforms[0] and not request.again:
        store.point(stored.stack, stored.key)
    return stored


def _refuse_other_bytes(
    request: BuildRequest, store: Store, release: str, *, there: bool
) -> NoReturn:
    """Raise StoreError: RELEASE was published with other bytes. THERE: its image still exists."""
    differs = f"the new image differs from the one published as {release}, which "
    if there:
        raise StoreError(
            f"{differs}stays",
            f"list the files that differ: hpcstack verify --reproducible {request.stack.full_name}",
            page="choose-an-engine",
        )
    raise StoreError(
        f"{differs}is gone; the new one does not take its place, because {release} was tested with "
        "the old one",
        f"bring {store.top}/images/{request.key} back from a backup; or: "
        f"hpcstack remove {release}, then build",
        page="repair-what-is-published",
    )


def _describe_splice(made: BuildResult) -> str:
    """Return how many bytes of the image are new, and how the base's came; empty if not spliced."""
    spliced = made.spliced
    if spliced is None:
        return ""

    way = "copied"
    if spliced.how == "shared":
        way = "shared with it"
    return f" (the base's as they are, {way}; {spliced.new / 1e6:.1f} MB new)"


def _published_with_other_bytes(request: BuildRequest, store: Store, sha256: str) -> list[str]:
    """Return the releases with REQUEST's key that were published with bytes other than SHA256.

    Removed ones are left out: they cannot be brought back.
    """
    found = [
        name
        for name, record in read_releases(store)
        if record.key == request.key and record.sha256 != sha256
    ]

    states: dict[str, str] = {}
    for architecture in request.site.every_architecture():
        tree = open_tree(architecture)
        for name in tree.names():
            for entry in tree.ledger(name).entries:
                states[f"{name}/{entry.release}"] = entry.state

    # A release that no ledger records counts as live: refusing is the safe side.
    return [name for name in found if states.get(name, "live") not in ("removed", "gone")]


def _read_stored(request: BuildRequest, store: Store) -> Artifact | None:
    """Return the image of REQUEST in STORE; None where it is missing, or damaged.

    A damaged image is no reason to fail: the new one takes its place.
    """
    try:
        return store.artifact(request.key)
    except StoreError:
        return None


def make_image(
    work: Path,
    request: BuildRequest,
    base: Path,
    bench: Workbench,
    kept: Path,
    beside: Path | None = None,
) -> tuple[Job, BuildResult]:
    """Build the image of REQUEST on BASE in WORK, and return the job and what the engine made.

    A spliced image, which takes little more than a copy of the base, is written straight to the
    file BESIDE if that is given. It is in no store yet. The log is written to KEPT whether the
    build succeeds or not. Raise BuildError where it fails.
    """
    job = make_job(work, request.files, base, request.lock.base.registry, bench)
    locked = request.lock.platform(request.platform)
    if request.options.offline:
        lend_bundle(job.lent, request)
    job = replace(
        job,
        steps=request.steps,
        environment=locked.environment,
        options=request.options,
        beside=beside,
    )

    store = bench.store
    bench.progress.event("phase", name="build")
    try:
        try:
            with store.acting("the build ran into the machine's limits"):
                made = request.engine.build(job, bench.runner)
        finally:
            # Logins go out of the log before anything else reads it: explain_failure quotes it.
            with store.acting("the log was not kept"):
                redact_log(job.log, request.site)
                with job.log.open("a", encoding="utf-8") as log:
                    log.write(job.clock.report())
        return job, made
    except ProgramFailed as failed:
        explained = explain_failure(failed.done, job.log, kept, request.lock, request.site)
        raise BuildError(
            explained.message("the build failed"), explained.hint, page=explained.page
        ) from None
    finally:
        with store.acting("the log was not kept"):  # tried even where the disk has just run full
            log_text = redact_logins(read_log(job.log), request.site)
            sharing = request.site.sharing
            write_text(kept, log_text, sharing.log_mode, sharing=sharing)


def describe_image_of(
    request: BuildRequest, image: Path, sha256: str, runner: Runner, unconfined: str = ""
) -> Artifact:
    """Return the record of IMAGE, which was made of REQUEST, with its packages.

    UNCONFINED says why programs ran beside the builder; empty where they did not. Raise BuildError
    where the image says that it is of another stack.
    """

    about = json.loads(read_image_file(image, f"{HOME}/stack.json"))
    if about != json.loads(request.files[f"{CONTEXT}/stack.json"]):
        raise BuildError("the image is not of the stack that was built", "this is a bug: tell us")

    lists = read_package_lists(image, runner)
    return Artifact(
        stack=request.stack.full_name,
        key=request.key,
        sha256=sha256,
        size=image.stat().st_size,
        platform=request.platform,
        engine=request.engine.name,
        lock_sha256=request.lock.digest(),
        base=str(about["base"]),
        adopted=describe_adopted(request.stack),
        bundled=request.bundled,
        unconfined=unconfined,
        stand_in=request.lock.stand_in(),
        suite=suite_version,
        facts=request.lock.facts(request.platform),
        apt=lists.apt,
        pip=lists.pip,
        conda=lists.conda,
        other=lists.other,
        elsewhere=lists.elsewhere,
        unlisted=lists.unlisted,
        environment=_list_variables(request),
        mode=request.stack.launch.mode,
        mounts=list(request.stack.launch.mounts),
        slurm=request.stack.launch.slurm,
    )


def _list_variables(request: BuildRequest) -> dict[str, str]:
    """Return the image's environment: the base's variables, with the stack's over them."""
    base = request.lock.platform(request.platform).environment
    return base | request.stack.variables(base)
