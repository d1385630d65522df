"""Two administrators of one group and a CI account that only reads, as three accounts of this
machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.lmod,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes accounts"),
]
GROUP, ADMINS, READER = "hpcstackadm", ("hpcstackadm1", "hpcstackadm2"), "hpcstackci"
RECIPE = """\
apiVersion: hpcstack/v1
name: {name}
version: "{version}"
summary: of a group
base: {{image: {base}}}
run: [{{name: say, command: "echo {version} > /said"}}]
launch: {{mode: plain}}
"""


class Accounts:
    """A site of GROUP's, and its accounts."""

    def __init__(self, testbed: Testbed, base: str) -> None:
        self.testbed, self.base, self.top = testbed, base, testbed.folder / "group"
        shutil.rmtree(self.top, ignore_errors=True)
        for folder, owner in ((self.top, "root"), (self.top / "site", ADMINS[0])):
            folder.mkdir(mode=0o755)
            shutil.chown(folder, owner)
        recipes = self.top / "recipes"
        recipes.mkdir()
        for version in ("1", "2"):
            text = RECIPE.format(name="shared", version=version, base=base)
            (recipes / f"shared-{version}.yaml").write_text(text)
        site = (testbed.folder / "etc/site.yaml").read_text().splitlines()
        kept = [
            line
            for line in site
            if not line.startswith(("store:", "lock_dir:", "module_root:", "recipe_dirs:"))
        ]
        top = self.top / "site"
        own = [f"store: {top}/store", f"lock_dir: {top}/locks", f"module_root: {top}/modules",
               f"recipe_dirs: [{recipes}]", f"group: {GROUP}", "locks: site"]  # fmt: skip
        (self.top / "site.yaml").write_text("\n".join([*kept, *own]) + "\n")

    def __call__(
        self, who: str, *words: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        home = Path("/home") / who
        env = {
            "HOME": str(home),
            "USER": who,
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LC_ALL": "C.UTF-8",
            "SLURM_CONF": str(self.testbed.folder / "etc/slurm.conf"),
        }
        argv = ["runuser", "-u", who, "--", "sh", "-c", 'umask 077; cd "$HOME" && exec "$@"', "sh",
                str(self.testbed.folder / "venv/bin/hpcstack"), "--site", str(self.top / "site.yaml"), *words]  # fmt: skip
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=600
        )
        assert not check or done.returncode == 0, f"{who} {words}\n{done.stdout}\n{done.stderr}"
        return done

    def make_stack_of_a_user(self) -> None:
        """mine.yaml in the reader's home: a stack on the site's own base."""
        path = Path("/home") / READER / "mine.yaml"
        path.write_text(RECIPE.format(name="mine", version="1", base=self.base))
        shutil.chown(path, READER)

    def json(self, who: str, *words: str) -> Any:
        return json.loads(self(who, *words, "--json").stdout)


def remove_accounts(testbed: Testbed) -> None:
    for name in (*ADMINS, READER):
        subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)
    subprocess.run(["groupdel", GROUP], check=False, capture_output=True)
    shutil.rmtree(testbed.folder / "group", ignore_errors=True)


@pytest.fixture
def accounts(testbed: Testbed, small_base: str) -> Iterator[Accounts]:
    remove_accounts(testbed)  # of a run that was killed
    made: list[tuple[str, ...]] = [("groupadd", GROUP)]
    made += [("useradd", "--create-home", "--groups", GROUP, name) for name in ADMINS]
    made += [("useradd", "--create-home", READER)]
    for argv in made:
        subprocess.run(argv, check=True, capture_output=True)
    try:
        yield Accounts(testbed, small_base)
    finally:
        remove_accounts(testbed)


@pytest.mark.soak(
    "three accounts build and publish for two minutes",
    kept="tests/integration/test_publishing_users.py::test_a_group_of_publishers_shares_a_tree",
)
def test_two_administrators_and_a_reader(accounts: Accounts) -> None:
    one, two = ADMINS
    first = accounts.json(one, "build", "shared-1", "--engine", "builtin")
    accounts(one, "publish", "shared-1")
    assert not accounts.json(two, "build", "shared-1", "--engine", "builtin")["built"], (
        "the other's image"
    )
    said = accounts(two, "build", "shared-2", "--engine", "builtin")
    assert "importing" not in said.stderr, "the base is in the group's cache"
    accounts(two, "build", "shared-1", "--engine", "builtin", "--no-cache")
    accounts(two, "publish", "shared-2")
    accounts(two, "default", "shared/1", "--reason", "the other's")
    accounts(one, "undo", "shared")
    accounts(two, "remove", "shared/1-r1")
    accounts(one, "undo", "shared")
    events = accounts.json(one, "history", "shared")["events"]
    assert [(event["by"], event["verb"]) for event in events] == [
        (one, "publish"), (two, "publish"), (two, "default"), (one, "undo"), (two, "remove"), (one, "undo"),
    ]  # fmt: skip
    accounts(one, "lock", "shared-2")
    for admin in ADMINS:
        accounts(admin, "gc", "--older-than", "0", "--no-slurm")
    assert accounts.json(one, "status")["wrong"] == []

    assert [row["stack"] for row in accounts.json(READER, "images")] == ["shared-1", "shared-2"]
    assert accounts.json(READER, "inspect", "shared/1")["stack"] == "shared-1"
    accounts(READER, "status", "--check")
    accounts(READER, "launch", "shared/1", "--runtime", "local", "--dry-run", "--", "true")
    for words in (
        ("publish", "shared-1"),
        ("default", "shared/1"),
        ("undo", "shared"),
    ):
        refused = accounts(READER, *words, check=False)
        assert refused.returncode not in (0, 70) and "ERROR" in refused.stderr, (
            words,
            refused.stderr,
        )
        assert "Traceback" not in refused.stderr
    accounts.make_stack_of_a_user()
    accounts(
        two, "build", "shared-1", "--engine", "builtin", "--no-cache"
    )  # gc has taken the base away
    built = accounts(READER, "build", "./mine.yaml", "--engine", "builtin")
    assert "importing" not in built.stderr
    assert "on the site's own copy of the base" in built.stderr
    assert f"your own store, /home/{READER}/.local/share/hpcstack/store" in built.stderr
    image = Path(accounts.json(READER, "inspect", "mine-1")["image"])
    assert image.is_relative_to(f"/home/{READER}/.local/share/hpcstack/store")
    assert image.owner() == READER
    assert not accounts.json(READER, "build", "shared-1", "--locked", "--engine", "builtin")[
        "built"
    ], "the site's image"
    assert [row["stack"] for row in accounts.json(READER, "images")] == [
        "mine-1",
        "shared-1",
        "shared-2",
    ]
    ran = accounts(READER, "launch", "mine-1", "--runtime", "local", "--", "cat", "/said")
    assert ran.stdout.strip() == "1"
    refused = accounts(READER, "publish", "./mine.yaml", check=False)
    assert "is not yours to write" in refused.stderr
    assert "hpcstack launch mine-1" in refused.stderr
    accounts(READER, "build", "./mine.yaml", "--engine", "builtin", "--no-cache")
    going = accounts.json(READER, "gc", "--older-than", "0", "--no-slurm")
    assert going["removed"]
    assert all(one["path"].startswith(f"/home/{READER}/") for one in going["removed"])
    assert not accounts.json(READER, "build", "shared-2", "--engine", "builtin")["built"], (
        "the site's is still there"
    )

    store = accounts.top / "site/store"
    closed = [path for path in (store, *store.rglob("*")) if path.is_dir() and not path.stat().st_mode & 0o020
              ]  # fmt: skip
    assert not closed, closed
    assert first["built"]
