"""What a build's log says of why it failed: the advice of each known line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.build.diagnose_log import explain_failure, find_ending_line
from hpcstack.core import data
from hpcstack.core.process import Completed
from hpcstack.recipe.catalog import Catalog
from hpcstack.site.load import Site
from support.locks import example_lock


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "/bin/bash: line 3: uv: command not found",
            "only NVIDIA's images from 26.02 to 26.05 have uv",
        ),
        ("sh: 1: uv: not found", "packages.pip: [uv]"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'uv'", "packages.pip: [uv]"),
        ("E: Held packages were changed and -y was used", "the base holds"),
        ("manifest unknown", "hpcstack lock pytorch-24.11"),
    ],
)
def test_a_known_line_has_its_advice(tmp_path: Path, site: Site, line: str, advice: str) -> None:
    (tmp_path / "log").write_text(f"== hpcstack step 1/1 run: mine\n{line}\n")
    lock = example_lock(Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack)
    found = explain_failure(
        Completed(("bash",), 127, (line,)), tmp_path / "log", tmp_path / "kept", lock, site
    )
    assert advice in found.hint
    assert "the build failed in step 1/1 run: mine" in found.message("the build failed")


@pytest.mark.parametrize("line", ["uvicorn: not found", "No module named uvloop"])
def test_what_only_looks_like_it_has_none(tmp_path: Path, site: Site, line: str) -> None:
    (tmp_path / "log").write_text(f"{line}\n")
    lock = example_lock(Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack)
    found = explain_failure(
        Completed(("bash",), 127, (line,)), tmp_path / "log", tmp_path / "kept", lock, site
    )
    assert found.hint == f"the whole log is {tmp_path}/kept"


@pytest.mark.parametrize(
    ("line", "page"),
    [
        ("certificate verify failed", "mirror-a-registry"),
        ("No space left on device", "free-disk-space"),
        ("manifest unknown", ""),
    ],
)
def test_a_known_line_names_the_page_about_it(
    tmp_path: Path, site: Site, line: str, page: str
) -> None:
    (tmp_path / "log").write_text(f"{line}\n")
    lock = example_lock(Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack)
    found = explain_failure(
        Completed(("bash",), 1, (line,)), tmp_path / "log", tmp_path / "kept", lock, site
    )
    assert found.page == page


COMPILED = """\
== hpcstack step 1/2 apt
E: a warning of an earlier step
== hpcstack step 2/2 run: mine
checking for x... no
[1/9] c++ -c a.cc
/src/a.cc:12:10: fatal error: cuda.h: No such file or directory
compilation terminated.
/src/b.cc:1:1: error: 'x' was not declared
make[1]: *** [Makefile:9: a.o] Error 1
make: *** [Makefile:3: all] Error 2
== hpcstack failed in step 2/2 run: mine
== hpcstack command make
"""


@pytest.mark.parametrize(
    ("log", "ended_by"),
    [
        (COMPILED, (6, "/src/a.cc:12:10: fatal error: cuda.h: No such file or directory")),
        ("a\nE: Unable to locate package libx\n", (2, "E: Unable to locate package libx")),
        (
            "ERROR: Could not find a version that satisfies the requirement x\n"
            "ERROR: No matching distribution found for x\n\n[notice] A new release\n",
            (2, "ERROR: No matching distribution found for x"),
        ),
        ("/bin/bash: line 3: foo: command not found\nbye\n", (1, "/bin/bash: line 3: foo: command not found")),
        ("Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'y'\n", (3, "ModuleNotFoundError: No module named 'y'")),
        ("k.cu(7): error: identifier \"x\" is undefined\n", (1, 'k.cu(7): error: identifier "x" is undefined')),
        ("CMake Error at CMakeLists.txt:3 (find_package):\n  Could not find\n", (1, "CMake Error at CMakeLists.txt:3 (find_package):")),
        ("all is well\n0 errors\n", None),
    ],
)  # fmt: skip
def test_the_line_that_ended_a_step_is_named(log: str, ended_by: tuple[int, str] | None) -> None:
    assert find_ending_line(log) == ended_by


def test_it_comes_first_in_the_message(tmp_path: Path, site: Site) -> None:
    (tmp_path / "log").write_text(COMPILED)
    lock = example_lock(Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack)
    failed = Completed(("bash",), 2, tuple(COMPILED.splitlines()[6:]))
    found = explain_failure(failed, tmp_path / "log", tmp_path / "kept", lock, site)
    assert found.message("the build failed").splitlines()[2] == (
        "  < line 6 of the log: /src/a.cc:12:10: fatal error: cuda.h: No such file or directory"
    )
