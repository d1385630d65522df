"""The interface of a build engine: an imported base and rendered files in, one squashfs out.

Tested in tests/unit/build/test_engines.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hpcstack.build.options import NO_BUILD_OPTIONS, BuildOptions
from hpcstack.oci.pack import OWN_TIMES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.core.process import Completed, Runner
    from hpcstack.core.progress import Progress
    from hpcstack.render.steps import BuildStep
    from hpcstack.site.load import BuildSite
    from hpcstack.squashfs.splice import Result as Spliced

STEP = "== hpcstack step "  # how images/lib.sh announces a step in the log
ANSWERS = "answers"  # folder below /opt/hpcstack to which a script inside a base writes
UNCONFINED = (
    "choose another engine, say --engine builtin; or set build.unconfined: true in site.yaml: then "
    "programs of a base and of a recipe can read and write what you can"
)
NO_NETWORK = ("unshare", "--user", "--map-current-user", "--net")  # put before an argv
EPOCH = 1704067200  # the time of every file that a build makes; images/lib.sh has the same


class StepClock:
    """Measure how long each step of a build takes."""

    def __init__(self) -> None:
        self._began: list[tuple[str, float]] = []

    def begin(self, title: str) -> None:
        """Note that the step TITLE begins now, and that the one before it has ended."""
        self._began.append((title, time.monotonic()))

    def report(self) -> str:
        """Return how long each step took, a line each, for the end of the log."""
        if not self._began:
            return ""

        # A step ends when the next one begins, and the last one ends now.
        ends = [began for _, began in self._began[1:]] + [time.monotonic()]
        return "".join(
            f"== hpcstack took {end - began:.1f} s: {title}\n"
            for (title, began), end in zip(self._began, ends, strict=True)
        )


@dataclass(frozen=True)
class Job:
    """One build, as an engine gets it.

    `work` is a folder on local disk, private to the build. `context` holds the rendered files, and
    `lent` what the site lends (bound at /mnt). `base` is the imported base as a squashfs, and
    `environment` its variables. An engine may keep the unpacked base and finished steps in
    `layers`; with `options.fresh` it uses none that is there.

    The engine writes the image to `output`. A spliced image takes little more than a copy, so it is
    written to `beside` instead, on the store's filesystem, where one is given.
    """

    context: Path
    lent: Path
    work: Path
    base: Path
    layers: Path
    output: Path
    log: Path
    settings: BuildSite
    progress: Progress
    steps: tuple[BuildStep, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    options: BuildOptions = NO_BUILD_OPTIONS
    beside: Path | None = None
    clock: StepClock = field(default_factory=StepClock)

    def on_line(self, line: str) -> None:
        """Report the step that begins, if LINE of the build's output announces one."""
        if line.startswith(STEP):
            title = line.removeprefix(STEP)
            self.clock.begin(title)
            self.progress(f"step {title}")
            self.progress.event("step", title=title)


@dataclass(frozen=True)
class BuildResult:
    """What an engine made.

    `image` is the finished squashfs. `spliced` says how the base's compressed bytes were kept in
    it; it is None where the whole image was packed anew. `unconfined` is the reason why its steps
    ran outside an enclosure; it is empty where they ran inside one.
    """

    image: Path
    spliced: Spliced | None = None
    unconfined: str = ""


class ProgramFailed(Exception):
    """A program of a build failed. `done` has its command, exit status and last lines."""

    def __init__(self, done: Completed) -> None:
        super().__init__(f"{done.argv[0]} ended with {done.status}")
        self.done = done


def require_success(done: Completed) -> None:
    """Raise ProgramFailed unless the program that is DONE succeeded."""
    if done.status:
        raise ProgramFailed(done)


class Engine(Protocol):
    """One way to run steps inside a base and to make an image of the result."""

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> tuple[str, ...]: ...

    @property
    def definition(self) -> str:
        """The rendered file that the engine reads besides steps and context; empty for none."""
        ...

    @property
    def splices(self) -> bool:
        """Whether its images keep the base's compressed bytes where possible."""
        ...

    def usable(self, runner: Runner) -> str:
        """Return why this engine cannot be used here; empty where it can."""
        ...

    def build(self, job: Job, runner: Runner) -> BuildResult:
        """Build the image of JOB.

        Raise ProgramFailed where a step or a tool fails. The caller removes job.work.
        """
        ...

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        """Run SCRIPT, a path in FOLDER, inside the base of JOB, and return how it ended.

        SCRIPT finds FOLDER at /opt/hpcstack. Of the host it sees what the site lends and nothing
        else, least of all the user's home.
        """
        ...


def list_proxies(settings: BuildSite) -> dict[str, str]:
    """Return the variables with the site's proxy and CA bundle, for a program of the engine."""
    proxy = settings.proxy
    variables = {
        "http_proxy": proxy.http,
        "https_proxy": proxy.https,
        "no_proxy": proxy.no,
        "SSL_CERT_FILE": settings.ca_bundle,
    }
    return {name: value for name, value in variables.items() if value}


def explain_missing(tools: tuple[str, ...], runner: Runner) -> str:
    """Return which of TOOLS are not installed, as a reason; empty where all are."""
    lacking = [tool for tool in tools if not runner.has(tool)]
    if not lacking:
        return ""
    return f"{', '.join(lacking)} not installed"


def squash_argv(source: str, output: Path, compression: str) -> list[str]:
    """Return the argv of mksquashfs that packs the tree SOURCE into OUTPUT reproducibly.

    The same tree gives the same bytes: all files belong to root, and the image carries no time of
    its own making.
    """
    level = []
    if compression == "zstd":
        level = ["-Xcompression-level", "1"]

    return [
        *OWN_TIMES,
        "mksquashfs",
        source,
        str(output),
        "-noappend",
        "-quiet",
        "-no-progress",
        "-all-root",
        "-no-xattrs",
        "-mkfs-time",
        str(EPOCH),
        "-mem",
        "256M",
        "-comp",
        compression,
        *level,
    ]
