"""Lmod's spider cache of the tree: rebuilt after each change, or `avail` and `spider` tell of what is no more."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hpcstack.errors import StoreError
from hpcstack.lease import held
from hpcstack.modules.paths import SPIDER, STALE
from hpcstack.modules.tree import Tree
from hpcstack.modules.trial import LMOD
from hpcstack.outputs import special
from hpcstack.process import Runner
from hpcstack.render.quote import lua

TOOL = "update_lmod_system_cache_files"
RC = """\
-- Written by hpcstack: LMOD_RC=<this file>, or these lines in the site's own lmodrc.lua, let Lmod use the cache.
scDescriptT = {{ {{ ["dir"] = {cache}, ["timestamp"] = {stamp} }} }}
"""


def rebuilt(tree: Tree, runner: Runner) -> str:
    """What became of the cache, in words: the change itself is made. Until it is new, it is marked stale."""
    lmods = (os.environ.get("LMOD_CMD", ""), *LMOD)
    tool = next((path for lmod in lmods if lmod and (path := Path(lmod).with_name(TOOL)).is_file()), None)
    try:
        if not tool and not (tree.root / SPIDER / "cache").exists():
            (tree.root / SPIDER / STALE).unlink(missing_ok=True)
        if not tool:
            return "no spider cache was made: there is no Lmod here"
        if not tree.marks.mode & 0o004:
            return "no spider cache is made: others may not read these modules, and Lmod leaves such out of it"
        with tree.acting(), held(tree.root / SPIDER / "lease"):
            return _made(tree, tool, runner)
    except (StoreError, OSError) as error:
        return f"the spider cache was NOT rebuilt: {error}"


def _made(tree: Tree, tool: Path, runner: Runner) -> str:
    top = tree.root / SPIDER
    cache, stamp, rc, stale = top / "cache", top / "time", top / "lmodrc.lua", top / STALE
    tree.marks.folder(tree.root, cache)
    for path in (*cache.iterdir(), stamp):  # the tool would write through a link
        if path.is_symlink() or special(path):
            path.unlink()
    before = stale.stat().st_mtime_ns if stale.exists() else 0
    clean = ["env", "-i", "PATH=/usr/bin:/bin", f"HOME={cache}", f"LMOD_CMD={tool.with_name('lmod')}"]
    argv = [*clean, "bash", str(tool), "-d", str(cache), "-t", str(stamp), str(tree.core)]
    done = runner.output(argv, timeout=600)
    if done.status:
        return f"the spider cache was NOT rebuilt: {' '.join(done.tail[-2:])}"
    text = RC.format(cache=lua(cache), stamp=lua(stamp))
    if not rc.exists() or rc.is_symlink() or rc.read_text(encoding="utf-8") != text:
        tree.marks.write(rc, text)
    for path in (cache, *cache.iterdir(), stamp):
        with contextlib.suppress(PermissionError, FileNotFoundError):  # another publisher's, whose marks it has
            tree.marks.mark(path)
    if stale.exists() and stale.stat().st_mtime_ns == before:  # another change has marked it anew meanwhile
        stale.unlink(missing_ok=True)
    return "the spider cache is rebuilt"
