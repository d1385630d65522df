"""hpcstack is upgraded and rolled back with a tree and a store in use: each version goes on with what
the other has written.

The older version is that of a commit, by this machine's Python and libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.modules import Place, bash
from support.testbed import REPO

# before `find`, `audit`, `usage` and what they write into releases and site.yaml
BEFORE = "bb705b02952db05862c9438d7c5f11af9b622f98"
PUBLISH = """
import sys
from pathlib import Path
from support.modules import Place
Place(Path(sys.argv[1])).publish(content=sys.argv[2].encode(), channel=sys.argv[3])
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of the older version."""
    git = ["git", "-C", str(REPO)]
    known = subprocess.run([*git, "cat-file", "-e", BEFORE], capture_output=True, check=False)
    if known.returncode:
        pytest.skip("this checkout has no history")
    folder = tmp_path_factory.mktemp("older") / "hpcstack"
    subprocess.run([*git, "worktree", "add", "--detach", str(folder), BEFORE], check=True)
    version = folder / "src/hpcstack/_version.py"
    version.write_text('__version__ = "0.1.0.older"\n')
    yield folder
    subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


class Version:
    """One version of hpcstack at a site."""

    def __init__(self, checkout: Path, top: Path) -> None:
        self.checkout, self.top = checkout, top

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.checkout / 'src'}:{self.checkout / 'tests'}"
        env = {**os.environ, "PYTHONPATH": path, "HOME": str(self.top), "HPCSTACK_SITE": ""}
        return subprocess.run(
            [sys.executable, *words],
            env=env,
            cwd=self.top,
            capture_output=True,
            text=True,
            check=False,
        )

    def publish(self, content: str, channel: str = "testing") -> None:
        done = self.python("-c", PUBLISH, str(self.top / "site"), content, channel)
        assert done.returncode == 0, done.stderr[-2000:]

    def answer(self, *words: str) -> Any:
        site = self.top / "site.yaml"
        done = self.python("-m", "hpcstack", "--site", str(site), *words, "--json")
        assert done.returncode == 0, (words, done.stdout, done.stderr[-2000:])
        return json.loads(done.stdout)

    @property
    def version(self) -> str:
        return self.python("-m", "hpcstack", "--version").stdout


@pytest.mark.lmod
def test_each_version_goes_on_with_what_the_other_wrote(older: Path, tmp_path: Path) -> None:
    place = Place(tmp_path / "site")
    (tmp_path / "site.yaml").write_text(
        f"store: {place.site.store}\nlock_dir: {place.site.lock_dir}\n"
        f"module_root: {place.site.module_root}\n"
    )
    old, new = Version(older, tmp_path), Version(REPO, tmp_path)
    assert "older" in old.version
    assert "older" not in new.version

    def loaded() -> str:
        done = bash(place, "lmod", 'module load pytorch/24.11; echo "$HPCSTACK_RELEASE"')
        return done.stdout.strip()

    old.publish("one")
    old.publish("two", "production")
    assert loaded() == "pytorch/24.11-r2"

    # upgraded: what is there is well, is found, and is gone on with
    assert new.answer("status", "--check")["wrong"] == []
    hits = new.answer("find", "torch", "--published")["hits"]
    assert [one["releases"][0]["name"] for one in hits] == ["pytorch/24.11-r1", "pytorch/24.11-r2"]
    new.publish("three", "production")
    assert loaded() == "pytorch/24.11-r3"
    assert new.answer("status", "--check")["wrong"] == []

    # and back: the older one reads it, takes the newer one's change back, and publishes
    assert old.answer("status", "--check")["wrong"] == []
    old.answer("undo", "pytorch", "--no-slurm")
    assert loaded() == "pytorch/24.11-r2"
    old.publish("four", "production")
    assert loaded() == "pytorch/24.11-r4"

    # and forward again
    assert new.answer("status", "--check")["wrong"] == []
    verbs = [event["verb"] for event in new.answer("history", "pytorch")["events"]]
    assert sorted(verbs) == sorted(["publish", "promote", "promote", "undo", "promote"])
