"""What an engine is: an imported base and rendered files in, one squashfs out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hpcstack.oci.pack import OWN_TIMES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.core.process import Completed, Runner
    from hpcstack.core.progress import Progress
    from hpcstack.render.steps import BuildStep
    from hpcstack.site.load import BuildSite
    from hpcstack.squashfs.splice import Result as Spliced

STEP = "== hpcstack step "
ANSWERS = "answers"  # the folder at /opt/hpcstack that a script inside a base writes to
UNCONFINED = (
    "another engine, say --engine builtin; or build.unconfined: true in site.yaml: then programs "
    "of a base and of a "
    "recipe can read and write what you can"
)
NO_NETWORK = ("unshare", "--user", "--map-current-user", "--net")  # before an argv
EPOCH = 1704067200  # what a build makes gets this time: images/lib.sh says the same


class StepClock:
    """When each step of a build began."""

    def __init__(self) -> None:
        self._began: list[tuple[str, float]] = []

    def begin(self, title: str) -> None:
        """Note that the step TITLE begins now, and that the one before it has ended."""
        self._began.append((title, time.monotonic()))

    def report(self) -> str:
        """Return how long each step took, a line each, for the end of the log."""
        if not self._began:
            return ""
        ends = [began for _, began in self._began[1:]] + [time.monotonic()]
        return "".join(
            f"== hpcstack took {end - began:.1f} s: {title}\n"
            for (title, began), end in zip(self._began, ends, strict=True)
        )


@dataclass(frozen=True)
class Job:
    """One build: what an engine is given.

    `work` is on local disk, and private to the build. `context` holds the rendered files, `lent`
    what the site lends (bound at /mnt). `base` is the imported base as a squashfs, `environment`
    its variables. An engine may keep the unpacked base and finished steps in `layers`; `fresh` says
    not to use what is there. The image is made as `output`; where making it takes no more than a
    copy, as `beside`, which is on the store's filesystem.
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
    fresh: bool = False
    offline: bool = False
    squash: bool = False  # all is packed anew, whatever the site's build.splice says
    beside: Path | None = None
    clock: StepClock = field(default_factory=StepClock)

    def on_line(self, line: str) -> None:
        """Show a LINE that the build prints, if it says which step begins."""
        if line.startswith(STEP):
            title = line.removeprefix(STEP)
            self.clock.begin(title)
            self.progress(f"step {title}")
            self.progress.event("step", title=title)


@dataclass(frozen=True)
class BuildResult:
    """What an engine made.

    `image` is the finished squashfs. `spliced` says how the base's compressed bytes were kept in
    it; None where all of it was packed anew. `unconfined` is why its steps ran in no enclosure;
    empty where they ran in one.
    """

    image: Path
    spliced: Spliced | None = None
    unconfined: str = ""


class ProgramFailed(Exception):
    """A program of a build failed: `done` is how it ended."""

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
        """The rendered file that it reads, beside the steps and the context; empty for none."""
        ...

    @property
    def splices(self) -> bool:
        """Whether its images keep the base's compressed bytes where that can be."""
        ...

    def usable(self, runner: Runner) -> str:
        """Return why this engine cannot be used here; empty where it can."""
        ...

    def build(self, job: Job, runner: Runner) -> BuildResult:
        """Build the image of JOB.

        ProgramFailed where a step or a tool fails. Cleaning up job.work is left to the caller.
        """
        ...

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        """Run SCRIPT, a path in FOLDER, inside the base of JOB, and return how it ended.

        It finds FOLDER at /opt/hpcstack, nothing of the user's home, and no other folder of the
        host but what the site lends.
        """
        ...


def list_proxies(settings: BuildSite) -> dict[str, str]:
    """The site's proxy and CA bundle for a program that an engine starts."""
    proxy, bundle = settings.proxy, settings.ca_bundle
    said = {
        "http_proxy": proxy.http,
        "https_proxy": proxy.https,
        "no_proxy": proxy.no,
        "SSL_CERT_FILE": bundle,
    }
    return {name: value for name, value in said.items() if value}


def explain_missing(tools: tuple[str, ...], runner: Runner) -> str:
    """Which of TOOLS are not installed, as a reason; empty where all are."""
    lacking = [tool for tool in tools if not runner.has(tool)]
    return f"{', '.join(lacking)} not installed" if lacking else ""


def squash_argv(source: str, output: Path, compression: str) -> list[str]:
    """mksquashfs of a tree: owned by root, no times of its own, the same bytes for the same tree."""
    level = ["-Xcompression-level", "1"] if compression == "zstd" else []
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
