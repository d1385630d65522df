"""The lock that goes into a release is the one that its image was built from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpcstack.core import data
from hpcstack.lock.path import lock_path
from hpcstack.publish.attachments import collect_attachments
from hpcstack.recipe.catalog import Catalog
from hpcstack.store.artifact import Artifact

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.lock.model import Lock
    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site


@pytest.mark.parametrize(
    ("kept", "beside", "comes"),
    [
        ("same", "later", True),
        ("", "same", True),
        ("", "later", False),
        ("torn", "same", True),
        ("", "", False),
    ],
)
def test_the_lock_of_the_image_comes_with_the_release(
    tmp_path: Path,
    stack: Stack,
    lock: Lock,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    kept: str,
    beside: str,
    comes: bool,
) -> None:
    monkeypatch.setattr("hpcstack.store.sbom.make_image_sbom", lambda _: "{}")
    texts = {
        "same": lock.text(),
        "later": lock.model_copy(update={"template_version": "0"}).text(),
        "torn": "{",
    }
    recipe, folder = (
        Catalog([data.find_data_folder("recipes")]).find(stack.full_name),
        tmp_path / "image",
    )
    for path, which in ((folder / "lock.json", kept), (lock_path(recipe, site), beside)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if which:
            path.write_text(texts[which])
    artifact = Artifact(
        stack=stack.full_name, key="k1", sha256="0", size=1, platform="linux/amd64", engine="apptainer",
        lock_sha256=lock.digest(), base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={}, folder=str(folder),
    )  # fmt: skip
    found = collect_attachments(recipe, artifact, site)
    assert ("lock.json" in found) is comes
    assert found.get("lock.json", lock.text()) == lock.text()
