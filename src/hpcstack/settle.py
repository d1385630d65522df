"""Settle: what a stack's packages and sources mean today, asked inside its base, written into its lock."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform as machine
import re
from collections.abc import Callable
from pathlib import Path

from hpcstack.build import explain, job_in, needs, progress_of
from hpcstack.engines import Engine, choose
from hpcstack.errors import BuildError, HpcstackError, InputError
from hpcstack.lock.check import unresolved
from hpcstack.lock.inside import read_apt, read_conda, read_pip, want_files
from hpcstack.lock.model import Lock, LockedConda, LockedPlatform
from hpcstack.process import Runner
from hpcstack.render.image import KERNEL_NAMES, base_definition
from hpcstack.render.lend import variables
from hpcstack.render.steps import conda_files
from hpcstack.render.template import plain
from hpcstack.site import Site
from hpcstack.spec import guard
from hpcstack.spec.model import Stack
from hpcstack.spec.packages import Source
from hpcstack.store import Store, write_text, write_tree
from hpcstack.workspace import workspace

Say = Callable[[str], None]


def settle(stack: Stack, lock: Lock, site: Site, runner: Runner, say: Say, before: Lock | None = None) -> Lock:
    """LOCK with everything resolved that can be on this machine; what cannot is left in `unresolved`.

    Platforms that another machine has settled are taken from BEFORE, the lock that was there, if it is of the same spec
    and of the same base.
    """
    sources = {source.name: source.commit or _commit(source, site, runner) for source in stack.packages.source}
    platforms = dict(lock.base.platforms)
    for name, locked in lock.base.platforms.items():
        if KERNEL_NAMES[name] == machine.machine() and _asks(stack):
            platforms[name] = _inside(stack, lock, name, locked, site, runner, say)
        elif before and before.spec_sha256 == lock.spec_sha256 and name in before.base.platforms:
            old = before.base.platforms[name]
            platforms[name] = old if old.digest == locked.digest else locked
    base = lock.base.model_copy(update={"platforms": platforms})
    whole = lock.model_copy(update={"base": base, "sources": sources})
    return whole.model_copy(update={"unresolved": unresolved(stack, whole)})


def _commit(source: Source, site: Site, runner: Runner) -> str:
    """The commit that REF names now, a tag peeled to what it points at."""
    lent = {name: value for name, value in variables(site).items() if name.startswith("GIT_CONFIG") or "proxy" in name}
    bundle = {"GIT_SSL_CAINFO": site.build.ca_bundle} if site.build.ca_bundle else {}
    env = {"GIT_TERMINAL_PROMPT": "0", **lent, **bundle}
    done = runner.output(["git", "ls-remote", "--", source.git], env=env, timeout=120)
    rows = {name: commit for commit, _, name in (line.partition("\t") for line in done.stdout.splitlines()) if name}
    # git's own patterns match the end of a name: release/v1 is not v1.
    wanted = (f"refs/tags/{source.ref}^{{}}", f"refs/tags/{source.ref}", f"refs/heads/{source.ref}", source.ref)
    found = next((rows[name] for name in wanted if name in rows), "")
    if done.status or not found:
        said = f": {done.tail[-1]}" if done.status and done.tail else ""
        raise InputError(
            f"{source.git} has no {source.ref!r}{said}", f"packages.source {source.name}: check git and ref"
        )
    return found


def _inside(
    stack: Stack, lock: Lock, name: str, locked: LockedPlatform, site: Site, runner: Runner, say: Say
) -> LockedPlatform:
    engine = choose(site.build.engine, runner)
    with workspace(site, runner, needs(locked)) as work:
        base = import_base(lock, name, work / "import", site, engine, runner, say)
        say(f"asking the base's own apt and pip for {stack.full_name}")
        job = job_in(work / "ask", {}, site, lambda _: None)
        folder = work / "ask/hpcstack"
        script = {"build/settle.sh": plain("images", "settle.sh"), "build/lib.sh": plain("images", "lib.sh")}
        write_tree(folder, {**script, "build/guard.sh": guard.shell(), **conda_files(stack, None), **want_files(stack)})
        done = engine.run_inside(base, folder, job, runner)
        if done.status:
            kept = bases(site) / f"{stack.full_name}-lock.log"
            log = job.log.read_text(encoding="utf-8", errors="replace")
            with contextlib.suppress(OSError):
                write_text(kept, log)
            raise _refused(explain(done, job.log, kept, lock), log)
        answers = folder / "settled"
        packages = stack.packages
        conda = read_conda(_text(answers / "conda.json")) if packages.conda.packages else None
        _own_python(conda or (), locked)
        found = {
            "apt": read_apt(_text(answers / "apt.simulated"), _text(answers / "apt.records")) if packages.apt else None,
            "conda": conda,
            "pip": read_pip(_text(answers / "pip.json")) if packages.pip else None,
        }
        return locked.model_copy(update=found)


def _own_python(conda: tuple[LockedConda, ...], locked: LockedPlatform) -> None:
    """Conda's prefix comes first on PATH: its Python would hide the one that NVIDIA built torch for."""
    if "PYTORCH_VERSION" in locked.environment and any(entry.name == "python" for entry in conda):
        raise InputError("conda brings its own python, which would hide that of NVIDIA's torch",
                         "leave out what needs it, install it by pip, or take another base")  # fmt: skip


def _asks(stack: Stack) -> bool:
    return bool(stack.packages.apt or stack.packages.pip or stack.packages.conda.packages)


ASKED_WRONGLY = re.compile(
    r"No matching distribution|ResolutionImpossible|Unable to locate package|was not found|"
    r"has no installation candidate|No candidates were found|Cannot solve",
    re.IGNORECASE,
)


def _refused(failed: HpcstackError, log: str) -> HpcstackError:
    """What the user asked for is wrong where the base's own tools say so; else the asking failed."""
    if not isinstance(failed, BuildError):
        return failed
    kind: type[HpcstackError] = InputError if ASKED_WRONGLY.search(log) else BuildError
    return kind(failed.message.replace("the build failed in step", "not locked: inside the base, step", 1), failed.hint)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def bases(site: Site) -> Path:
    """The folder of imported bases: a cache, beside Apptainer's where the site names one."""
    own = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    shared = Path(site.build.cachedir) / f"hpcstack-bases-{os.getuid()}"  # each user's own: what lies there is trusted
    return shared if site.build.cachedir else Path(own) / "hpcstack/bases"


def import_base(lock: Lock, name: str, work: Path, site: Site, engine: Engine, runner: Runner, say: Say) -> Path:
    """The base of platform NAME as one squashfs, imported once and kept by its digest."""
    digest = lock.platform(name).digest
    cache = Store(bases(site))
    final = cache.top / f"{digest.replace(':', '-')}.sqsh"
    if final.exists():
        return final
    key = f"base{hashlib.sha256(digest.encode()).hexdigest()[:16]}"
    with cache.lease(key, lambda owner: say(f"waiting for another import of the base: {owner}")):
        if final.exists():
            return final
        pinned = f"{lock.base.registry}/{lock.base.repository}@{digest}"
        say(f"importing {lock.base.repository}:{lock.base.tag} ({digest[:19]})")
        job = job_in(work, {"apptainer.def": base_definition(pinned)}, site, progress_of(say))
        with cache.acting("the base was not imported"):
            done = engine.build(job, runner)
            if done.status:
                kept = cache.top / "import.log"
                write_text(kept, job.log.read_text(encoding="utf-8", errors="replace"))
                raise explain(done, job.log, kept, lock)
            cache.adopt(job.output, final)
    return final
