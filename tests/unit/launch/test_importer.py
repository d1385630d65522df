"""Pyxis's importer, run by real shells on a store of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import make_site
from hpcstack.releases.changes import publish_entry
from hpcstack.releases.ledger import Dates, Entry, Event
from hpcstack.releases.tree import Tree, TreeChange
from hpcstack.render.launchers import render_importer


class Place:
    """A store with one published image, and an enroot that writes down what it was asked."""

    def __init__(self, top: Path, shell: str, check: str = "full", **site_values: Any) -> None:
        self.top, self.shell = top, shell
        site = make_site(top, **site_values)
        self.store, self.modules = site.store, site.module_tree
        self.script = top / "importer.sh"
        self.script.write_text(render_importer(site, check))
        self.run_path = top / "run"
        self.run_path.mkdir()
        (top / "bin").mkdir()
        (top / "bin/enroot").write_text('#!/bin/sh\necho "$@" >>"$ASKED"\necho imported >"$3"\n')
        (top / "bin/enroot").chmod(0o755)

    def publish(self, name: str, alias: str, number: int, content: bytes) -> Path:
        key = "".join(one for one in f"key{name}{alias}{number}" if one.isalnum())
        image = self.store / "images" / key / "image.sqsh"
        image.parent.mkdir(parents=True)
        image.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        record = {
            "release": f"{name}/{alias}-r{number}",
            "key": key,
            "sha256": digest,
            "fits": [["x", "y"]],
        }
        folder = self.store / "releases" / name / f"{alias}-r{number}"
        folder.mkdir(parents=True)
        (folder / "release.json").write_text(json.dumps(record, indent=1) + "\n")
        tree, release = Tree(self.modules), f"{alias}-r{number}"
        with tree.hold(name):
            entry = Entry(release, alias, "testing", key, digest, "2026-01-01", "me")
            after = publish_entry(
                tree.ledger(name), entry, Dates(), Event("2026-01-01", "me", "publish", release)
            )
            file = tree.homes(name)[".lua"] / name / f"{release}.lua"
            tree.commit(
                TreeChange(after, {str(file.relative_to(self.modules)): "-- a module\n"}, "publish")
            )
        return image

    def __call__(self, *words: str, step: str = "0") -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{self.top / 'bin'}:{os.environ['PATH']}", "PYXIS_RUNTIME_PATH": str(self.run_path),
            "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": step, "ASKED": str(self.top / "asked"),
        }  # fmt: skip
        return subprocess.run(
            [self.shell, str(self.script), *words],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(params=["sh", "bash"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    made = Place(tmp_path, request.param)
    made.publish("pytorch", "24.11", 1, b"old")
    made.publish("pytorch", "24.11-vision", 1, b"vision")
    made.publish("my-stack", "1.0", 3, b"mine")
    made.image = made.publish("pytorch", "24.11", 2, b"new")  # type: ignore[attr-defined]
    return made


def test_a_published_name_is_its_image(place: Place) -> None:
    contents = {
        "hpcstack/pytorch-24.11": b"new",
        "hpcstack/pytorch:24.11": b"new",
        "hpcstack/pytorch:24.11-r1": b"old",
        "hpcstack/my-stack-1.0": b"mine",
        "hpcstack/my-stack:1.0": b"mine",
    }
    for name, content in contents.items():
        for uri in (name, f"docker://{name}"):
            done = place("get", uri)
            assert done.returncode == 0, (name, done.stderr)
            assert Path(done.stdout.rstrip("\n")).read_bytes() == content, name
    assert not (place.top / "asked").exists(), "nothing was asked of a registry"


def test_what_is_not_published_is_refused_with_words(place: Place) -> None:
    ends = ("nothing-1", "pytorch", "pytorch-9", "../etc", "pytorch:24.11;id", "$(id)", "", "a:b:c")
    for end in ends:
        done = place("get", f"docker://hpcstack/{end}")
        assert done.returncode == 1, end
        assert done.stdout == "", end
        assert "is published here" in done.stderr, end
        assert "TIP" in done.stderr, end


def test_an_image_that_is_not_what_was_published_is_refused(place: Place) -> None:
    image: Path = place.image  # type: ignore[attr-defined]
    assert place("get", "hpcstack/pytorch-24.11").returncode == 0
    image.write_bytes(b"evil!")
    done = place("get", "hpcstack/pytorch-24.11")
    assert done.returncode == 1
    assert "is not what was published" in done.stderr
    assert done.stdout == ""
    image.unlink()
    assert "cannot be read" in place("get", "hpcstack/pytorch-24.11").stderr


def test_a_retired_version_is_refused_and_one_without_dates_is_served(place: Place) -> None:
    dates = place.modules / "state/pytorch/current/dates/24.11"
    for text, served in (("remove=2099-01-01\n", True), ("remove=2020-01-01\n", False)):
        dates.write_text(text)
        for name in ("hpcstack/pytorch-24.11", "hpcstack/pytorch:24.11-r1"):
            done = place("get", name)
            assert (done.returncode == 0) == served, done.stderr
            assert served or "was retired on 2020-01-01" in done.stderr
    dates.unlink()
    assert place("get", "hpcstack/pytorch-24.11").returncode == 0


def test_a_release_that_was_removed_is_refused(place: Place) -> None:
    """Its files are there until gc takes them, its modulefile is not: in Core, and behind a
    gateway.
    """
    file = place.modules / "Core/pytorch/24.11-r1.lua"
    behind = place.modules / "more/pytorch/Core/pytorch"
    behind.mkdir(parents=True)
    moved = file.rename(behind / file.name)
    assert place("get", "hpcstack/pytorch:24.11-r1").returncode == 0
    moved.unlink()
    done = place("get", "hpcstack/pytorch:24.11-r1")
    assert done.returncode == 1
    assert "hpcstack/pytorch:24.11-r1"[9:] in done.stderr
    assert "was removed" in done.stderr
    assert place("get", "hpcstack/pytorch:24.11").returncode == 0


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_release_for_nodes_of_another_kind_is_refused_by_its_own_name_too(
    tmp_path: Path, shell: str
) -> None:
    """Both module trees have their releases in one store, and a release that is named in full is
    looked for there.
    """
    place = Place(tmp_path, shell, modules={"by_architecture": True})
    place.publish("pytorch", "24.11", 1, b"mine")
    here = place.modules
    place.modules = here.with_name("aarch64" if here.name != "aarch64" else "x86_64")
    place.publish("pytorch", "24.11", 2, b"theirs")
    place.publish("grace", "1.0", 1, b"theirs too")

    assert place("get", "docker://hpcstack/pytorch:24.11").returncode == 0
    for name in ("pytorch:24.11-r2", "grace:1.0-r1"):
        done = place("get", f"docker://hpcstack/{name}")
        assert done.returncode == 1 and os.uname().machine in done.stderr, done


def test_an_image_is_read_once_a_node(place: Place) -> None:
    (place.top / "bin/sha256sum").write_text(
        f"#!/bin/sh\necho read >>{place.top}/reads\nexec {shutil.which('sha256sum')}\n"
    )
    (place.top / "bin/sha256sum").chmod(0o755)
    assert [place("get", "hpcstack/pytorch-24.11", step=str(n)).returncode for n in range(3)] == [
        0,
        0,
        0,
    ]
    assert (place.top / "reads").read_text() == "read\n"


@pytest.mark.parametrize(
    "uri", ["docker://ubuntu:24.04", "docker://nvcr.io#nvidia/pytorch:24.11-py3", "dockerd://mine"]
)
def test_any_other_image_is_imported_as_before_and_released_twice(place: Place, uri: str) -> None:
    done = place("get", uri)
    path = Path(done.stdout.strip())
    assert path.read_text() == "imported\n"
    assert str(path).endswith(".squashfs")
    assert (place.top / "asked").read_text() == f"import --output {path} {uri}\n"
    assert [place("release").returncode for _ in range(2)] == [0, 0]
    assert not path.exists()


def test_release_leaves_a_published_image_alone(place: Place) -> None:
    place("get", "hpcstack/pytorch-24.11")
    assert place("release").returncode == 0
    assert place.image.exists()  # type: ignore[attr-defined]


def test_the_script_is_sound(tmp_path: Path) -> None:
    script = tmp_path / "importer.sh"
    script.write_text(render_importer(make_site(tmp_path / "it's; $(x) here"), "full"))
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(
            ["shellcheck", "--exclude=SC3067", str(script)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
