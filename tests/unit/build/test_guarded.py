"""Which layers are taken to have touched a library: all that have, and few others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcstack.build.engines.guarded import libraries_script, may_touch_libraries
from hpcstack.recipe.guard import LIBRARIES
from hpcstack.render.steps import BuildStep, step_script

pytestmark = pytest.mark.squashfs


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    for name in ("usr/lib/torch/lib/libtorch.so", "usr/lib/libnccl.so.2", "usr/share/doc/a", "opt/hpcstack/build/x"):
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
    ("names", "touches"),
    [
        (("usr/lib/libnccl.so.2",), True),
        (("usr/lib/new/libnccl.so.2.1",), True),
        (("usr/lib/torch",), True),  # a file, or a whiteout, in a folder's place
        (("usr/lib/torch/lib",), True),
        (("usr/lib/torch/lib/libother.so", "usr/lib/new/deep/a.py", "etc/libs"), False),
        (("usr/share/doc/a", "usr/lib/torch/"), False),
        (("opt/hpcstack/build/libnccl.so",), False),
        ((), False),
    ],
)
def test_a_layer_is_judged_by_its_names(tmp_path: Path, base: Path, names: tuple[str, ...], touches: bool) -> None:
    assert may_touch_libraries(make(tmp_path / "upper", *names), base, []) is touches


def test_a_folder_that_hides_the_one_below_is_looked_at(tmp_path: Path, base: Path) -> None:
    upper = make(tmp_path / "upper", "usr/lib/torch/", "usr/new/")
    os.setxattr(upper / "usr/new", "user.overlay.opaque", b"y")
    assert not may_touch_libraries(upper, base, [])
    os.setxattr(upper / "usr/lib/torch", "user.overlay.opaque", b"y")
    assert may_touch_libraries(upper, base, [])


def test_folders_of_earlier_layers_count(tmp_path: Path, base: Path) -> None:
    upper, earlier = make(tmp_path / "upper", "opt/conda"), make(tmp_path / "earlier", "opt/conda/")
    assert not may_touch_libraries(upper, base, [])
    assert may_touch_libraries(upper, base, [earlier])


def test_what_cannot_be_told_is_looked_at(tmp_path: Path, base: Path) -> None:
    upper = make(tmp_path / "upper", "etc/a")
    (tmp_path / "torn").write_bytes(base.read_bytes()[:50])
    assert may_touch_libraries(upper, tmp_path / "torn", [])
    assert may_touch_libraries(tmp_path / "missing", base, [])


def test_the_look_at_libraries_is_the_steps_own() -> None:
    text = libraries_script(step_script(BuildStep("it's pip", ("hpcstack_guard", "pip install x")), 3, 9))
    assert "pip install" not in text and "hpcstack_step 3/9" in text and text.endswith("hpcstack_guard_libraries\n")
    assert LIBRARIES.fullmatch("libtorch_cuda.so.2") and not LIBRARIES.fullmatch("libother.so")
