"""What a build's log says of why it failed: the advice of each known line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.build.diagnose_log import explain_failure
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
