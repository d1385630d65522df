"""What a launch adds: which lock it follows, by which link it finds the file, and what is swept."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.errors import InputError
from hpcstack.core.progress import Progress
from hpcstack.project import added
from hpcstack.project.added import Added, make_added, plan_added
from hpcstack.project.lock_file import ProjectLock, digest_image
from hpcstack.project.packed import sweep_projects
from unit.launch.test_plan import ARTIFACT, PLAIN

IMAGE = replace(ARTIFACT, pip={"torch": "2.6.0a0"})


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path / "share")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("rich\n")
    return folder


@pytest.fixture(autouse=True)
def uv(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In uv's place: locks and installations that are counted."""
    calls: list[str] = []

    def lock(inputs: Any, artifact: Any, *_: Any) -> ProjectLock:
        calls.append("lock")
        names = sorted({*inputs.requirements, "rich"})
        packages = [
            {"name": name, "wheels": [{"url": "u", "hashes": {"sha256": name}}]} for name in names
        ]
        about = {
            "python": "3.12",
            "inputs": inputs.digest,
            "image": digest_image(artifact),
            "of-the-image": {},
            "instead": {},
        }
        return ProjectLock(
            {"lock-version": "1.0", "packages": packages, "tool": {"hpcstack": about}}
        )

    def install(lock: ProjectLock, packed: Path, *_: Any) -> None:
        calls.append("install")
        packed.write_text(",".join(one["name"] for one in lock.packages))

    monkeypatch.setattr(added, "lock_project", lock)
    monkeypatch.setattr(added, "make_packed", install)
    return calls


def make(planned: Added, environ: dict[str, str]) -> None:
    make_added(planned, IMAGE, None, PLAIN, Progress(), environ)  # type: ignore[arg-type]


def test_an_unchanged_project_is_found_by_one_look(
    project: Path, environ: dict[str, str], uv: list[str]
) -> None:
    make(plan_added(IMAGE, project, (), environ), environ)
    assert uv == ["lock", "install"]
    again = plan_added(IMAGE, project, (), environ)
    assert again.lock
    assert again.file.exists()
    make(again, environ)
    assert uv == ["lock", "install"]


def test_packages_by_hand_do_not_replace_the_projects_own(
    project: Path, environ: dict[str, str]
) -> None:
    make(plan_added(IMAGE, project, (), environ), environ)
    make(plan_added(IMAGE, project, ("einops",), environ), environ)
    alone = plan_added(IMAGE, project, (), environ)
    both = plan_added(IMAGE, project, ("einops",), environ)
    assert alone.file.read_text() == "rich"
    assert both.file.read_text() == "einops,rich"
    assert alone.lock_path.parent == project
    assert both.lock_path.parent != project


def test_a_lock_that_is_gone_is_made_again(
    project: Path, environ: dict[str, str], uv: list[str]
) -> None:
    make(plan_added(IMAGE, project, (), environ), environ)
    lock = plan_added(IMAGE, project, (), environ).lock_path
    lock.unlink()
    make(plan_added(IMAGE, project, (), environ), environ)
    assert lock.exists()
    assert uv == ["lock", "install", "lock"]  # what it locks is there already


def test_another_list_or_another_image_is_locked_anew(
    project: Path, environ: dict[str, str]
) -> None:
    make(plan_added(IMAGE, project, (), environ), environ)
    newer = replace(IMAGE, pip={"torch": "2.7.0"})
    assert plan_added(newer, project, (), environ).lock is None
    (project / "requirements.txt").write_text("rich>=13\n")
    assert plan_added(IMAGE, project, (), environ).lock is None


def test_extras_of_a_lock_count_only_where_the_project_has_them(
    project: Path, environ: dict[str, str]
) -> None:
    (project / "requirements.txt").unlink()
    text = "[project]\nname = 'a'\nversion = '0'\n[project.optional-dependencies]\ndev = []\n"
    (project / "pyproject.toml").write_text(text)
    make(plan_added(IMAGE, project, (), environ, ("dev",)), environ)
    assert plan_added(IMAGE, project, (), environ).inputs.extras == ("dev",)
    (project / "requirements.txt").write_text("rich\n")
    assert plan_added(IMAGE, project, (), environ).inputs.extras == ()


def test_a_folder_that_cannot_be_mounted_is_refused(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    folder = tmp_path / "my:project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("rich\n")
    with pytest.raises(InputError, match="cannot be mounted"):
        plan_added(IMAGE, folder, (), environ)


def test_what_nobody_used_for_long_goes(project: Path, environ: dict[str, str]) -> None:
    planned = plan_added(IMAGE, project, (), environ)
    make(planned, environ)
    top = planned.file.parent.parent
    packed = planned.file.resolve()
    (top / ".old.sqsh.shards").mkdir()
    assert sweep_projects(top, time.time()) == [top / ".old.sqsh.shards"]
    assert packed.exists()

    os.utime(packed, (1, 1))
    gone = sweep_projects(top, time.time())
    assert packed in gone
    assert planned.file in gone
    assert not planned.file.is_symlink()


def test_a_lock_that_another_one_wrote_meanwhile_gets_no_link_to_these_packages(
    project: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(plan_added(IMAGE, project, (), environ), environ)
    lock_path = plan_added(IMAGE, project, (), environ).lock_path
    lock_path.unlink()
    before = vars(added)["make_packed"]

    def install(lock: ProjectLock, packed: Path, *rest: Any) -> None:
        before(lock, packed, *rest)
        other = lock.render().replace('sha256 = "rich"', 'sha256 = "of another one"')
        lock_path.write_text(other)

    monkeypatch.setattr(added, "make_packed", install)
    for packed in (project.parent / "share/hpcstack/projects").glob("*.sqsh"):
        packed.unlink()
    make(plan_added(IMAGE, project, (), environ), environ)
    after = plan_added(IMAGE, project, (), environ)
    assert after.lock
    assert not after.file.exists()


def test_a_locked_extra_is_known_in_any_spelling(project: Path, environ: dict[str, str]) -> None:
    (project / "requirements.txt").unlink()
    text = "[project]\nname = 'a'\nversion = '0'\n[project.optional-dependencies]\nmy-extra = []\n"
    (project / "pyproject.toml").write_text(text)
    make(plan_added(IMAGE, project, (), environ, ("my_extra",)), environ)
    planned = plan_added(IMAGE, project, (), environ)
    assert planned.inputs.extras == ("my_extra",)
    assert planned.lock
