"""Lmod's spider cache of the tree: rebuilt after each change, or `avail` and `spider` tell of what is no more."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpcstack.lease import held
from hpcstack.modules.paths import STALE, STATE
from hpcstack.modules.tree import Tree
from hpcstack.modules.trial import LMOD
from hpcstack.process import Runner

TOOL = "update_lmod_system_cache_files"
RC = """\
-- Written by hpcstack: `export LMOD_RC={path}`, or these lines in the site's own lmodrc.lua, let Lmod use the cache.
scDescriptT = {{ {{ ["dir"] = "{cache}", ["timestamp"] = "{stamp}" }} }}
"""


def rebuilt(tree: Tree, runner: Runner) -> str:
    """What became of the cache, in words. It is marked stale until it has been made, so that a kill loses nothing."""
    tool = next((str(path) for lmod in LMOD if (path := Path(lmod).with_name(TOOL)).is_file()), "")
    stale = tree.root / STATE / STALE
    if not tool:
        stale.unlink(missing_ok=True)
        return "no spider cache: there is no Lmod here"
    cache, stamp, rc = (tree.root / STATE / name for name in ("cache", "cache.time", "lmodrc.lua"))
    with tree.acting(), held(tree.root / STATE / "cache.lease"):
        tree.marks.folder(tree.root, cache)
        clean = ["env", "-i", "PATH=/usr/bin:/bin", f"HOME={cache}", f"LMOD_CMD={Path(tool).with_name('lmod')}"]
        argv = [*clean, "bash", tool, "-d", str(cache), "-t", str(stamp), str(tree.core)]
        done = runner.output(argv, timeout=600)
        if done.status:
            return f"the spider cache was NOT rebuilt: {' '.join(done.tail[-2:])}"
        if not rc.exists():
            tree.marks.write(rc, RC.format(path=rc, cache=cache, stamp=stamp))
        for path in (cache, *cache.iterdir(), stamp):
            with contextlib.suppress(PermissionError, FileNotFoundError):  # another publisher's, whose marks it has
                path.chmod(tree.marks.mode | ((tree.marks.mode & 0o444) >> 2 if path.is_dir() else 0))
        stale.unlink(missing_ok=True)
    return "the spider cache is rebuilt"
