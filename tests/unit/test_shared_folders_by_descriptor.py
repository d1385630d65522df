"""What a group shares is touched by descriptor (core/descriptors.py), never by a path that a member
may turn elsewhere.

A call that follows a path is refused in all files that have to do with the store, the module tree
and the caches. The table says which files touch folders that are one process's or one account's
own, and how they are known to be.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hpcstack

HOST = Path(hpcstack.__file__).parent
ROOMS = ("store", "releases", "publish", "oci", "build", "core", "imagecache")
CALLS = {
    "chmod", "chown", "lchown", "copy", "copy2", "copyfile", "copytree", "hardlink_to", "lchmod", "link", "makedirs",
    "move", "removedirs", "remove", "rename", "renames", "rmdir", "rmtree", "symlink", "symlink_to", "touch", "truncate",
    "unlink", "utime", "walk", "rwalk", "setxattr", "removexattr", "write_bytes",
}  # fmt: skip
BY_DESCRIPTOR = ("descriptors", "os.fwalk")  # who may be asked for them
OWN = {
    "core/descriptors.py": "the one module that does it",
    "core/files.py": (
        "make_private_folder: a folder of ours that nobody else can enter, on a way that nobody else "
        "changes"
    ),
    "build/bundle_apply.py": "the part is pinned, and the bundle is a file of the caller's",
    "build/engines/container.py": "the build's own folder",
    "build/engines/apptainer.py": "the build's own folder",
    "build/engines/enclosure.py": "the build's own folder",
    "build/engines/lowest.py": "the build's own folder, and the builder's own cache",
    "build/engines/overlay.py": "the build's own folder, and the builder's own cache",
    "build/job.py": "the build's own folder",
    "build/request.py": "what a recipe brings beside it, read and not changed",
    "imagecache/acl.py": "the service's account alone writes the cache",
    "imagecache/layout.py": (
        "the service's account alone writes the cache: prepare() refuses another owner or mode"
    ),
    "imagecache/provide.py": "the service's account alone writes the cache",
    "imagecache/serve.py": "the service's own folder of sockets",
    "oci/daemon.py": "a temporary folder of its own",
    "oci/download.py": "a folder of this import's, pinned by who opened it",
    "oci/importer.py": "a folder of this import's, pinned by who opened it",
    "publish/load_test.py": "a temporary folder of its own",
    "publish/spider.py": "a temporary folder of its own",
    "publish/website.py": "a folder that the caller names, with his own rights",
    "store/signing.py": "a temporary folder of its own",
}


def calls_by_path(path: Path) -> list[tuple[int, str]]:
    """(line, what is called) of calls in PATH that follow a path."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value)
        of_a_list = node.func.attr == "remove" and owner != "os"
        follows = node.func.attr in CALLS and owner not in BY_DESCRIPTOR and not of_a_list
        if follows and not any(word.arg and word.arg.endswith("dir_fd") for word in node.keywords):
            found.append((node.lineno, f"{owner}.{node.func.attr}"))
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_shared_is_touched_by_path(room: str) -> None:
    wrong = {str(path.relative_to(HOST)): calls for path in (HOST / room).rglob("*.py")
             if str(path.relative_to(HOST)) not in OWN and (calls := calls_by_path(path))}  # fmt: skip
    assert wrong == {}


def test_the_table_names_nothing_that_has_no_need_of_it() -> None:
    assert [name for name in OWN if not calls_by_path(HOST / name)] == []


@pytest.mark.parametrize(
    "text",
    [
        "p.chmod(0o755)",
        "os.chown(p, 1, 1)",
        "shutil.rmtree(p)",
        "os.walk(top)",
        "p.unlink()",
        "os.rename(a, b)",
    ],
)
def test_it_sees(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.py").write_text(text)
    assert calls_by_path(tmp_path / "x.py")
