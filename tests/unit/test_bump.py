"""Stacks that are moved to a newer base, by a registry that has one: what is planned and written."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcstack.bump import Move, Planner, choose_newest, choose_tag, find_misfits, write_edit
from hpcstack.cli import main
from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.oci import client
from hpcstack.oci.client import Registry
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Base, Stack
from hpcstack.site.load import Site
from support.layers import member, tar, zipped
from support.locks import example_lock
from support.ngc_registry import REGISTRY, NgcRegistry, resolve_here

IMAGE = "nvcr.io/nvidia/pytorch"
TAGS = ("24.11-py3", "25.10-py3", "26.08-py3", "26.08-py3-igpu", "26.09-py3", "latest")
MINE = f"""\
apiVersion: hpcstack/v1
name: mine # ours
summary: Ours on 25.10 (CUDA 13.0)
base: {{image: "{IMAGE}:${{stack.version}}-py3"}}
matrix: {{version: ["24.11", "25.10"]}}
"""
TOP = """\
apiVersion: hpcstack/v1
extends: mine-25.10
name: top
version: "25.10"
summary: Top
"""
Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def ngc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NgcRegistry]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(client, "BACK_OFF", 0.01)
    (tmp_path / "ngc").mkdir()
    found = NgcRegistry(tmp_path / "ngc")
    layer = zipped(tar([member("etc/release", b"x")]))
    cuda = {"24.11": "12.6.3", "25.10": "13.0.2", "26.08": "13.4.0", "26.09": "13.5.0"}
    for tag in TAGS:
        env = [f"CUDA_VERSION={cuda.get(tag[:5], '1.0')}", f"NVIDIA_BUILD_ID={tag}"]
        found.add_image("nvidia/pytorch", tag, [layer], env)
    with found.running():
        monkeypatch.setattr(socket, "getaddrinfo", resolve_here(found))
        yield found


@pytest.fixture
def folder(tmp_path: Path, ngc: NgcRegistry, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recipes of a site's own; `hpcstack` asks NGC's stand-in."""
    out = tmp_path / "recipes"
    out.mkdir()
    (out / "mine.yaml").write_text(MINE)
    (out / "top-25.10.yaml").write_text(TOP)
    site = {
        "store": str(tmp_path / "store"),
        "lock_dir": str(tmp_path / "locks"),
        "module_root": str(tmp_path / "modules"),
        "recipe_dirs": [str(out)],
        "registries": {"nvcr.io": {"mirror": ngc.address(REGISTRY)}},
        "build": {"ca_bundle": str(ngc.ca)},
    }
    (tmp_path / "site.yaml").write_text(json.dumps(site))
    monkeypatch.setenv("HPCSTACK_SITE", str(tmp_path / "site.yaml"))
    return out


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`hpcstack bump WORDS... --json`: (status, rows)."""

    def call(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["bump", *words, "--json"])
        said = capsys.readouterr()
        assert said.out, said.err
        return int(ended.value.code or 0), json.loads(said.out)

    return call


def test_what_is_below_moves_first(folder: Path, run: Run) -> None:
    """The whole of a site's recipes by one pattern: its own, and each once."""
    status, rows = run("*", "--to", "26.08", "--no-lock")
    assert status == 0, rows
    assert [row["stack"] for row in rows] == ["mine-26.08", "top-26.08"]
    assert (folder / "mine.yaml").read_text() == MINE.replace('"25.10"]', '"25.10", "26.08"]')
    assert (folder / "top-25.10.yaml").read_text() == TOP
    assert (folder / "top-26.08.yaml").read_text() == TOP.replace("25.10", "26.08")
    assert {one["name"]: one["after"] for row in rows for one in row["changes"]} == {
        "CUDA": "13.4.0"
    }

    # Again: it is there, and nothing is written.
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    status, rows = run("mine", "top-26.08", "--to", "26.08", "--no-lock")
    assert (status, [row["file"] for row in rows]) == (0, ["", ""])
    assert "is there already" in rows[0]["said"]
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_newest_is_the_newest(folder: Path, run: Run) -> None:
    status, rows = run("mine", "--newest", "--dry-run")
    assert (status, [row["stack"] for row in rows]) == (0, ["mine-26.09"])
    assert '+matrix: {version: ["24.11", "25.10", "26.09"]}' in rows[0]["diff"]
    assert (folder / "mine.yaml").read_text() == MINE


def test_what_comes_with_hpcstack_is_extended(folder: Path, run: Run) -> None:
    status, rows = run("pytorch", "--to", "26.09", "--no-lock")
    assert (status, [row["stack"] for row in rows]) == (0, ["pytorch-26.09"]), rows
    text = (folder / "pytorch-26.09.yaml").read_text()
    shipped = Catalog([data.find_data_folder("recipes")]).names()
    newest = max((name for name in shipped if name.startswith("pytorch-2")), key=str)
    assert f'extends: {newest}\nname: pytorch\nversion: "26.09"' in text
    assert f'base: {{image: "{IMAGE}:26.09-py3"}}' in text

    stack = Catalog([folder, data.find_data_folder("recipes")]).find("pytorch-26.09").stack
    assert stack.module.commands == ("torchrun", "deepspeed")


def test_a_month_that_is_not_there(folder: Path, run: Run) -> None:
    """One that cannot be moved does not keep the others from it."""
    (folder / "own.yaml").write_text(
        f"apiVersion: hpcstack/v1\nname: own\nversion: '1'\nsummary: S\nbase: {{image: {IMAGE}:24.11-py3}}\n"
    )
    (folder / "igpu-26.08.yaml").write_text(
        f"apiVersion: hpcstack/v1\nname: igpu\nversion: '26.08'\nsummary: S\nbase: {{image: {IMAGE}:26.08-py3-igpu}}\n"
    )
    status, rows = run("own", "igpu-26.08", "--to", "26.09", "--no-lock")
    assert status == 2
    assert "has no tag like 26.08-py3-igpu that begins with 26.09" in rows[0]["said"]
    assert rows[1]["stack"] == "own-1"
    assert f"{IMAGE}:26.09-py3" in (folder / "own.yaml").read_text()


def test_a_digest_is_renewed(folder: Path, run: Run, ngc: NgcRegistry) -> None:
    digest = f"sha256:{'1' * 64}"
    (folder / "own.yaml").write_text(
        f"apiVersion: hpcstack/v1\nname: own\nversion: '1'\nsummary: S\nbase: {{image: {IMAGE}:24.11-py3@{digest}}}\n"
    )
    had = example_lock(Catalog([folder]).find("own-1").stack)
    (folder.parent / "locks").mkdir()
    (folder.parent / "locks/own-1.lock.json").write_text(had.file_text())
    site = Site.model_validate(json.loads((folder.parent / "site.yaml").read_text()))
    catalog = Catalog([folder])
    planner = Planner(catalog, site, Registry(site), folder, "26.08")
    found = planner.registry.digest(Base(image=f"{IMAGE}:26.08-py3"))
    move = planner.plan(catalog.find("own-1"))
    assert move.edit
    assert f"{IMAGE}:26.08-py3@{found}" in move.edit.after


def test_a_file_that_changed_meanwhile_is_not_written_over(folder: Path) -> None:
    site = Site.model_validate(json.loads((folder.parent / "site.yaml").read_text()))
    catalog = Catalog([folder])
    planner = Planner(catalog, site, Registry(site), folder, "26.08")
    move = planner.plan(catalog.find("mine-25.10"))
    assert move.edit
    (folder / "mine.yaml").write_text(MINE + "# a colleague's\n")
    with pytest.raises(InputError, match="has changed meanwhile"):
        write_edit(move.edit)
    assert (folder / "mine.yaml").read_text() == MINE + "# a colleague's\n"


def test_of_each_stack_the_newest_moves(folder: Path) -> None:
    (folder / "multi.yaml").write_text(
        f"apiVersion: hpcstack/v1\nname: multi\nsummary: S\nbase: {{image: '{IMAGE}:${{stack.version}}-py3'}}\n"
        'matrix: {version: ["9.1", "10.1"], variant: [a, b]}\n'
    )
    recipes = Catalog([folder]).read(folder / "multi.yaml")
    assert [one.stack.full_name for one in choose_newest(recipes)] == ["multi-10.1-a"]


def test_nodes_on_which_it_runs_no_longer_are_named(folder: Path) -> None:
    """A V100 runs CUDA 12 and not 13; a node that never ran it is not news."""
    site = Site.model_validate(
        {
            "store": folder, "lock_dir": folder, "module_root": folder,
            "node_types": {
                "old": {"driver": "580.65.06", "gpus": {"model": "V100", "count": 4}},
                "new": {"driver": "580.65.06", "gpus": {"model": "H100", "count": 4}},
            },
        }
    )  # fmt: skip
    catalog = Catalog([data.find_data_folder("recipes")])
    before, after = catalog.find("pytorch-24.11"), catalog.find("pytorch-25.10")

    def lock_with(recipe: Any, cuda: str) -> Any:
        lock = example_lock(recipe.stack)
        platforms = {
            name: one.model_copy(update={"environment": {"CUDA_VERSION": cuda}})
            for name, one in lock.base.platforms.items()
        }
        tag = recipe.stack.base.tag
        return lock.model_copy(
            update={"base": lock.base.model_copy(update={"platforms": platforms, "tag": tag})}
        )

    had, lock = lock_with(before, "12.6.3"), lock_with(after, "13.0.2")
    (found,) = find_misfits(before, had, after, lock, site)
    assert found.startswith("old: CUDA 13.0.2 has dropped the V100")
    assert find_misfits(after, lock, after, lock, site) == []


def plan(folder: Path, stack: str, month: str = "26.08") -> tuple[Planner, Move]:
    site = Site.model_validate(json.loads((folder.parent / "site.yaml").read_text()))
    catalog = Catalog([folder, data.find_data_folder("recipes")])
    planner = Planner(catalog, site, Registry(site), folder, month)
    return planner, planner.plan(catalog.find(stack))


def test_line_ends_stay_what_they_are(folder: Path) -> None:
    text = (
        MINE.replace("\n", "\r\n")
        .replace('["24.11", "25.10"]', '\r\n  - "25.10"\r\n')
        .replace("matrix: {version: \r\n", "matrix:\r\n  version:\r\n")
        .replace("\r\n}\r\n", "\r\n")
    )
    (folder / "mine.yaml").write_bytes(text.encode())
    _, move = plan(folder, "mine-25.10")
    assert move.edit
    write_edit(move.edit)
    written = (folder / "mine.yaml").read_bytes()
    assert b'- "26.08"\r\n' in written
    assert b"\n" not in written.replace(b"\r\n", b"")


def test_no_recipe_is_written_through_a_link(folder: Path) -> None:
    """Git carries links; one within the folder is read."""
    (folder / "kept").mkdir()
    (folder / "mine.yaml").rename(folder / "kept/mine.txt")
    (folder / "mine.yaml").symlink_to("kept/mine.txt")
    before = (folder / "kept/mine.txt").read_bytes()
    _, move = plan(folder, "mine-25.10")
    assert move.edit
    with pytest.raises(InputError, match=r"mine\.yaml is a symbolic link"):
        write_edit(move.edit)
    assert (folder / "kept/mine.txt").read_bytes() == before


def test_a_recipe_over_the_one_of_the_same_name(folder: Path, run: Run) -> None:
    """A site's own pytorch-25.10 extends the one that comes with hpcstack."""
    (folder / "pytorch-25.10.yaml").write_text(
        "apiVersion: hpcstack/v1\nextends: pytorch-25.10\nname: pytorch\nversion: '25.10'\nsummary: S 25.10\n"
    )
    status, rows = run("*", "--to", "26.08", "--no-lock")
    assert status == 0, rows
    assert (folder / "pytorch-26.08.yaml").exists() or "pytorch-26.08" in [
        row["stack"] for row in rows
    ]


def test_one_broken_recipe_does_not_stop_the_others(folder: Path, run: Run) -> None:
    (folder / "wrong-25.10.yaml").write_text(
        f"apiVersion: hpcstack/v1\nname: wrong\nversion: '25.10'\nsummary: S\nbsae: {{}}\n"
        f"base: {{image: {IMAGE}:25.10-py3}}\n"
    )
    status, rows = run("*", "--to", "26.08", "--no-lock")
    assert status == 2
    found = {row["stack"]: row["status"] for row in rows}
    assert found == {"wrong-25.10": 2, "mine-26.08": 0, "top-26.08": 0}
    assert '"26.08"' in (folder / "mine.yaml").read_text()


def test_all_stacks_of_a_file_are_locked(folder: Path) -> None:
    (folder / "lab.yaml").write_text(
        f"apiVersion: hpcstack/v1\nname: lab\nversion: '1.2'\nsummary: S\n"
        f"base: {{image: {IMAGE}:25.10-py3}}\nmatrix: {{variant: [a, b]}}\n"
    )
    (folder / "on-1.yaml").write_text(
        "apiVersion: hpcstack/v1\nextends: lab-1.2-a\nname: on\nversion: '1'\nsummary: S\n"
    )
    planner, move = plan(folder, "lab-1.2-a")
    assert move.stacks == ("lab-1.2-a", "lab-1.2-b")
    assert move.edit
    assert any(
        "on-1 of on-1.yaml extends it, and changes with it" in note for note in move.edit.notes
    )
    # That one is on the new base by what was planned: there is nothing to edit.
    dragged = planner.plan(Catalog([folder]).find("on-1"))
    assert (dragged.edit, dragged.stacks) == (None, ("on-1",))


def test_only_what_names_the_base_gets_the_new_month(folder: Path) -> None:
    """Versions of packages and addresses may look like a month."""
    (folder / "pins-25.10.yaml").write_text(
        f"apiVersion: hpcstack/v1\nname: pins\nversion: '25.10'\nsummary: S\n"
        f"base: {{image: {IMAGE}:25.10-py3}}\n"
        "packages: {pip: ['fsspec==2025.10.0', 'cudf==25.10.*', 'y==1.25.10']}\n"
        "labels: {org.example.from: 'https://x/25.10/t'}\n"
    )
    _, move = plan(folder, "pins-25.10")
    assert move.edit
    for kept in ("fsspec==2025.10.0", "cudf==25.10.*", "y==1.25.10", "https://x/25.10/t"):
        assert kept in move.edit.after
    notes = " ".join(move.edit.notes)
    assert "line 6 has 25.10 in it still: cudf==25.10.*" in notes
    assert "line 7 has 25.10 in it still" in notes


def test_it_does_not_go_back(folder: Path, run: Run) -> None:
    status, rows = run("mine", "--to", "24.11", "--no-lock")
    assert status == 2
    assert "mine-25.10 is on 25.10-py3, and 24.11-py3 is older" in rows[0]["said"]


@pytest.mark.parametrize(
    ("version", "tag", "newer", "chosen"),
    [
        ("3.12", "3.12.13-slim", ["3.12.14-slim", "3.14.2-slim"], "3.12.14-slim"),
        ("12.9", "12.9.1-ubuntu24.04", ["13.0.2-ubuntu22.04", "12.9.2-ubuntu22.04"], "12.9.1-ubuntu24.04"),
        ("25.06", "25.06-cuda12.9-ubuntu24.04", ["26.08-cuda13.4-ubuntu24.04"], "26.08-cuda13.4-ubuntu24.04"),
        ("1", "12.9.1-ubuntu22.04", ["13.0.2-ubuntu24.04"], "13.0.2-ubuntu24.04"),
    ],
)  # fmt: skip
def test_the_newest_is_one_that_may_follow(
    version: str, tag: str, newer: list[str], chosen: str
) -> None:
    stack = Stack.model_validate({
        "apiVersion": "hpcstack/v1", "name": "x", "version": version, "summary": "S",
        "base": {"image": f"docker.io/library/x:{tag}"},
    })  # fmt: skip
    assert choose_tag(stack, [tag, *newer], "") == chosen


def test_it_asks_where_to(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["mine"], ["mine", "--newest", "--to", "26.08"]):
        with pytest.raises(SystemExit) as ended:
            main(["bump", *words])
        assert ended.value.code == 2
        assert "say where to" in capsys.readouterr().err
