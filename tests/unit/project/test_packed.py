"""What is packed for projects: gone on from where it can be, listed, and cleared."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.process import Completed, Runner
from hpcstack.core.progress import Progress
from hpcstack.project import packed
from hpcstack.project.lock_file import ProjectLock
from hpcstack.project.packed import (
    JUST_USED_S,
    explain_kept,
    list_kept_packages,
    make_packed,
    note_wanted,
    remove_kept,
)
from hpcstack.requirements.project_files import read_toml
from hpcstack.squashfs.splice import MAX_DEPTH
from unit.launch.test_plan import ARTIFACT

IMAGE = replace(ARTIFACT, pip={"torch": "2.6.0a0"})


class Inside:
    """An image in which uv installs a file for each package."""

    def __init__(self, lent: Path, installed: list[list[str]]) -> None:
        self.lent = lent
        self.installed = installed

    def run(self, words: tuple[str, ...], **_: Any) -> Completed:
        names = [one["name"] for one in read_toml(self.lent / "pylock.toml")["packages"]]
        self.installed.append(names)
        for name in names:
            file = self.lent / "tree/lib" / name / "__init__.py"
            file.parent.mkdir(parents=True)
            file.write_text(name)
        (self.lent / "tree/pyvenv.cfg").write_text("home = /usr/bin\n")
        return Completed(("uv",), 0, ())


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return {"XDG_DATA_HOME": str(tmp_path / "share")}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was installed, each time."""
    calls: list[list[str]] = []

    @contextlib.contextmanager
    def open_inside(*_: Any) -> Iterator[Inside]:
        lent = tmp_path / f"lent-{len(calls)}"
        lent.mkdir()
        yield Inside(lent, calls)

    monkeypatch.setattr(packed, "open_inside", open_inside)
    return calls


def make_lock(*packages: str, python: str = "3.12") -> ProjectLock:
    """A lock of PACKAGES, NAME or NAME=HASH."""
    pairs = [one.partition("=")[::2] for one in packages]
    return ProjectLock(
        {
            "lock-version": "1.0",
            "packages": [
                {"name": name, "wheels": [{"url": "u", "hashes": {"sha256": digest or name}}]}
                for name, digest in pairs
            ],
            "tool": {"hpcstack": {"python": python}},
        }
    )


def make(lock: ProjectLock, environ: dict[str, str], image: Any = IMAGE) -> Path:
    folder = packed.find_projects_folder(environ)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{lock.name_contents(image)}.sqsh"
    make_packed(lock, file, [], ("/home/me/x",), image, None, Runner(), Progress())  # type: ignore[arg-type]
    return file


def list_packages(file: Path, tmp_path: Path) -> list[str]:
    """The packages in FILE as unsquashfs finds them, each with its content checked."""
    out = tmp_path / "out"
    subprocess.run(
        ["unsquashfs", "-quiet", "-no-progress", "-force", "-dest", str(out), str(file)],
        check=True,
        capture_output=True,
    )
    found = sorted(path.parent.name for path in out.glob("lib/*/__init__.py"))
    assert [(out / "lib" / name / "__init__.py").read_text() for name in found] == found
    assert (out / "pyvenv.cfg").exists()
    subprocess.run(["rm", "-r", str(out)], check=True)
    return found


def test_one_more_package_is_one_installation(
    environ: dict[str, str], installed: list[list[str]], tmp_path: Path
) -> None:
    """researcher 8: one more dependency, and all 71 packages were packed again, for 43 s."""
    make(make_lock("rich"), environ)
    make(make_lock("rich", "einops"), environ)
    last = make(make_lock("einops", "rich", "tqdm", "wandb"), environ)
    assert installed == [["rich"], ["einops"], ["tqdm", "wandb"]]
    assert list_packages(last, tmp_path) == ["einops", "rich", "tqdm", "wandb"]


@pytest.mark.parametrize(
    "then",
    [
        make_lock("einops"),  # one is not wanted any more
        make_lock("rich=another", "einops"),  # another version of it is
        make_lock("rich", "einops", python="3.13"),
    ],
)
def test_what_is_not_wanted_is_not_gone_on_from(
    environ: dict[str, str], installed: list[list[str]], then: ProjectLock, tmp_path: Path
) -> None:
    make(make_lock("rich"), environ)
    file = make(then, environ)
    wanted = [one["name"] for one in then.packages]
    assert installed == [["rich"], wanted]
    assert list_packages(file, tmp_path) == sorted(wanted)


def test_a_package_that_was_built_is_of_one_image(
    environ: dict[str, str], installed: list[list[str]]
) -> None:
    lock = make_lock("rich")
    lock.packages[0]["sdist"] = lock.packages[0].pop("wheels")[0]
    make(lock, environ)
    both = replace(
        lock, document={**lock.document, "packages": [*lock.packages, *make_lock("tqdm").packages]}
    )
    make(both, environ)
    make(both, environ, replace(IMAGE, sha256="f" * 64))
    assert installed == [["rich"], ["tqdm"], ["rich", "tqdm"]]


def test_a_damaged_file_and_one_of_many_pieces_are_no_base(
    environ: dict[str, str], installed: list[list[str]], tmp_path: Path
) -> None:
    file = make(make_lock("rich"), environ)
    os.truncate(file, 200)
    assert list_packages(make(make_lock("rich", "b"), environ), tmp_path) == ["b", "rich"]
    assert ["rich", "b"] in installed
    names = ["rich", "b"]
    for number in range(MAX_DEPTH + 2):
        names.append(f"p{number}")
        last = make(make_lock(*names), environ)
    assert any(len(one) > 2 for one in installed[3:])  # all of it anew
    assert list_packages(last, tmp_path) == sorted(names)


def test_what_takes_room_is_listed_and_cleared_unless_it_is_used(
    environ: dict[str, str], installed: list[list[str]], tmp_path: Path
) -> None:
    used, unused = make(make_lock("rich"), environ), make(make_lock("tqdm"), environ)
    note_wanted(unused, ("einops",))
    link = packed.find_projects_folder(environ) / "asked/0123.sqsh"
    link.parent.mkdir()
    link.symlink_to(f"../{used.name}")
    cache = tmp_path / "uv/hpcstack/0000"
    cache.mkdir(parents=True)
    (cache / "wheel").write_bytes(b"x" * 5000)
    (cache / "again").hardlink_to(cache / "wheel")
    long_ago = time.time() - JUST_USED_S - 1
    for path in (used, unused, cache):
        os.utime(path, (long_ago, long_ago))

    kept = list_kept_packages(environ)
    assert {one.path for one in kept} == {used, unused, cache}
    by_path = {one.path: one for one in kept}
    assert by_path[cache].size == 8192  # blocks, of a file with two names once
    assert by_path[unused].wanted == ("/home/me/x", "einops")
    in_use = f"srun --container-mounts={link}:/opt/hpcstack/added"
    reasons = [
        explain_kept(by_path[path], in_use, 0, time.time(), environ)
        for path in (used, unused, cache)
    ]
    assert reasons == ["a job or a process uses it", "", ""]
    assert explain_kept(by_path[cache], "", 1, time.time(), environ) == "used within 1 days"
    assert explain_kept(by_path[cache], "", 0, long_ago, environ) == "used a moment ago"

    remove_kept(kept, environ, Progress())
    assert list_kept_packages(environ) == []
    assert not link.is_symlink()
