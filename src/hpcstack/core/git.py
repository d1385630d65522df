"""What git says of a checkout that somebody else may have written.

A repository can name programs that git runs: filters, hooks, a file monitor, text converters, what
a missing object is fetched by. It can lie inside a checkout, too: git takes any folder with a HEAD,
objects and refs for a repository. So the repository is found here, by its `.git`, which no checkout
can contain; git is told to talk to nobody; and only those of its commands are used that print what
is stored, and convert nothing.

Tested in tests/hostile/test_checkouts.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from hpcstack.core.errors import InputError
from hpcstack.core.namespaces import list_trusted_ids

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.core.process import Completed, Runner

GIT_S = 10  # seconds: one answer of git's, of a large repository on a slow filesystem
COMPARE_S = 10  # seconds: reading the files of one folder
MOST_POINTER = 4096  # bytes of a `.git` that is a file: `gitdir: PATH` (gitrepository-layout(5))
LINK, SUBMODULE, PROGRAM = "120000", "160000", "100755"  # modes in a tree, git-ls-tree(1)
# Attributes by which git stores other bytes than lie there, gitattributes(5): by a program or another
# encoding; and by other ends of lines.
CONVERTING, LINE_ENDS = ("filter", "ident", "working-tree-encoding"), ("text", "eol")
NO_ATTRIBUTE = ("unspecified", "unset")  # git-check-attr(1)
NO_CONVERSION = ("", "false", "no", "off", "0")  # of core.autocrlf, git-config(1)
MOST_TEXT = 64 << 20  # bytes of a file whose ends of lines are looked at
ALGORITHMS = {40: "sha1", 64: "sha256"}  # by the length of an object's id


@dataclass(frozen=True)
class Repository:
    """A repository: its folder GIT_DIR, and the folder TOP in which its files are checked out."""

    git_dir: Path
    top: Path


@dataclass(frozen=True)
class CommittedFile:
    """A file of a commit: its mode as git has it, the id of its contents, and its path."""

    mode: str
    identity: str
    path: str


def find_repository(folder: Path) -> Repository | None:
    """Return the repository whose checkout FOLDER, an absolute path without links, lies in.

    None where there is none, and where the first one on the way up is a stranger's: it belongs
    neither to us nor to root nor to the owner of FOLDER.
    """
    trusted = (*list_trusted_ids(), folder.stat().st_uid)
    for top in (folder, *folder.parents):
        found = top / ".git"
        try:
            about = found.lstat()
        except OSError:
            continue
        if about.st_uid not in trusted:
            return None
        try:
            git_dir = _read_pointer(found) if stat.S_ISREG(about.st_mode) else found
            if git_dir is None or not (git_dir / "HEAD").is_file():
                continue
            if git_dir.stat().st_uid not in trusted:
                return None
        except OSError:  # it is closed to us
            return None
        return Repository(git_dir, top)
    return None


def _read_pointer(file: Path) -> Path | None:
    """Return where FILE, the `.git` of a worktree or a submodule, says that its repository is."""
    with file.open("rb") as opened:
        said = os.fsdecode(opened.read(MOST_POINTER))
    first, _, target = said.strip().partition(" ")
    return file.parent / target if first == "gitdir:" and target else None


def run_git(repository: Repository, folder: Path, words: list[str], runner: Runner) -> Completed:
    """Run git with WORDS in FOLDER of REPOSITORY's checkout, so that it starts no program.

    WORDS must be a command that prints what is stored or configured: rev-parse, ls-files, ls-tree,
    cat-file, check-attr, config --get.
    """
    # Variables say which repository and which configuration git reads.
    unset = [f"--unset={name}" for name in sorted(os.environ) if name.startswith("GIT_")]
    # A missing object is not fetched: no protocol may be used (git(1), GIT_ALLOW_PROTOCOL).
    variables = ["GIT_ALLOW_PROTOCOL=none", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0"]
    variables += ["GIT_TERMINAL_PROMPT=0", "LC_ALL=C.UTF-8"]
    argv = ["env", *unset, *variables, "git", f"--git-dir={repository.git_dir}"]
    argv += [f"--work-tree={repository.top}", "-C", str(folder), "--no-pager"]
    argv += ["--literal-pathspecs", "-c", "core.fsmonitor=false", *words]
    return runner.output(argv, timeout=GIT_S)


def find_head(repository: Repository, runner: Runner) -> str:
    """Return the commit that REPOSITORY has checked out; empty where it has none yet."""
    words = ["rev-parse", "--verify", "--quiet", "HEAD"]
    done = run_git(repository, repository.top, words, runner)
    return "" if done.status else done.stdout.strip()


def read_committed_file(
    repository: Repository, path: Path, revision: str, runner: Runner
) -> Completed:
    """Return git's answer to what the file PATH holds in REVISION: its bytes as they are stored.

    Raise InputError for a REVISION that git would take for an option.
    """
    if revision.startswith("-"):
        raise InputError(
            f"git has no {revision!r}: a revision does not begin with -",
            f"git -C {path.parent} log --oneline -- {path.name}",
        )
    words = ["cat-file", "blob", f"{revision}:./{path.name}"]
    return run_git(repository, path.parent, words, runner)


def explain_difference(
    repository: Repository, folder: Path, commit: str, runner: Runner
) -> str | None:
    """Return how FOLDER of a checkout differs from COMMIT: the path that does, or that is new.

    Empty where it does not differ. None where that was not found out: git did not answer, the
    folder takes longer to read than COMPARE_S, or a program would have to say what git would store
    of a file (git-lfs, say). What git ignores is left out.
    """
    listed = run_git(repository, folder, ["ls-tree", "-r", "-z", commit, "--", "."], runner)
    # What lies there and is not ignored: in the index, which may have what no commit has, and not.
    there = ["ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "."]
    found = run_git(repository, folder, there, runner)
    if listed.status or found.status:
        return None
    entries = list(_parse_tree(listed.stdout))
    committed = {entry.path for entry in entries}
    new = [path for path in found.stdout.split("\0") if path and path not in committed]
    if new:
        return new[0]

    until = time.monotonic() + COMPARE_S
    is_all_known = True
    for entry in entries:
        if time.monotonic() > until:
            return None
        is_same = _is_as_committed(repository, folder, entry, runner)
        if is_same is None:
            is_all_known = False
        elif not is_same:
            return entry.path
    return "" if is_all_known else None


def _parse_tree(text: str) -> Iterator[CommittedFile]:
    """Yield the entries of TEXT, what `git ls-tree -r -z` prints."""
    for line in filter(None, text.split("\0")):
        about, _, path = line.partition("\t")
        mode, _, identity = about.split(" ")
        yield CommittedFile(mode, identity, path)


def _is_as_committed(
    repository: Repository, folder: Path, entry: CommittedFile, runner: Runner
) -> bool | None:
    """Return whether a file of FOLDER is what ENTRY says: its kind, whether it can be run, and its
    contents. None where that is not known.
    """
    path = folder / entry.path
    if entry.mode == SUBMODULE:
        return _is_submodule_at(path, entry.identity, runner)
    with contextlib.suppress(OSError):
        about = path.lstat()
        if entry.mode == LINK:
            target = os.fsencode(path.readlink())
            return _hash_blob(target, entry.identity) == entry.identity
        is_program = bool(about.st_mode & 0o100)
        if not stat.S_ISREG(about.st_mode) or is_program != (entry.mode == PROGRAM):
            return False
        if _hash_file(path, about.st_size, entry.identity) == entry.identity:
            return True
        return _would_be_stored(repository, folder, entry, about.st_size, runner)
    return False


def _would_be_stored(
    repository: Repository, folder: Path, entry: CommittedFile, size: int, runner: Runner
) -> bool | None:
    """Return whether git would store ENTRY of a file whose bytes are others.

    Attributes can say that a file is checked out in another form than it is stored in
    (gitattributes(5)). None where only a program could say what git would store, or git does not
    say.
    """
    wanted = ["check-attr", "-z", *CONVERTING, *LINE_ENDS, "--", entry.path]
    asked = run_git(repository, folder, wanted, runner)
    # Without any such line, git says by its status that there is none.
    configured = run_git(repository, folder, ["config", "--get", "core.autocrlf"], runner)
    if asked.status or configured.status > 1:
        return None
    words = asked.stdout.split("\0")  # path, attribute and value, again and again
    values = dict(zip(words[1::3], words[2::3], strict=False))
    if any(values.get(name) not in NO_ATTRIBUTE for name in CONVERTING):
        return None

    is_text = any(values.get(name) not in NO_ATTRIBUTE for name in LINE_ENDS)
    is_undecided = values.get("text") == "unspecified"
    converts_all = configured.stdout.strip().lower() not in NO_CONVERSION
    if not is_text and not (is_undecided and converts_all):
        return False
    if size > MOST_TEXT:
        return None
    with _open_file(folder / entry.path) as file:
        content = file.read(MOST_TEXT)
    stored = content.replace(b"\r\n", b"\n")
    return _hash_blob(stored, entry.identity) == entry.identity


def _is_submodule_at(path: Path, commit: str, runner: Runner) -> bool | None:
    """Return whether the submodule PATH is checked out at COMMIT and is clean, or is not there.

    None where that is not known.
    """
    try:
        if not path.is_dir() or not any(path.iterdir()):
            return True
    except OSError:
        return None
    repository = find_repository(path.resolve())
    if repository is None or find_head(repository, runner) != commit:
        return False
    difference = explain_difference(repository, path, commit, runner)
    return None if difference is None else not difference


def _hash_blob(content: bytes, like: str) -> str:
    """Return the id that git gives to CONTENT, by the algorithm of the id LIKE."""
    digest = hashlib.new(ALGORITHMS[len(like)], usedforsecurity=False)
    digest.update(b"blob %d\0" % len(content) + content)
    return digest.hexdigest()


def _hash_file(path: Path, size: int, like: str) -> str:
    """Return the id that git gives to the file PATH of SIZE bytes, by the algorithm of LIKE."""
    digest = hashlib.new(ALGORITHMS[len(like)], usedforsecurity=False)
    digest.update(b"blob %d\0" % size)
    with _open_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _open_file(path: Path) -> BinaryIO:
    """Open PATH to read it; no link is followed, and no pipe waited for, that took its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb")
