"""Build: from a stack to an image in the store. Local disk first, the store by rename, one builder per key."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack.build.diagnose_log import explain_failure
from hpcstack.build.job import make_job, read_log, redact_log
from hpcstack.build.offline import lend
from hpcstack.build.request import BuildRequest, there
from hpcstack.core import sharing
from hpcstack.core.errors import BuildError, InputError, MissingToolError, StoreError
from hpcstack.core.files import digest_of, write_text
from hpcstack.releases.records import releases
from hpcstack.releases.tree import Tree
from hpcstack.render.image import CONTEXT
from hpcstack.render.steps import HOME, steps
from hpcstack.site.logins import redacted
from hpcstack.store.artifact import Artifact
from hpcstack.store.contents import read_file
from hpcstack.store.store import Store
from hpcstack.store.workspace import workspace
from hpcstack_smoke import __version__ as suite_version

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.build.engines import Job
    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.oci.client import Registry

ANOTHER = "--engine auto takes one that can"


@dataclass(frozen=True)
class How:
    """How a build goes about it: FRESH takes nothing from earlier builds, OFFLINE has no network."""

    fresh: bool = False
    offline: bool = False


def build(
    order: BuildRequest, store: Store, registry: Registry, runner: Runner, talk: Progress, how: How = How()
) -> tuple[Artifact, bool]:
    """The image of ORDER, and whether it had to be built. BuildError leaves nothing in the store."""
    from hpcstack.build.base import base_of, bundled_base, imported_base

    given = bundled_base(order.lock, order.platform, order.site) if how.offline else None
    if how.offline and imported_base(order.lock, order.platform, order.site).exists():
        given = None  # what a registry's digest vouches for comes first
    elif how.offline and not given:
        raise InputError(
            f"the base of {order.stack.full_name} is not here, and --offline fetches nothing",
            "hpcstack bundle create where there is a network, hpcstack bundle apply here",
        )
    if given:  # an image on it is never taken for one on the registry's base: request.there
        order = replace(order, bundled=given.stem)
    if not how.fresh and (found := there(order, store)):
        return found, False
    if reason := order.engine.usable(runner):
        raise MissingToolError(f"the engine {order.engine.name} cannot be used here: {reason}", ANOTHER)
    base = given or base_of(order.lock, order.platform, order.site, registry, runner, talk)
    name = order.stack.full_name
    with store.lease(order.key, lambda owner: talk(f"waiting for another builder of {name}: {owner}")):
        if not how.fresh and (found := there(order, store)):
            return found, False
        talk(f"building {name} with {order.engine.name} ({order.why}; key {order.key[:12]})")
        if given:
            talk("on the base that a bundle brought: whoever made the bundle is trusted with this image")
        with workspace(order.site, runner, order.needs) as work:
            return _build_in(work, order, base, store, runner, talk, how), True


def _build_in(
    work: Path, order: BuildRequest, base: Path, store: Store, runner: Runner, talk: Progress, how: How
) -> Artifact:  # fmt: skip
    kept = store.top / "logs" / f"{order.stack.full_name}-{order.key[:12]}.log"
    job = made_in(work, order, base, runner, talk, how, kept)
    talk.event("phase", name="inspect")
    artifact = _inspect(order, job, runner)
    talk.event("phase", name="store")
    talk(f"storing {job.output.stat().st_size / 1e6:.0f} MB")
    old = _stored(order, store)
    replaces = how.fresh or bool(old and old.bundled and not order.bundled)
    same = old is not None and digest_of(old.image) == artifact.sha256
    if old and how.fresh and same and old.bundled == order.bundled:
        talk("the same bytes as the image that is there, which stays")
        return old
    if names := _others(order, store, artifact.sha256):
        stays = (
            "stays"
            if old
            else f"is gone; the new one is not put in its place, since {names[0]} was proven with the old"
        )
        raise StoreError(
            f"the new image differs from the one published as {names[0]}, which {stays}",
            f"the files that differ: hpcstack verify --reproducible {order.stack.full_name}" if old else
            f"bring {store.top}/images/{order.key} back from a backup; or hpcstack remove {names[0]}, and build again",
        )  # fmt: skip
    return store.put(artifact, job.output, job.log, instead=replaces or old is None)


def _others(order: BuildRequest, store: Store, sha256: str) -> list[str]:
    """The releases of the image of ORDER, as far as they can come back, that were made of other bytes than SHA256."""
    tree = Tree(order.site.module_root)
    found = [name for name, record in releases(store)
             if record["key"] == order.key and record.get("sha256", sha256) != sha256]  # fmt: skip
    states = {f"{name}/{one.release}": one.state for name in tree.names() for one in tree.ledger(name).entries}
    return [name for name in found if states.get(name, "live") not in ("removed", "gone")]


def _stored(order: BuildRequest, store: Store) -> Artifact | None:
    """The whole image of ORDER that is there; a damaged one makes way for the new one."""
    try:
        return store.artifact(order.key)
    except StoreError:
        return None


def made_in(work: Path, order: BuildRequest, base: Path, runner: Runner, talk: Progress, how: How, kept: Path) -> Job:
    """The image of ORDER made in WORK, in no store yet. The log is KEPT whatever becomes of it."""
    job = make_job(work, order.files, order.site, base, talk, order.lock.base.registry)
    locked = order.lock.platform(order.platform)
    planned = tuple(steps(order.stack, locked, order.lock.sources))
    if how.offline:
        lend(job.lent, order)
    job = replace(job, steps=planned, environment=locked.environment, fresh=how.fresh, offline=how.offline)
    store = Store(order.site.store)
    talk.event("phase", name="build")
    try:
        try:
            with store.acting("the build ran into the machine's limits"):
                failed = order.engine.build(job, runner)
        finally:
            with store.acting("the log was not kept"):
                redact_log(job.log, order.site)
        with job.log.open("a", encoding="utf-8") as log:
            log.write(job.times())
        if failed.status:
            raise explain_failure(failed, job.log, kept, order.lock, order.site)
        return job
    finally:
        with store.acting("the log was not kept"):
            write_text(
                kept, redacted(read_log(job.log), order.site), sharing.log_mode()
            )  # also where the disk was full just now


def _inspect(order: BuildRequest, job: Job, runner: Runner) -> Artifact:
    """What the finished image says of itself, read out of the squashfs."""

    def read(path: str) -> str:
        return read_file(job.output, path.lstrip("/"), runner)

    about = json.loads(read(f"{HOME}/stack.json"))
    if about != json.loads(order.files[f"{CONTEXT}/stack.json"]):
        raise BuildError("the image is not of the stack that was built", "this is a bug: tell us")
    return Artifact(
        stack=order.stack.full_name,
        key=order.key,
        sha256=digest_of(job.output),
        size=os.path.getsize(job.output),  # noqa: PTH202
        platform=order.platform,
        engine=order.engine.name,
        lock_sha256=order.lock.digest(),
        base=str(about["base"]),
        bundled=order.bundled,
        stand_in=order.lock.stand_in(),
        suite=suite_version,
        facts=order.lock.facts(order.platform),
        apt=_versions(read(f"{HOME}/packages/apt.txt"), "="),
        pip=_versions(read(f"{HOME}/packages/pip.txt"), "=="),
        conda=_versions(read(f"{HOME}/packages/conda.txt"), "="),
        environment=_variables(order),
        mode=order.stack.launch.mode,
        mounts=list(order.stack.launch.mounts),
    )


def _variables(order: BuildRequest) -> dict[str, str]:
    base = order.lock.platform(order.platform).environment
    return base | order.stack.variables(base)


def _versions(text: str, sign: str) -> dict[str, str]:
    pairs = (line.partition(sign) for line in text.splitlines() if sign in line)
    return {name: version for name, _, version in pairs}
