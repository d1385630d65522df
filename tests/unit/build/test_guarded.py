"""Which layers are taken to have touched a library: all that have, and few others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcstack.build.engines.guarded import compare_script, list_touched_places, remember_script
from hpcstack.recipe.guard import LIBRARIES
from hpcstack.render.steps import BuildStep, render_step_script

pytestmark = pytest.mark.squashfs


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    for name in (
        "usr/lib/torch/lib/libtorch.so",
        "usr/lib/libnccl.so.2",
        "usr/share/doc/a",
        "opt/hpcstack/build/x",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    image = tmp_path / "base.sqsh"
    argv = ["mksquashfs", str(tree), str(image), "-quiet", "-no-progress"]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return image


def make(upper: Path, *names: str) -> Path:
    upper.mkdir(exist_ok=True)
    for name in names:
        path = upper / name.rstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_text("x")
    return upper


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (("usr/lib/libnccl.so.2",), ["/usr/lib/libnccl.so.2"]),
        (("usr/lib/new/libnccl.so.2.1",), []),  # in a folder that was not there
        (("usr/lib/libcudnn.so.9",), []),  # the first of its name
        (("usr/lib/torch",), ["/usr/lib/torch"]),  # a file, or a whiteout, in a folder's place
        (("usr/lib/torch/lib",), ["/usr/lib/torch/lib"]),
        (("usr/lib/libnccl.so.2/",), ["/usr/lib/libnccl.so.2"]),  # a folder in a library's place
        (("usr/lib/torch/lib/libother.so", "usr/lib/new/deep/a.py", "etc/libs"), []),
        (("usr/share/doc/a", "usr/lib/torch/"), []),
        (("opt/hpcstack/build/libnccl.so",), []),
        ((), []),
    ],
)
def test_a_layer_is_judged_by_its_names(
    tmp_path: Path, base: Path, names: tuple[str, ...], places: list[str]
) -> None:
    assert touched(make(tmp_path / "upper", *names), base) == places


def touched(upper: Path, base: Path, *layers: Path) -> list[str]:
    return [os.fsdecode(place) for place in list_touched_places(upper, base, layers)]


def test_a_folder_that_hides_the_one_below_is_looked_at(tmp_path: Path, base: Path) -> None:
    upper = make(tmp_path / "upper", "usr/lib/torch/", "usr/new/")
    os.setxattr(upper / "usr/new", "user.overlay.opaque", b"y")
    assert not touched(upper, base)
    os.setxattr(upper / "usr/lib/torch", "user.overlay.opaque", b"y")
    assert touched(upper, base) == ["/usr/lib/torch"]


def test_folders_of_earlier_layers_count(tmp_path: Path, base: Path) -> None:
    upper, earlier = make(tmp_path / "upper", "opt/conda"), make(tmp_path / "earlier", "opt/conda/")
    assert not touched(upper, base)
    assert touched(upper, base, earlier) == ["/opt/conda"]


def test_what_cannot_be_told_is_looked_at(tmp_path: Path, base: Path) -> None:
    upper = make(tmp_path / "upper", "etc/a")
    (tmp_path / "torn").write_bytes(base.read_bytes()[:50])
    assert touched(upper, tmp_path / "torn") == ["/"]
    assert touched(upper, tmp_path / "missing") == ["/"]


def test_the_look_at_libraries_is_the_steps_own() -> None:
    lines = render_step_script(BuildStep("it's pip", ("hpcstack_guard", "pip install x")), 3, 9)
    for text in (remember_script(lines), compare_script(lines)):
        assert "pip install" not in text
        assert "hpcstack_step 3/9" in text
    assert compare_script(lines).endswith("hpcstack_lost\n")
    assert LIBRARIES.fullmatch("libtorch_cuda.so.2")
    assert not LIBRARIES.fullmatch("libother.so")
