"""Lmod's spider cache of the tree: rebuilt after each change.

Without that `module avail` and `module spider` would show releases that are gone.

To make it, Lmod evaluates every modulefile, and Lmod's sandbox has os.execute. So it never does so
as the caller: it runs in an enclosure (build/engines/enclosure.py), and finds there a copy of what
publishers wrote. What it prints becomes the cache only if it is data (publish/lua_data.py), since
the Lmod of each user executes the cache. Where no enclosure can be made there is no cache, and Lmod
reads the modulefiles themselves.

Tested in tests/hostile/test_colleagues.py and tests/unit/publish/test_damage.py.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.enclosure import run_strangers_code, with_libraries
from hpcstack.core import descriptors
from hpcstack.core.errors import BuildError, InputError, StoreError
from hpcstack.core.files import read_bytes, read_text
from hpcstack.core.gate import walk_trusted
from hpcstack.core.lease import hold_lease
from hpcstack.core.quote import quote_lua
from hpcstack.publish.load_test import LMOD
from hpcstack.publish.lua_data import check_lua_data
from hpcstack.releases.layout import CORE, MORE, SPIDER, STALE, STATE

if TYPE_CHECKING:
    from hpcstack.core.process import Runner
    from hpcstack.releases.tree import Tree

LMODS_SPIDER = "spider"  # the program that reads modulefiles, beside Lmod's `lmod`
CACHE = "spiderT.lua"
# What its file may define: l_rptSpiderT in Lmod's src/spider.in.lua, and what that exports, in
# Lmod 8.6 to 9.2.
DEFINED = frozenset({"timestampFn", "mrcT", "mrcMpathT", "spiderT", "mpathMapT", "brokenT"})
PARTS = (CORE, MORE, STATE)  # of the tree, that modulefiles for Lmod are made of
MOST_CACHE = 256 << 20  # bytes: 25,000 modulefiles
MOST_MODULEFILE = 1 << 20  # bytes
SPIDER_S = 600
RC = (
    "-- Written by hpcstack: LMOD_RC=<this file>, or these lines in the site's own lmodrc.lua, "
    "let Lmod use the cache.\n"
    'scDescriptT = {{ {{ ["dir"] = {cache}, ["timestamp"] = {stamp} }} }}\n'
)


def rebuild_cache(tree: Tree, runner: Runner) -> str:
    """Rebuild the spider cache of TREE, and return what became of it, in words.

    A cache that cannot be made is no error: the change of the tree itself is done. Then there is
    none, so that Lmod reads the modulefiles; it stays marked stale, and the next verb tries again.
    """
    spider = _find_spider()
    try:
        if not spider:
            # Where there is no Lmod and never was a cache, nothing can be stale.
            if not _find_cache(tree).exists():
                descriptors.remove_file(tree.root / SPIDER / STALE)
            _remove_cache(tree)
            return "no spider cache was made: there is no Lmod here"
        if not tree.marks.mode & 0o004:
            return (
                "no spider cache is made: others may not read these modules, and Lmod leaves such "
                "modules out of it"
            )
        with tree.acting(), hold_lease(tree.root / SPIDER / "lease", sharing=tree.sharing):
            return _write_cache(tree, spider, runner)
    except (StoreError, BuildError, InputError, OSError) as error:
        _remove_cache(tree)
        return (
            f"the spider cache was NOT rebuilt: {error}. There is none now, and Lmod reads the "
            "modulefiles themselves"
        )


def _find_spider() -> Path | None:
    """Return the program of Lmod's that reads modulefiles; None where no Lmod is found."""
    for lmod in (os.environ.get("LMOD_CMD", ""), *LMOD):
        if lmod and Path(lmod).is_absolute():
            spider = Path(lmod).with_name(LMODS_SPIDER)
            if spider.is_file():
                return spider
    return None


def _find_cache(tree: Tree) -> Path:
    """Return the folder of the spider cache, whether it is there or not."""
    return tree.root / SPIDER / "cache"


def _remove_cache(tree: Tree) -> None:
    """Remove the cache's files: an old cache names what is gone, and hides what is new."""
    cache = _find_cache(tree)
    with contextlib.suppress(StoreError, OSError):
        for name in descriptors.list_names_in(cache):
            descriptors.remove_file(cache / name)


def is_cache_missing(tree: Tree) -> bool:
    """Whether there was a cache once, as its lmodrc.lua says, and its files are gone."""
    top = tree.root / SPIDER
    had_cache = top.is_dir() and (top / "lmodrc.lua").exists()
    return had_cache and not any(_find_cache(tree).glob("*.lua*"))


def _write_cache(tree: Tree, spider: Path, runner: Runner) -> str:
    """Have SPIDER read TREE, and write what it says as the cache. Return what became of it."""
    top = tree.root / SPIDER
    cache, stamp, rc, stale = _find_cache(tree), top / "time", top / "lmodrc.lua", top / STALE
    tree.marks.folder(tree.root, cache)
    marked_at = stale.stat().st_mtime_ns if stale.exists() else 0

    text = _read_modulefiles(tree, spider, runner)

    # Lmod takes a cache that is as new as its stamp, or newer.
    tree.marks.write(stamp, "")
    tree.marks.write(cache / CACHE, text)
    # What Lmod's own tool has made once: Lmod would rather read that.
    for name in descriptors.list_names_in(cache):
        if name != CACHE:
            descriptors.remove_file(cache / name)

    described = RC.format(cache=quote_lua(cache), stamp=quote_lua(stamp))
    if _read_own(rc, tree) != described:
        tree.marks.write(rc, described)
    # Where another change has marked the cache anew meanwhile, it stays stale.
    if stale.exists() and stale.stat().st_mtime_ns == marked_at:
        descriptors.remove_file(stale)
    return "the spider cache is rebuilt"


def _read_own(path: Path, tree: Tree) -> str:
    """Return the text of PATH as a publisher of TREE wrote it; empty for anything else."""
    try:
        return read_text(path, MOST_MODULEFILE, publishers=tree.sharing)
    except (InputError, OSError):
        return ""


def _read_modulefiles(tree: Tree, spider: Path, runner: Runner) -> str:
    """Return what SPIDER prints about the modulefiles that TREE's publishers wrote: Lua data."""
    with tempfile.TemporaryDirectory(prefix="hpcstack-") as name:
        own, copies = Path(name), Path(name, "copies")
        # A tree in /usr or /opt, say, is shown as it is: a copy can only take a folder's place.
        parts = [part for part in PARTS if (tree.root / part).is_dir()]
        for part in parts:
            _copy_trusted(tree, part, copies)

        printed = run_strangers_code(
            [f"LMOD_CMD={spider.with_name('lmod')}", str(spider), "-o", "spiderT", str(tree.core)],
            own,
            runner,
            shown=[*_list_installed(spider), *_list_interpreter(spider)],
            in_place_of={tree.root / part: copies / part for part in parts},
            most=MOST_CACHE,
            timeout=SPIDER_S,
        )
    text = printed.decode("utf-8", "surrogateescape")
    check_lua_data(text, DEFINED)
    if any(tree.core.glob("[!.]*/[!.]*.lua")) and str(tree.core) not in text:
        raise BuildError(f"Lmod has found no modulefile in {tree.core}")
    return text


def _list_installed(spider: Path) -> list[Path]:
    """Return the folder that Lmod is installed in, which SPIDER lies in a folder of."""
    installed = spider.parent.parent
    return [installed] if installed != Path("/") else [spider.parent]


def _list_interpreter(program: Path) -> list[Path]:
    """Return the interpreter that the first line of PROGRAM names, and its libraries."""
    first = program.read_bytes()[:200].splitlines()[0].decode(errors="replace")
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words:
        return []
    interpreter = Path(words[0])
    # Modules of Lua's lie beside it in the prefixes of Spack and EasyBuild.
    modules = interpreter.parent.parent / "share/lua"
    return [*with_libraries(interpreter), *([modules] if modules.is_dir() else [])]


def _copy_trusted(tree: Tree, part: str, copies: Path) -> None:
    """Copy what publishers wrote in the folder PART of TREE to COPIES/PART, for anybody to read."""
    target = copies / part
    target.mkdir(parents=True, mode=0o755)
    for visit in walk_trusted(tree.root / part, tree.sharing):
        folder = target / visit.path
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)
        for name in visit.others:
            _copy_entry(tree, Path(part, visit.path, name), folder / name)


def _copy_entry(tree: Tree, path: Path, copy: Path) -> None:
    """Copy PATH, a modulefile or a link in TREE, to COPY; leave out what is neither."""
    source = tree.root / path
    leads_to = descriptors.read_link(source)
    if leads_to:
        copy.symlink_to(leads_to)
        return
    with contextlib.suppress(InputError, OSError):
        content = read_bytes(source, MOST_MODULEFILE, publishers=tree.sharing)
        copy.write_bytes(content)
        copy.chmod(0o644)
