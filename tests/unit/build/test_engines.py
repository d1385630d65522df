"""Engines at work on a small base, for real and without a testbed: steps, layers that are kept, the
image that is made.

Programs are really started. What starts them writes down how, so that a program of a base that
would run anywhere but in the build's enclosure shows here.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcstack.build.engines import find_engine
from hpcstack.build.engines.base import BuildResult, Job, ProgramFailed
from hpcstack.build.engines.machine import explain_refused_enclosure
from hpcstack.core import data
from hpcstack.core.errors import BuildError
from hpcstack.core.process import Completed, Runner
from hpcstack.core.progress import Progress
from hpcstack.render.steps import BuildStep
from hpcstack.site.load import BuildSite
from support.bases import make_base

pytestmark = pytest.mark.squashfs
SUPPORT = Path(__file__).parents[2] / "support"
ENGINES = ["builtin", "apptainer", "enroot"]


class Recorder(Runner):
    """Starts programs as a Runner does, and keeps what it was told to start."""

    def __init__(self) -> None:
        self.started: list[tuple[str, ...]] = []
        self.with_our_variables: list[tuple[str, ...]] = []

    def logged(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        keep: tuple[int, ...] = (),
        clean: bool = False,
    ) -> Completed:
        self.started.append(tuple(argv))
        if not clean:
            self.with_our_variables.append(tuple(argv))
        return super().logged(argv, log, env=env, cwd=cwd, on_line=on_line, keep=keep, clean=clean)

    def steps(self) -> list[tuple[str, ...]]:
        """What ran a program of the base."""
        return [argv for argv in self.started if "/bin/bash" in argv]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    make_base(folder)
    return folder / "base.sqsh"


@pytest.fixture(params=ENGINES)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    found = str(request.param)
    runner = Runner()
    if reason := find_engine(found).usable(runner) or explain_refused_enclosure(runner):
        pytest.skip(f"{found} cannot build here: {reason}")
    yield found


def make_job(folder: Path, base: Path, *steps: BuildStep, splice: str = "auto") -> Job:
    """A build of STEPS in FOLDER, which may hold the cache of an earlier one."""
    shutil.rmtree(folder / "work", ignore_errors=True)
    work, build = folder / "work", folder / "context/context/hpcstack/build"
    (work / "lent").mkdir(parents=True, mode=0o700)
    build.mkdir(parents=True, exist_ok=True)
    shutil.copy(data.find_data_folder("images") / "lib.sh", build)
    (build / "guard.sh").touch()
    job = Job(folder / "context", work / "lent", work, base, folder / "cache", work / "image.sqsh", work / "log",
              BuildSite.model_validate({"splice": splice}), Progress(), steps=steps, environment={"DEMO": "a b"})  # fmt: skip
    job.log.touch()
    return job


def build(name: str, job: Job, runner: Runner) -> BuildResult:
    """Build JOB with the engine NAME; where that fails, its log is what the test shows."""
    try:
        return find_engine(name).build(job, runner)
    except ProgramFailed:
        print(job.log.read_text())
        raise


def read_image(image: Path, path: str) -> str:
    argv = ["unsquashfs", "-cat", str(image), path]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


FIRST = BuildStep("first", ("echo one $DEMO >/opt/first", "rm /usr/bin/id"))
SECOND = BuildStep(
    "second", ("cat /opt/first >/opt/second", "echo two >>/opt/second"), network=False
)


@pytest.mark.parametrize("splice", ["auto", "never"])
def test_steps_build_on_one_another(name: str, splice: str, base: Path, tmp_path: Path) -> None:
    job, runner = make_job(tmp_path, base, FIRST, SECOND, splice=splice), Recorder()
    made = build(name, job, runner)
    assert read_image(made.image, "opt/second") == "one a b\ntwo\n"
    argv = ["unsquashfs", "-l", str(made.image)]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "squashfs-root/usr/bin/id" not in listed
    assert "squashfs-root/usr/bin/bash" in listed
    assert not [line for line in listed if "hpcstack-step" in line], (
        "a place of the build's own is left"
    )
    assert (made.spliced is not None) == (splice == "auto")
    assert made.unconfined == ""


def test_programs_of_a_base_run_in_the_enclosure_alone(
    name: str, base: Path, tmp_path: Path
) -> None:
    job, runner = make_job(tmp_path, base, FIRST, SECOND), Recorder()
    build(name, job, runner)
    first, second = runner.steps()
    for argv in (first, second):
        words = [Path(word).name for word in argv[:8]]
        assert "enclose.py" in words and "enter" in words, argv
        assert {"--tree", "--filter", "--environment"} <= set(argv)
    assert "--offline" not in first and "--offline" in second, (
        "the second step asked for no network"
    )
    assert runner.with_our_variables == [], "our variables reach what a base's programs can read"


def test_a_finished_step_is_kept(name: str, base: Path, tmp_path: Path) -> None:
    """Only what changed runs again; with `fresh` all does."""
    build(name, make_job(tmp_path, base, FIRST, SECOND), Runner())
    runner = Recorder()
    changed = BuildStep("second", ("echo three >>/opt/first",))
    job = make_job(tmp_path, base, FIRST, changed)
    made = build(name, job, runner)
    assert len(runner.steps()) == 1, "the first step ran again:\n" + job.log.read_text()
    assert read_image(made.image, "opt/first") == "one a b\nthree\n"


def test_a_step_that_fails_ends_the_build(name: str, base: Path, tmp_path: Path) -> None:
    failing = BuildStep("failing", ("echo why it fails", "false", "touch /opt/never"))
    job, runner = make_job(tmp_path, base, failing, SECOND), Recorder()
    with pytest.raises(ProgramFailed) as failed:
        find_engine(name).build(job, runner)
    assert failed.value.done.status
    assert "why it fails" in job.log.read_text()
    assert len(runner.steps()) == 1
    assert not job.output.exists()
    assert not [path for path in (tmp_path / "cache").iterdir() if len(path.name) == 24], (
        "a failed step was kept"
    )


def test_a_script_of_the_lock_answers(name: str, base: Path, tmp_path: Path) -> None:
    """`run_inside`: how a lock asks a base."""
    job, runner = make_job(tmp_path, base), Recorder()
    inside = job.work / "hpcstack"
    inside.mkdir()
    (inside / "ask.sh").write_text(
        "mkdir -p /opt/hpcstack/answers && echo $DEMO >/opt/hpcstack/answers/demo\n"
    )
    done = find_engine(name).run_inside("ask.sh", inside, job, runner)
    assert done.status == 0, job.log.read_text()
    assert (inside / "answers/demo").read_text() == "a b\n"
    assert [Path(word).name for word in runner.steps()[0]].count("enclose.py") == 1


def test_hpcstack_may_lie_behind_a_link(name: str, base: Path, tmp_path: Path) -> None:
    """A site's /sw/hpcstack is a link to the version of the day: Python's prefix ends with it."""
    (tmp_path / "hpcstack-1").symlink_to(sys.prefix)
    (tmp_path / "hpcstack").symlink_to("hpcstack-1")
    shutil.copy(base, tmp_path / "base.sqsh")
    (tmp_path / "attack.sh").write_text("echo it ran\n")
    argv = [
        str(tmp_path / "hpcstack/bin/python"),
        str(SUPPORT / "attack.py"),
        name,
        str(tmp_path),
        "build",
    ]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SUPPORT.parents[1] / "src")}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd="/", check=False)
    assert "it ran" in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["apptainer", "enroot"])
def test_only_the_site_lets_steps_run_beside_the_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """N1: a base chose to run so.

    Where no enclosure can be made, nothing runs unless site.yaml says so.
    """
    module = importlib.import_module(f"hpcstack.build.engines.{name}")
    monkeypatch.setattr(module, "explain_refused_enclosure", lambda _: "an old kernel")
    begun: list[object] = []

    class Nobody(Runner):
        def logged(self, argv: Sequence[str], *_: Any, **__: Any) -> Completed:
            begun.append(argv)
            return Completed(tuple(argv), 1)

        output = logged

    (tmp_path / "apptainer.def").write_text("Bootstrap: docker\nFrom: x\n")
    job = Job(tmp_path, tmp_path, tmp_path, tmp_path / "base.sqsh", tmp_path, tmp_path / "out", tmp_path / "log",
              BuildSite(), Progress())  # fmt: skip
    with pytest.raises(BuildError, match="would run them with your rights"):
        find_engine(name).build(job, Nobody())
    assert begun == []
