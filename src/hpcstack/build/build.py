"""Build: from a stack to an image in the store. Local disk first, the store by rename, one builder per key."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines import Job
from hpcstack.build.offline import lend
from hpcstack.build.request import BuildRequest, there
from hpcstack.core import sharing
from hpcstack.core.errors import BuildError, InputError, MissingToolError, StoreError
from hpcstack.core.files import digest_of, write_text, write_tree
from hpcstack.core.process import Completed, Runner
from hpcstack.core.progress import Progress
from hpcstack.lock.model import Lock
from hpcstack.releases.records import releases
from hpcstack.releases.tree import Tree
from hpcstack.render.image import CONTEXT
from hpcstack.render.site_files import CA_FILE, lent_files
from hpcstack.render.steps import HOME, steps
from hpcstack.site.load import Site
from hpcstack.site.logins import build_for, redacted
from hpcstack.store.artifact import Artifact
from hpcstack.store.cache import own_cache
from hpcstack.store.store import Store
from hpcstack.store.workspace import workspace
from hpcstack_smoke import __version__ as suite_version

if TYPE_CHECKING:
    from hpcstack.oci.client import Registry

ANOTHER = "--engine auto takes one that can"
MAX_CAT, MAX_LOG = 64 << 20, 32 << 20  # bytes of a file of the image, and of a log, that are read at once
HARDLY = 64 << 20  # bytes: a disk that has less is taken for full
MARK = re.compile(r"^== hpcstack (step|failed in step|command|status) (.*)$")
STEP_BEGUN = re.compile(r"^== hpcstack step (.*)$", re.MULTILINE)


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
    job = job_in(work, order.files, order.site, base, talk, order.lock.base.registry)
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
                redact(job.log, order.site)
        with job.log.open("a", encoding="utf-8") as log:
            log.write(job.times())
        if failed.status:
            raise explain(failed, job.log, kept, order.lock, order.site)
        return job
    finally:
        with store.acting("the log was not kept"):
            write_text(
                kept, redacted(text_of(job.log), order.site), sharing.log_mode()
            )  # also where the disk was full just now


def redact(log: Path, site: Site) -> None:
    """LOG without the site's logins, before it goes anywhere."""
    clean = log.with_name(f"{log.name}.clean")
    with log.open(encoding="utf-8", errors="replace") as lines, clean.open("w", encoding="utf-8") as out:
        for line in iter(lambda: lines.readline(1 << 16), ""):
            out.write(redacted(line, site))
    clean.replace(log)


def text_of(log: Path) -> str:
    """The beginning and the end of LOG: all of it, unless it is very long."""
    size = log.stat().st_size
    with log.open("rb") as file:
        text = file.read(MAX_LOG // 2)
        if size > MAX_LOG:
            text += b"\n... the log goes on ...\n"
        file.seek(max(len(text) if size <= MAX_LOG else 0, size - MAX_LOG // 2))
        return (text + file.read()).decode("utf-8", "replace")


def job_in(work: Path, files: Mapping[str, str], site: Site, base: Path, talk: Progress, registry: str) -> Job:
    """The folder of one build: rendered FILES, what the site lends to bases of REGISTRY, where the image will be."""
    settings = build_for(site, registry)
    if settings != site.build:
        talk(f"the logins in this site's URLs are not lent: registries.{registry}.trusted in site.yaml would do it")
    job = Job(
        context=work / "rendered",
        lent=work / "lent",
        work=work,
        base=base,
        cache=own_cache(site).top / "steps",
        output=work / "image.sqsh",
        log=work / "build.log",
        settings=settings,
        talk=talk,
    )
    write_tree(job.context, files)
    write_tree(job.lent, lent_files(site, settings))
    write_tree(work, {"build.log": ""})
    if bundle := site.build.ca_bundle:
        try:
            shutil.copyfile(bundle, job.lent / CA_FILE)
        except OSError as error:
            raise InputError(f"build.ca_bundle in site.yaml: {bundle}: {error.strerror}") from None
    return job


def explain(failed: Completed, log: Path, kept: Path, lock: Lock, site: Site) -> BuildError:
    """The step and command that failed, the last lines that count, and where the whole log is."""
    text = text_of(log)
    marks: dict[str, str] = {}
    for match in filter(None, map(MARK.match, text.splitlines())):
        marks.setdefault(match[1], match[2])  # a script's own failure comes before that of the step which ran it
    if "failed in step" in marks:
        command, status = marks.get("command", "?"), marks.get("status", "?")
        head = f"the build failed in step {marks['failed in step']}\n  > {command}  (exit {status})"
    elif begun := STEP_BEGUN.findall(text):
        head = f"the build failed in step {begun[-1]}: it ended without a word  (exit {failed.status})"
    else:
        head = f"the build failed\n  > {failed.command()}  (exit {failed.status})"
    said = [redacted(line, site) for line in failed.tail if not MARK.match(line)]
    said += [f"{name} came with {by}" for name, by in _brought(text).items()]
    advice = _full(log.parent) or _advice(text).replace("REGISTRY", lock.base.answered_by).replace("STACK", lock.stack)
    return BuildError("\n".join([head, *(f"  < {line}" for line in said)]), f"{advice}the whole log is {kept}")


def _full(folder: Path) -> str:
    """What to do where FOLDER's disk has hardly anything left: few tools say that this was why they failed."""
    left = shutil.disk_usage(folder).free
    full = f"{folder} has no space left ({left >> 20} MiB): make room, or set build.tmpdir in site.yaml; "
    return full if left < HARDLY else ""


def _brought(log: str) -> dict[str, str]:
    """{what a step replaced of NVIDIA's: the requirement that asked for it}, as pip said it."""
    _, found, lost = log.partition("this step replaced or removed what the base brings:")
    names = re.findall(r"^pip ([A-Za-z0-9._-]+)==", lost.partition("now there is:")[0], re.MULTILINE) if found else []
    out = {}
    for name in names[:20]:
        spelt = re.sub(r"[-_.]+", "[-_.]+", name)
        if match := re.search(rf"^Collecting {spelt}\b.*\(from (?P<by>.+)\)$", log, re.MULTILINE | re.IGNORECASE):
            out[name] = match["by"]
    return out


def _advice(log: str) -> str:
    known = (
        (
            r"replaced or removed what the base brings",
            "pin the requirement to a version that keeps the base's packages; ",
        ),
        (
            r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
            "name your proxy's CA as build.ca_bundle in site.yaml; ",
        ),
        (r"unauthorized|authentication required|denied: ", "log in: docker login REGISTRY; "),
        (
            r"Version '[^']*' for '[^']*' was not found",
            "the archive no longer has what was locked: hpcstack lock STACK; ",
        ),
        (
            r"THESE PACKAGES DO NOT MATCH THE HASHES",
            "the index has other files than were locked: hpcstack lock STACK; ",
        ),
        (r"ResolutionImpossible", "what is wanted does not go with what the base brings: loosen the requirement; "),
        (r"manifest unknown", "the registry no longer has what was locked: hpcstack lock STACK; "),
        (
            r"== hpcstack status 137|\bKilled\b",
            "137 is a kill: if the step did not do it itself, the machine or the job has too little memory; ",
        ),
        (r"No space left on device", "make room, or set build.tmpdir in site.yaml; "),
        (r"No matching distribution found", "check the version with: pip index versions NAME; "),
        (r"E: Unable to locate package", "check the package's name for the base's distribution; "),
    )
    return next((advice for pattern, advice in known if re.search(pattern, log, re.IGNORECASE)), "")


def _inspect(order: BuildRequest, job: Job, runner: Runner) -> Artifact:
    """What the finished image says of itself, read out of the squashfs."""

    def read(path: str) -> str:
        return cat(job.output, path.lstrip("/"), runner)

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


def cat(image: Path, path: str, runner: Runner) -> str:
    """The text of PATH in IMAGE, a squashfs. BuildError where it is not there, or is made to fill the memory."""
    try:
        with runner.read(["unsquashfs", "-cat", str(image), path]) as pipe:
            content = bytearray()
            while block := pipe.read(1 << 20):
                content += block
                if len(content) > MAX_CAT:
                    raise BuildError(f"the image's {path} is larger than {MAX_CAT >> 20} MiB")
    except BuildError as error:
        raise BuildError(
            f"the image's {path} cannot be read: {error.message}", "unsquashfs must be of squashfs-tools 4.5 or newer"
        ) from None
    return content.decode("utf-8", "replace")


def _variables(order: BuildRequest) -> dict[str, str]:
    base = order.lock.platform(order.platform).environment
    return base | order.stack.variables(base)


def _versions(text: str, sign: str) -> dict[str, str]:
    pairs = (line.partition(sign) for line in text.splitlines() if sign in line)
    return {name: version for name, _, version in pairs}
