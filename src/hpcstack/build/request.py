"""What one build is made from, and the key of its image: cheap to say, so that a build with nothing
to do is quick.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack import __version__
from hpcstack.build.engines import Engine, choose_engine
from hpcstack.core import data
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_text, write_text
from hpcstack.recipe.adopted import refuse_adopted
from hpcstack.store.cache import own_cache

if TYPE_CHECKING:
    from hpcstack.core.process import Runner
    from hpcstack.lock.model import Lock, LockedPlatform
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.recipe.model import Stack
    from hpcstack.render.steps import BuildStep
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

KEY = re.compile(r"[0-9a-f]{40}")
LEAST_BYTES = 2 << 30
UNPACKED = 5  # times the compressed base: unpacked, its squashfs in a SIF, and out of it
# The parts of this package that decide what is rendered, and what of it makes the key. A test
# renders a stack and compares them with the files that were opened.
DECIDING = ("build", "core", "squashfs", "render", "oci", "recipe", "lock", "hardware")


@dataclass(frozen=True)
class BuildRequest:
    """All that one build is made from."""

    stack: Stack
    lock: Lock
    site: Site
    platform: str
    engine: Engine
    why: str = ""  # that engine
    squash: bool = False  # packed anew, whatever the site's build.splice says
    bundled: str = ""  # the base, where a bundle brought it and no registry vouches for it

    @cached_property
    def files(self) -> dict[str, str]:
        """Return {path: text} of what the engine reads."""
        from hpcstack.render.image import build_files

        return build_files(self.stack, self.lock, self.platform, self.engine.definition)

    @cached_property
    def steps(self) -> tuple[BuildStep, ...]:
        """What runs inside the base, in order."""
        from hpcstack.render.steps import plan_steps

        locked = self.lock.platform(self.platform)
        return tuple(plan_steps(self.stack, locked, self.lock.sources))

    @property
    def needed_bytes(self) -> int:
        """Bytes of local disk that a build takes, from the compressed size of the base."""
        return needed_bytes(self.lock.platform(self.platform))

    @cached_property
    def key(self) -> str:
        """A digest of all that determines the image; which registry answered is not among it, the
        base's digest is.

        To know it, everything must be rendered. What was rendered from the same spec and lock by
        the same hpcstack before had the same key: that is remembered in the user's own cache, never
        in a group's. A key becomes a path.
        """
        try:
            memo = own_cache(self.site).top / "keys" / self._question
        except StoreError:  # a cache that cannot be ours remembers nothing
            return self._rendered_key()
        with contextlib.suppress(OSError, InputError):
            known = read_text(memo, 64, own=True)
            if KEY.fullmatch(known):
                return known
        key = self._rendered_key()
        with contextlib.suppress(OSError):
            write_text(memo, key, 0o600)
        return key

    def _rendered_key(self) -> str:
        settings: dict[str, object] = {
            "engine": self.engine.name,
            "compression": self.site.build.compression,
            "steps": [asdict(step) for step in self.steps],
        }
        if self._packed_anew:  # the same files, in other bytes
            settings["packed"] = "anew"

        digest = hashlib.sha256()
        for path, text in sorted({**self.files, "": json.dumps(settings, sort_keys=True)}.items()):
            digest.update(f"{path}\0{len(text)}\0{text}".encode())
        return digest.hexdigest()[:40]

    @property
    def _question(self) -> str:
        """A digest of all that the key is a function of, which takes no rendering to know."""
        parts = (
            self.stack.checksum(),
            self.lock.digest(),
            self.platform,
            self.engine.name,
            self.site.build.compression,
            "anew" if self._packed_anew else "",
            _describe_hpcstack(),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    @property
    def _packed_anew(self) -> bool:
        """Whether somebody said so, of an engine that would else splice."""
        return self.engine.splices and (self.squash or self.site.build.splice == "never")


def list_deciding_folders() -> list[Path]:
    """Return the folders of this hpcstack whose files decide what is rendered."""
    package = Path(__file__).parents[1]
    own = [package / name for name in DECIDING]
    return [data.find_data_folder("images"), package.parent / "hpcstack_smoke", *own]


def _describe_hpcstack() -> str:
    """Return this hpcstack's version, and the size and time of each file that decides."""
    facts = []
    for folder in list_deciding_folders():
        for top, _, names in os.walk(folder):
            for name in names:
                if name.endswith(".pyc"):
                    continue
                path = Path(top, name)
                about = path.stat()
                facts.append((str(path), about.st_size, about.st_mtime_ns))
    return f"{__version__} {sorted(facts)}"


def needed_bytes(locked: LockedPlatform) -> int:
    """Bytes of local disk that a build on this base takes, from the base's compressed size."""
    return max(LEAST_BYTES, UNPACKED * locked.compressed_bytes)


def request_build(
    recipe: Recipe,
    lock: Lock,
    site: Site,
    runner: Runner,
    platform: str = "",
    engine: str = "",
    *,
    offline: bool = False,
    squash: bool = False,
) -> BuildRequest:
    """What would be built.

    MissingToolError if no engine can be used here, or none without a network (OFFLINE).
    """
    refuse_adopted(recipe)
    if lock.not_looked_up:
        raise InputError(
            f"no registry has said what the base of {lock.stack} is", f"hpcstack lock {lock.stack}"
        )
    platform = platform or recipe.stack.base.platforms[0]
    chosen, why = choose_engine(engine or site.build.engine, runner, offline=offline)
    return BuildRequest(recipe.stack, lock, site, platform, chosen, why, squash)


def find_built(request: BuildRequest, store: Store) -> Artifact | None:
    """The image of REQUEST where STORE has it; its stack's pointer then names it.

    One that was built on the base of a bundle does not count where the registry's base is wanted.
    """
    try:
        found = store.artifact(request.key)
    except StoreError:  # damaged, or without its image: it is made anew
        return None
    if found and found.bundled and not request.bundled:
        return None
    if found and request.platform == request.stack.base.platforms[0]:
        store.point(request.stack.full_name, found.key)
    elif found:
        with contextlib.suppress(
            StoreError
        ):  # one that this user may not write: it knows what it knew
            store.point(request.stack.full_name, found.key, request.platform)
    return found
