"""hpcstack is upgraded and rolled back with a tree and a store in use: each version goes on with what
the other has written.

Both are wheels: the older one of a commit, the newer one of this checkout, built here and used with
this machine's Python and libraries. HPCSTACK_OLDER_WHEEL and HPCSTACK_NEWER_WHEEL name others, say
two releases; HPCSTACK_OLDER_COMMIT is then what the older one was built of.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.checkout import copy_checkout
from support.modules import Place, bash
from support.testbed import REPO, Testbed

# before `find`, `audit`, `usage` and what they write into releases and site.yaml
BEFORE = os.environ.get("HPCSTACK_OLDER_COMMIT", "bb705b02952db05862c9438d7c5f11af9b622f98")
OLDER, NEWER = "0.1.0+older", "0.1.0+newer"
PUBLISH = """
import sys
from pathlib import Path
from support.modules import Place
Place(Path(sys.argv[1])).publish(content=sys.argv[2].encode(), channel=sys.argv[3])
"""


@dataclass(frozen=True)
class Built:
    """One version of hpcstack: its wheel, and a checkout whose tests fit it."""

    wheel: Path
    checkout: Path


def build_wheel(checkout: Path, version: str, folder: Path) -> Path:
    """The wheel of CHECKOUT as VERSION, in FOLDER, which is made."""
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    pretend = {**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION": version}
    argv = [sys.executable, *build, f"--wheel-dir={folder}", str(checkout)]
    subprocess.run(argv, check=True, env=pretend)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    git = ["git", "-C", str(REPO)]
    known = subprocess.run([*git, "cat-file", "-e", BEFORE], capture_output=True, check=False)
    if known.returncode:
        pytest.skip("this checkout has no history")
    folder = tmp_path_factory.mktemp("older") / "hpcstack"
    subprocess.run([*git, "worktree", "add", "--detach", str(folder), BEFORE], check=True)
    given = os.environ.get("HPCSTACK_OLDER_WHEEL", "")
    wheel = Path(given) if given else build_wheel(folder, OLDER, tmp_path_factory.mktemp("wheel"))
    yield Built(wheel, folder)
    subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Built:
    given = os.environ.get("HPCSTACK_NEWER_WHEEL", "")
    if given:
        return Built(Path(given), REPO)
    checkout = copy_checkout(tmp_path_factory.mktemp("newer"))
    return Built(build_wheel(checkout, NEWER, tmp_path_factory.mktemp("wheel")), REPO)


def read_version(built: Built) -> str:
    """The version that the name of a wheel says."""
    return built.wheel.name.split("-")[1]


class Version:
    """One version of hpcstack at a site."""

    def __init__(self, built: Built, top: Path) -> None:
        self.built, self.top = built, top
        self.packages = top / read_version(built)
        with zipfile.ZipFile(built.wheel) as wheel:
            wheel.extractall(self.packages)

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.packages}:{self.built.checkout / 'tests'}"
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

    def read_own_version(self) -> str:
        """What `hpcstack --version` says, without its first words."""
        return self.python("-m", "hpcstack", "--version").stdout.split()[-1]


@pytest.mark.lmod
def test_each_version_goes_on_with_what_the_other_wrote(
    older: Built, newer: Built, tmp_path: Path
) -> None:
    place = Place(tmp_path / "site")
    (tmp_path / "site.yaml").write_text(
        f"store: {place.site.store}\nlock_dir: {place.site.lock_dir}\n"
        f"module_root: {place.site.module_root}\n"
    )
    old, new = Version(older, tmp_path), Version(newer, tmp_path)
    for version in (old, new):
        assert version.read_own_version() == read_version(version.built)

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


def find_packages(environment: Path) -> Path:
    """The site-packages of a virtual environment."""
    return next(environment.glob("lib/python3*/site-packages"))


class Installed:
    """Two versions as docs/how-to/install.md says, and the link that users follow."""

    def __init__(self, testbed: Testbed, older: Built, newer: Built) -> None:
        self.testbed = testbed
        self.versions = {"older": read_version(older), "newer": read_version(newer)}
        self.top = testbed.folder / "upgrade"
        self.jobs: list[str] = []
        shutil.rmtree(self.top, ignore_errors=True)
        self.top.mkdir(mode=0o755)
        for name, built in (("older", older), ("newer", newer)):
            self._make_environment(name)
            python = str(self.top / name / "bin/python")
            install = [python, "-m", "pip", "--quiet", "install", "--no-deps", str(built.wheel)]
            subprocess.run(install, check=True)

    def _make_environment(self, name: str) -> None:
        """The virtual environment NAME; its libraries are those of the testbed's own."""
        folder = self.top / name
        python = self.testbed.folder / "venv/bin/python"
        subprocess.run([str(python), "-m", "venv", str(folder)], check=True)
        (find_packages(folder) / "libraries.pth").write_text(
            f"{find_packages(python.parents[1])}\n"
        )
        # what a module puts on PATH: a virtual environment's own bin has a python, too
        (folder / "command").mkdir()
        (folder / "command/hpcstack").symlink_to("../bin/hpcstack")
        module = f'prepend_path("PATH", "{folder}/command")\n'
        (self.top / "modules/hpcstack").mkdir(parents=True, exist_ok=True)
        (self.top / f"modules/hpcstack/{name}.lua").write_text(module)

    def switch_to(self, name: str) -> None:
        """`current` is NAME, in one step."""
        (self.top / "next").symlink_to(name)
        (self.top / "next").rename(self.top / "current")

    def run(self, words: str, version: str = "current/bin") -> str:
        own = f"XDG_STATE_HOME=$PWD/state PATH={self.top}/{version}:$PATH"
        script = f"mkdir -p tests/upgrade && cd tests/upgrade && export {own} && {words}"
        return self.testbed.bash(script).stdout.strip()

    def submit(self, words: str) -> str:
        """The number of a job that waits for its file, and then ends with 3."""
        self.jobs.append(self.run(f"{LAUNCH} {words}"))
        return self.jobs[-1]

    def end_jobs(self) -> None:
        """Nothing is left in the queue, whatever has failed: these jobs would wait for ever."""
        self.testbed.bash(f"scancel {' '.join(self.jobs)}", check=False)

    def wait_until_both_run(self, job: str) -> None:
        """Until both tasks of JOB have written their first line."""
        both = f'[ "$(cat *-{job}.out 2>/dev/null | grep -c began)" = 2 ]'
        self.run(f"timeout 300 bash -c 'until {both}; do sleep 0.3; done'")

    def state(self, job: str) -> str:
        """STATE|EXIT of JOB, as accounting has it in the end."""
        ask = f"sacct -nPX --format=State,ExitCode --jobs {job}"
        loop = f'until [[ "$({ask})" = [CF]* ]]; do sleep 0.3; done'  # COMPLETED, CANCELLED, FAILED
        return self.testbed.bash(f"timeout 300 bash -c '{loop}'; {ask}").stdout.strip()

    def log(self, job: str) -> str:
        return self.run(f"cat *-{job}.out")


@pytest.fixture(scope="module")
def installed(
    testbed: Testbed, built: dict[str, Any], older: Built, newer: Built
) -> Iterator[Installed]:
    made = Installed(testbed, older, newer)
    yield made
    shutil.rmtree(made.top)


WAITS = "sh -c 'echo began; until [ -e go-{0} ]; do sleep 0.3; done; echo ended; exit {1}'"
LAUNCH = "hpcstack launch pytorch-24.11 -N2 --ntasks-per-node 1 --mode plain --runtime apptainer --batch"  # fmt: skip


@pytest.mark.testbed
@pytest.mark.jobs
@pytest.mark.slurm
@pytest.mark.apptainer
@pytest.mark.lmod
@pytest.mark.timeout(1200)  # two versions are installed, beside six other lanes
@pytest.mark.parametrize(("before", "after"), [("older", "newer"), ("newer", "older")])
@pytest.mark.soak(
    "a rollback is an upgrade to another version", but=lambda before: before == "older"
)
def test_jobs_outlive_an_upgrade_and_a_rollback(
    installed: Installed, request: pytest.FixtureRequest, before: str, after: str
) -> None:
    """A running and three pending jobs of one version end as they should under the other one.

    The version that has submitted them is gone by then, but for the job with a watchdog, which
    needs it: docs/how-to/upgrade.md.
    """
    installed.switch_to(before)
    installed.run("rm -rf go-* *.out state")
    command = WAITS.format(before, 3)
    request.addfinalizer(installed.end_jobs)
    running = installed.submit(f"-- {command}")
    pending = installed.submit(f"--hold -- {command}")
    watched = installed.submit(f"--hold --watchdog 60 -- {command}")
    cancelled = installed.submit(f"--hold -- {command}")
    installed.wait_until_both_run(running)

    installed.switch_to(after)
    assert installed.run("hpcstack --version").split()[-1] == installed.versions[after]

    # the other version sees them, and reads what they have written
    rows = json.loads(installed.run("hpcstack jobs --json"))
    numbers = {str(row["job"]) for row in rows}
    assert {running, pending, watched, cancelled} <= numbers
    said = json.loads(installed.run(f"hpcstack logs {running} --json"))
    assert said["job"] == running
    # A rank that is just starting its next sleep stands out, and the answer is no.
    [step] = json.loads(installed.run(f"hpcstack hang {running} --json || [ $? = 1 ]"))["steps"]
    assert sorted(rank for group in step["groups"] for rank in group["ranks"]) == [0, 1]
    installed.run(f"hpcstack cancel {cancelled}")

    # the watched one needs the version that has submitted it
    installed.run(f"scontrol release {watched}")
    installed.run(f"touch go-{before}")
    for job in (running, watched):
        assert installed.state(job) == "FAILED|3:0", installed.log(job)
        assert "failed first" in installed.log(job).splitlines()[-1]

    # the other one does not
    away = installed.top / f"{before}.away"
    (installed.top / before).rename(away)
    try:
        installed.run(f"scontrol release {pending}")
        ended = installed.state(pending)
    finally:
        away.rename(installed.top / before)
    assert ended == "FAILED|3:0", installed.log(pending)
    assert "failed first; exit 3" in installed.log(pending).splitlines()[-1]
    assert installed.state(cancelled).startswith("CANCELLED")


@pytest.mark.testbed
@pytest.mark.jobs  # one lane: they share what is installed
@pytest.mark.lmod
def test_two_versions_side_by_side_by_modules(installed: Installed) -> None:
    use = f"module use {installed.top}/modules"
    for name in ("older", "newer"):
        script = f"{use}; module load hpcstack/{name}; hpcstack --version; command -v python3"
        version, python = installed.testbed.bash(script).stdout.split("\n")[:2]
        assert version.split()[-1] == installed.versions[name]
        assert not python.startswith(str(installed.top)), "a module of hpcstack brings no Python"
    swap = f"{use}; module load hpcstack/older; module load hpcstack/newer; hpcstack --version"
    assert installed.testbed.bash(swap).stdout.split()[-1] == installed.versions["newer"]
