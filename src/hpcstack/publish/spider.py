"""Lmod's spider cache of the tree: rebuilt after each change, or `avail` and `spider` tell of what
is no more.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.errors import StoreError
from hpcstack.core.lease import hold_lease
from hpcstack.core.quote import quote_lua
from hpcstack.publish.load_test import LMOD
from hpcstack.releases.layout import SPIDER, STALE

if TYPE_CHECKING:
    from hpcstack.core.process import Runner
    from hpcstack.releases.tree import Tree

TOOL = "update_lmod_system_cache_files"
RC = """\
-- Written by hpcstack: LMOD_RC=<this file>, or these lines in the site's own lmodrc.lua, let Lmod use the cache.
scDescriptT = {{ {{ ["dir"] = {cache}, ["timestamp"] = {stamp} }} }}
"""


def rebuild_cache(tree: Tree, runner: Runner) -> str:
    """What became of the cache, in words: the change itself is made.

    Until it is new, it is marked stale.
    """
    lmods = (os.environ.get("LMOD_CMD", ""), *LMOD)
    tool = next(
        (path for lmod in lmods if lmod and (path := Path(lmod).with_name(TOOL)).is_file()), None
    )
    try:
        if not tool and not (tree.root / SPIDER / "cache").exists():
            descriptors.remove_file(tree.root / SPIDER / STALE)
        if not tool:
            return "no spider cache was made: there is no Lmod here"
        if not tree.marks.mode & 0o004:
            return (
                "no spider cache is made: others may not read these modules, and Lmod leaves such "
                "out of it"
            )
        with tree.acting(), hold_lease(tree.root / SPIDER / "lease"):
            return _made(tree, tool, runner)
    except (StoreError, OSError) as error:
        return f"the spider cache was NOT rebuilt: {error}"


def is_cache_missing(tree: Tree) -> bool:
    """Whether there was a cache once, as its folder says, and its files are gone."""
    top = tree.root / SPIDER
    return (
        top.is_dir() and (top / "lmodrc.lua").exists() and not any((top / "cache").glob("*.lua*"))
    )


def _made(tree: Tree, tool: Path, runner: Runner) -> str:
    top = tree.root / SPIDER
    cache, stamp, rc, stale = top / "cache", top / "time", top / "lmodrc.lua", top / STALE
    tree.marks.folder(tree.root, cache)
    before = stale.stat().st_mtime_ns if stale.exists() else 0
    part = (
        top / f".{uuid.uuid4().hex[:12]}.part"
    )  # the tool would write through links, and over another's files
    descriptors.make_new_folder(part)
    try:
        with descriptors.pin_path(part) as own:
            clean = [
                "env",
                "-i",
                "PATH=/usr/bin:/bin",
                f"HOME={own}",
                f"LMOD_CMD={tool.with_name('lmod')}",
            ]
            argv = [
                *clean,
                "bash",
                str(tool),
                "-d",
                str(own / "cache"),
                "-t",
                str(own / "time"),
                str(tree.core),
            ]
            descriptors.make_new_folder(own / "cache")
            done = runner.output(argv, timeout=600)
            if done.status:
                return f"the spider cache was NOT rebuilt: {' '.join(done.tail[-2:])}"
            tree.marks.mark_files(own)
            for name in descriptors.names_in(own / "cache"):
                descriptors.rename_path(own / "cache" / name, cache / name)
            descriptors.rename_path(own / "time", stamp)
    finally:
        descriptors.remove_tree(part)
    text = RC.format(cache=quote_lua(cache), stamp=quote_lua(stamp))
    if not rc.exists() or rc.is_symlink() or rc.read_text(encoding="utf-8") != text:
        tree.marks.write(rc, text)
    if (
        stale.exists() and stale.stat().st_mtime_ns == before
    ):  # another change has marked it anew meanwhile
        descriptors.remove_file(stale)
    return "the spider cache is rebuilt"
