"""Lmod's spider cache of the tree: rebuilt after each change.

Without that `module avail` and `module spider` would show releases that are gone.

Tested in tests/unit/publish/test_damage.py.
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

TOOL = "update_lmod_system_cache_files"  # Lmod's own, beside its `lmod`
RC = (
    "-- Written by hpcstack: LMOD_RC=<this file>, or these lines in the site's own lmodrc.lua, "
    "let Lmod use the cache.\n"
    'scDescriptT = {{ {{ ["dir"] = {cache}, ["timestamp"] = {stamp} }} }}\n'
)


def rebuild_cache(tree: Tree, runner: Runner) -> str:
    """Rebuild the spider cache of TREE, and return what became of it, in words.

    A cache that cannot be made is no error: the change of the tree itself is done. It stays marked
    stale, and the next verb tries again.
    """
    tool = _find_tool()
    try:
        if not tool:
            # Where there is no Lmod and never was a cache, nothing can be stale.
            if not (tree.root / SPIDER / "cache").exists():
                descriptors.remove_file(tree.root / SPIDER / STALE)
            return "no spider cache was made: there is no Lmod here"
        if not tree.marks.mode & 0o004:
            return (
                "no spider cache is made: others may not read these modules, and Lmod leaves such "
                "modules out of it"
            )
        with tree.acting(), hold_lease(tree.root / SPIDER / "lease", sharing=tree.sharing):
            return _write_cache(tree, tool, runner)
    except (StoreError, OSError) as error:
        return f"the spider cache was NOT rebuilt: {error}"


def _find_tool() -> Path | None:
    """Return Lmod's tool that makes spider caches; None where no Lmod is found."""
    for lmod in (os.environ.get("LMOD_CMD", ""), *LMOD):
        if lmod:
            tool = Path(lmod).with_name(TOOL)
            if tool.is_file():
                return tool
    return None


def is_cache_missing(tree: Tree) -> bool:
    """Whether there was a cache once, as its lmodrc.lua says, and its files are gone."""
    top = tree.root / SPIDER
    had_cache = top.is_dir() and (top / "lmodrc.lua").exists()
    return had_cache and not any((top / "cache").glob("*.lua*"))


def _write_cache(tree: Tree, tool: Path, runner: Runner) -> str:
    """Run TOOL in a new folder, and move what it made into place. Return what became of it."""
    top = tree.root / SPIDER
    cache, stamp, rc, stale = top / "cache", top / "time", top / "lmodrc.lua", top / STALE
    tree.marks.folder(tree.root, cache)
    marked_at = stale.stat().st_mtime_ns if stale.exists() else 0

    # In its final place the tool would write through links, and over another user's files.
    part = top / f".{uuid.uuid4().hex[:12]}.part"
    descriptors.make_new_folder(part)
    try:
        with descriptors.pin_path(part) as own:
            lmod = tool.with_name("lmod")
            environment = ["PATH=/usr/bin:/bin", f"HOME={own}", f"LMOD_CMD={lmod}"]
            argv = ["env", "-i", *environment, "bash", str(tool)]
            argv += ["-d", str(own / "cache"), "-t", str(own / "time"), str(tree.core)]
            descriptors.make_new_folder(own / "cache")
            done = runner.output(argv, timeout=600)
            if done.status:
                return f"the spider cache was NOT rebuilt: {' '.join(done.tail[-2:])}"

            tree.marks.mark_files(own)
            for name in descriptors.list_names_in(own / "cache"):
                descriptors.rename_path(own / "cache" / name, cache / name)
            descriptors.rename_path(own / "time", stamp)
    finally:
        descriptors.remove_tree(part)

    text = RC.format(cache=quote_lua(cache), stamp=quote_lua(stamp))
    if not rc.exists() or rc.is_symlink() or rc.read_text(encoding="utf-8") != text:
        tree.marks.write(rc, text)
    # Where another change has marked the cache anew meanwhile, it stays stale.
    if stale.exists() and stale.stat().st_mtime_ns == marked_at:
        descriptors.remove_file(stale)
    return "the spider cache is rebuilt"
