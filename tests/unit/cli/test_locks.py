"""Locks at the command line: one that was changed by hand is told, and any two can be compared,
wherever they lie.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcstack.cli import main
from hpcstack.core import data
from hpcstack.lock.file import LockFile
from hpcstack.lock.model import TEMPLATE_VERSION, Lock, read_lock
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Stack
from hpcstack.site.load import Site
from support.locks import example_lock

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`hpcstack WORDS...` on a site whose locks lie in ./locks: (status, stdout and stderr)."""
    (tmp_path / "site.yaml").write_text(
        "store: store\nlock_dir: locks\n".replace(": ", f": {tmp_path}/")
    )
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("HPCSTACK_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


@pytest.fixture
def path(run: Run, stack: Stack) -> Path:
    """The lock of pytorch-24.11, as hpcstack writes it."""
    lock = example_lock(stack)
    current = lock.model_copy(
        update={"spec_sha256": stack.checksum(), "template_version": TEMPLATE_VERSION}
    )
    path = Path("locks", f"{stack.full_name}.lock.json").absolute()
    path.write_text(current.file_text())
    return path


def change_base(text: str) -> str:
    """TEXT of a lock with another digest of its base, as an editor leaves it."""
    before = json.loads(text)["base"]["index_digest"]
    return text.replace(before, "sha256:" + "0d" * 32)


def commit_all(message: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", message]):
        subprocess.run(["git", *identity, *words], check=True)


def test_a_lock_that_was_changed_by_hand_is_not_current(run: Run, path: Path, stack: Stack) -> None:
    status, said = run("lock", stack.full_name, "--check")
    assert status == 0
    assert said.startswith(f"{path}: current")
    path.write_text(change_base(path.read_text()))
    status, said = run("lock", stack.full_name, "--check")
    assert status == 1
    assert "changed by hand since it was locked" in said
    assert f"hpcstack lock {stack.full_name}" in said


def test_a_lock_that_was_changed_by_hand_is_not_built(run: Run, path: Path, stack: Stack) -> None:
    path.write_text(change_base(path.read_text()))
    status, said = run("build", stack.full_name, "--offline")
    assert status == 2
    assert "is stale: it was changed by hand" in said


def test_what_was_changed_by_hand_is_not_taken_over_into_the_next_lock(
    path: Path, stack: Stack, site: Site
) -> None:
    """`lock` keeps the packages of platforms that it cannot resolve here: an edit among them would
    get a checksum.
    """
    file = LockFile(
        Catalog([data.find_data_folder("recipes")]).find(stack.full_name),
        site.model_copy(update={"lock_dir": path.parent}),
    )
    assert file.read_unedited() == read_lock(path)
    path.write_text(change_base(path.read_text()))
    assert file.read() is not None
    assert file.read_unedited() is None


def test_a_lock_of_an_older_hpcstack_has_no_checksum_and_is_current(
    run: Run, path: Path, stack: Stack
) -> None:
    path.write_text(read_lock(path).text())
    assert run("lock", stack.full_name, "--check")[0] == 0


def test_a_lock_that_was_laid_out_anew_is_the_same(path: Path) -> None:
    lock = read_lock(path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert read_lock(path) == lock
    assert isinstance(read_lock(path), Lock)
    assert read_lock(path).digest() == lock.digest()


def test_any_file_can_be_compared(run: Run, path: Path, stack: Stack) -> None:
    Path("yesterday").write_text(change_base(path.read_text()))
    status, said = run("diff", "yesterday", stack.full_name, "--json")
    assert status == 0
    assert json.loads(said) == []

    other = path.read_text().replace(read_lock(path).base.tag, "24.12-py3")
    Path("yesterday").write_text(other)
    status, said = run("diff", "yesterday", stack.full_name)
    assert status == 0
    assert "24.12-py3" in said


def test_what_a_shell_hands_over_as_a_pipe_can_be_compared(
    run: Run, path: Path, stack: Stack
) -> None:
    reader, writer = os.pipe()
    os.write(writer, path.read_text().replace(read_lock(path).base.tag, "24.12-py3").encode())
    os.close(writer)
    status, said = run("diff", f"/dev/fd/{reader}", stack.full_name)
    os.close(reader)
    assert status == 0
    assert "24.12-py3" in said


def test_a_lock_is_compared_with_what_was_committed(run: Run, path: Path, stack: Stack) -> None:
    now = path.read_text()
    path.write_text(now.replace(read_lock(path).base.tag, "24.12-py3"))
    commit_all("the lock of yesterday")
    path.write_text(now)
    status, said = run("diff", stack.full_name, "--git", "HEAD")
    assert status == 0
    assert "24.12-py3" in said
    assert f"{stack.full_name} at HEAD" in said
    status, said = run("diff", str(path), "--git", "HEAD")
    assert status == 0
    assert "24.12-py3" in said


@pytest.mark.parametrize("revision", ["no-such-tag", "--output=x"])
def test_a_revision_that_git_does_not_know(
    run: Run, path: Path, stack: Stack, revision: str
) -> None:
    commit_all("something")
    status, said = run("diff", stack.full_name, f"--git={revision}")
    assert status == 2
    assert "git has no" in said
    assert "TIP: git -C" in said
    assert not Path("x").exists()


def test_two_things_are_compared(run: Run, path: Path, stack: Stack) -> None:
    for words in ([], [stack.full_name, "--git", "HEAD"]):
        status, said = run("diff", stack.full_name, *words)
        assert status == 2
        assert "two things are compared" in said
