"""What one build is made from, and the key of its image.

The key is remembered, so that a build that has nothing to do ends at once.
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
from hpcstack.build.options import NO_BUILD_OPTIONS, BuildOptions
from hpcstack.core import data
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_text, write_text
from hpcstack.recipe.adopted import refuse_adopted
from hpcstack.store.cache import open_own_cache

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
# Local disk that a build takes, in multiples of the compressed base: the base unpacked, its
# squashfs inside a SIF, and that squashfs extracted from it.
UNPACKED = 5
# The packages of hpcstack whose code decides what is rendered, or how the key is made of it. A test
# renders a stack and compares them with the files that were opened.
DECIDING = ("build", "core", "squashfs", "render", "oci", "recipe", "lock", "hardware")


@dataclass(frozen=True)
class BuildRequest:
    """Everything that one build is made from."""

    stack: Stack
    lock: Lock
    site: Site
    platform: str
    engine: Engine
    why: str = ""  # the reason for this engine
    options: BuildOptions = NO_BUILD_OPTIONS
    bundled: str = ""  # name of the base if a bundle brought it: no registry vouches for it
    # The sha256 of an earlier image that is to be built once more, byte for byte. An image with other
    # bytes is not stored then, and the stack's pointer stays where it is.
    again: str = ""

    @cached_property
    def files(self) -> dict[str, str]:
        """The rendered files that the engine reads, {path: text}."""
        from hpcstack.render.image import build_files

        return build_files(self.stack, self.lock, self.platform, self.engine.definition)

    @cached_property
    def steps(self) -> tuple[BuildStep, ...]:
        """The steps that run inside the base, in order."""
        from hpcstack.render.steps import plan_steps

        locked = self.lock.platform(self.platform)
        return tuple(plan_steps(self.stack, locked, self.lock.sources))

    @property
    def needed_bytes(self) -> int:
        """The local disk space that the build takes, in bytes."""
        return needed_bytes(self.lock.platform(self.platform))

    @cached_property
    def key(self) -> str:
        """The digest of all that determines the image, as 40 hexadecimal digits.

        The base's digest is part of it; the registry that answered for the base is not, so a mirror
        changes no key.

        Everything must be rendered to compute it, so it is remembered by what it is a function of:
        spec, lock, settings, and this hpcstack's own files. The memo lies in the user's own cache,
        never in a group's, and is checked before use: a key becomes a path in the store.
        """
        try:
            memo = open_own_cache(self.site).top / "keys" / self._memo_name
        except StoreError:  # the cache belongs to somebody else: do without a memo
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
        """Render everything, and return the digest of it."""
        settings: dict[str, object] = {
            "engine": self.engine.name,
            "compression": self.site.build.compression,
            "steps": [asdict(step) for step in self.steps],
        }
        # A spliced and a packed image have the same files, but other bytes.
        if self._packed_anew:
            settings["packed"] = "anew"

        digest = hashlib.sha256()
        for path, text in sorted({**self.files, "": json.dumps(settings, sort_keys=True)}.items()):
            digest.update(f"{path}\0{len(text)}\0{text}".encode())
        return digest.hexdigest()[:40]

    @property
    def _memo_name(self) -> str:
        """The name under which the key is remembered: a digest of all that the key depends on.

        It takes no rendering to compute.
        """
        packed = "anew" if self._packed_anew else ""
        parts = (
            self.stack.checksum(),
            self.lock.digest(),
            self.platform,
            self.engine.name,
            self.site.build.compression,
            packed,
            _describe_hpcstack(),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    @property
    def _packed_anew(self) -> bool:
        """Whether user or site want the image packed whole, by an engine that would splice it."""
        return self.engine.splices and (self.options.squash or self.site.build.splice == "never")


def list_deciding_folders() -> list[Path]:
    """Return the folders of this hpcstack whose files decide what is rendered."""
    package = Path(__file__).parents[1]
    own = [package / name for name in DECIDING]
    return [data.find_data_folder("images"), package.parent / "hpcstack_smoke", *own]


def _describe_hpcstack() -> str:
    """Return this hpcstack's version, and size and time of each file that decides what is rendered.

    So an edit in a checkout makes remembered keys stale, although the version is the same.
    """
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
    """Return the bytes of local disk that a build on the LOCKED base takes: an upper estimate."""
    return max(LEAST_BYTES, UNPACKED * locked.compressed_bytes)


def request_build(
    recipe: Recipe,
    lock: Lock,
    site: Site,
    runner: Runner,
    options: BuildOptions = NO_BUILD_OPTIONS,
) -> BuildRequest:
    """Return the request for RECIPE as locked by LOCK, built as OPTIONS say.

    Raise InputError for an adopted stack, and for a lock made without asking a registry. Raise
    MissingToolError if no engine can be used here, or none that builds without a network.
    """
    refuse_adopted(recipe)
    if lock.not_looked_up:
        raise InputError(
            f"no registry has said what the base of {lock.stack} is", f"hpcstack lock {lock.stack}"
        )

    platform = options.platform or recipe.stack.base.platforms[0]
    engine = options.engine or site.build.engine
    chosen, why = choose_engine(engine, runner, offline=options.offline)
    return BuildRequest(recipe.stack, lock, site, platform, chosen, why, options)


def find_built(request: BuildRequest, store: Store) -> Artifact | None:
    """Return the image of REQUEST, and point its stack at it; None where STORE does not have it.

    An image on the base of a bundle does not count where the registry's base is wanted.
    """
    try:
        found = store.artifact(request.key)
    except StoreError:  # damaged, or its file is gone: build it again
        return None
    if found is None:
        return None
    if found.bundled and not request.bundled:
        return None

    if request.platform == request.stack.base.platforms[0]:
        store.point(request.stack.full_name, found.key)
    else:
        # This user may lack the right to write STORE: its pointer then stays as it is.
        with contextlib.suppress(StoreError):
            store.point(request.stack.full_name, found.key, request.platform)
    return found
