"""Recipes of one test on the testbed, with a store of the test's own."""

from __future__ import annotations

import subprocess

from support.testbed import CONTROL, Testbed


class Recipes:
    """Recipes of a test, in a folder of the testbed's user, with a site whose store is a test's
    own.
    """

    def __init__(self, testbed: Testbed, base: str, name: str) -> None:
        self.testbed, self.base = testbed, base
        self.testbed_control = CONTROL
        self.folder = testbed.home / "tests" / name
        testbed.make_empty(self.folder)
        testbed.bash('mkdir "$1/recipes"', str(self.folder))
        self.site(
            f"store: {self.folder}/store\nlock_dir: {self.folder}/locks\nmodule_root: "
            f"{self.folder}/modules\n"
        )

    def site(self, text: str) -> None:
        self.render_site_text = text
        self.testbed.give(
            str(self.folder / "site.yaml").removeprefix(f"{self.testbed.home}/"), text
        )

    def write(self, version: str, **parts: str) -> str:
        """A recipe demo-VERSION; PARTS are lines of YAML by key."""
        lines = [
            "apiVersion: hpcstack/v1",
            "name: demo",
            f'version: "{version}"',
            "summary: a test",
            f"base: {parts.pop('base', f'{{image: {self.base}}}')}",
        ]
        lines += [f"{key}: {value}" for key, value in parts.items()]
        path = self.folder / f"recipes/demo-{version}.yaml"
        self.testbed.give(str(path).removeprefix(f"{self.testbed.home}/"), "\n".join(lines) + "\n")
        return f"demo-{version}"

    def run(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        options = (
            "--site",
            str(self.folder / "site.yaml"),
            "--recipes",
            str(self.folder / "recipes"),
        )
        own = {
            "XDG_STATE_HOME": str(self.folder / "state"),
            **env,
        }  # the newest launch of others stays theirs
        pairs = [f"{key}={value}" for key, value in own.items()]
        return self.testbed.run("env", *pairs, "hpcstack", *options, *argv)

    def stored(self) -> list[str]:
        """All files in the store and the module tree, without logs."""
        found = self.testbed.bash(
            'cd "$1" && find store modules -type f 2>/dev/null | grep -v ^store/logs/ || true',
            str(self.folder),
        )
        return sorted(found.stdout.split())
