"""The testbed as tests see it: commands as its ordinary user."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
CONTROL = REPO / "ci/testbed"


class Testbed:
    """Runs commands on the testbed; everything it does goes through `ci/testbed exec`."""

    __test__ = False

    def __init__(self) -> None:
        self.folder = Path(os.environ.get("HPCSTACK_TESTBED", "/opt/hpcstack-testbed"))

    def is_up(self) -> bool:
        return _status(self.folder) == 0

    def has_pyxis(self) -> bool:
        return "--container-image" in self.run("srun", "--help").stdout

    def has_blocks(self) -> bool:
        return "BlockName=" in self.run("scontrol", "show", "topology").stdout

    def run(
        self, *argv: str, timeout: float = 600, check: bool = False, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """ARGV as the ordinary user, in its home."""
        pairs = [f"{key}={value}" for key, value in env.items()]
        command = [str(CONTROL), "exec", "env", *pairs, *argv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode:
            raise AssertionError(
                f"{argv} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def hpcstack(
        self, *argv: str, timeout: float = 600, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return self.run("hpcstack", *argv, timeout=timeout, check=check, **env)

    def json(self, *argv: str, check: bool = True) -> Any:
        """The JSON document that a verb prints."""
        return json.loads(self.run("hpcstack", *argv, "--json", check=check).stdout)

    def bash(
        self, script: str, *arguments: str, check: bool = True, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """SCRIPT in the user's bash, with `module` as a login defines it."""
        return self.run("bash", "-c", script, "bash", *arguments, check=check, timeout=timeout)

    @property
    def home(self) -> Path:
        return Path(self.bash("echo $HOME").stdout.strip())

    @property
    def registry(self) -> str:
        """HOST:PORT of what keeps the images, by plain http and without a login: for those who
        push.
        """
        text = (self.folder / "etc/registry.yml").read_text()
        return text.partition('addr: "')[2].partition('"')[0]

    @property
    def ngc(self) -> str:
        """HOST:PORT of what stands where nvcr.io stands, by TLS."""
        return (self.folder / "etc/ngc/address").read_text().strip()

    @property
    def ca_bundle(self) -> Path:
        """The certificates that vouch for `ngc`, and those that this machine trusts."""
        return self.folder / "etc/ca-bundle.pem"

    def unpublish(self, name: str) -> None:
        """NAME as if it had never been published: a testbed that is up may have seen these tests
        before.
        """
        site = self.folder / "site"
        places = [f"modules/{part}/{name}" for part in ("Core", "Tcl", "state")] + [
            f"store/releases/{name}"
        ]
        self.bash("rm -rf " + " ".join(str(site / one) for one in places))

    def make_empty(self, folder: Path) -> None:
        """FOLDER without anything in it, whatever a test that was killed has left there.

        The kernel gives the work folder of an overlay no mode at all, and a build that was killed
        leaves one: rm alone cannot look into it.
        """
        script = 'chmod -Rf u+rwX "$1"; rm -rf "$1" && mkdir -p "$1"'
        self.bash(script, str(folder))

    def give(self, path: str, text: str) -> Path:
        """TEXT as a file below the user's home, which the nodes see."""
        target = self.home / path
        self.bash('mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1"', str(target), text)
        return target

    def give_bytes(self, path: Path, content: bytes) -> None:
        """CONTENT as the small file PATH, which is the user's."""
        text = base64.b64encode(content).decode()
        self.bash('mkdir -p "$(dirname "$1")" && printf %s "$2" | base64 -d >"$1"', str(path), text)


@cache
def _status(_folder: Path) -> int:
    return subprocess.run([str(CONTROL), "status"], capture_output=True, check=False).returncode
