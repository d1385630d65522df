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
    from hpcstack.squashfs.splice import Result

STEP = "== hpcstack step "
ANSWERS = "answers"  # the folder at /opt/hpcstack that a script inside a base writes to
UNCONFINED = (
    "another engine, say --engine builtin; or build.unconfined: true in site.yaml: then programs "
    "of a base and of a "
    "recipe can read and write what you can"
)
EPOCH = 1704067200  # what a build makes gets this time: images/lib.sh says the same


@dataclass(frozen=True)
class Job:
    """One build: `work` is on local disk, and private to it.

    `context` holds the rendered files, `lent` what the site lends (bound at /mnt), `base` is the
    imported base as a squashfs, `environment` its variables, `output` becomes the image. `cache` is
    a folder in which an engine may keep the unpacked base and finished steps; `fresh` says not to
    use what is there.
    """

    context: Path
    lent: Path
    work: Path
    base: Path
    cache: Path
    output: Path
    log: Path
    settings: BuildSite
    progress: Progress
    steps: tuple[BuildStep, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    offline: bool = False
    squash: bool = False  # all is packed anew, whatever the site's build.splice says
    beside: Path | None = (
        # where an image may be made at once that is no work to make: on the store's filesystem
        None
    )

    made: list[Result] = field(
        default_factory=list
    )  # the image as it was spliced; none where it was packed
    unconfined: list[str] = field(
        default_factory=list
    )  # why steps ran in no enclosure; empty where they did in one
    clock: list[tuple[str, float]] = field(default_factory=list)  # each step, and when it began

    def on_line(self, line: str) -> None:
        """Of all that a build prints, the lines that say where it is."""
        if line.startswith(STEP):
            title = line.removeprefix(STEP)
            self.clock.append((title, time.monotonic()))
            self.progress(f"step {title}")
            self.progress.event("step", title=title)

    @property
    def image(self) -> Path:
        """Where the finished image is."""
        return self.beside if self.beside and self.made else self.output

    def times(self) -> str:
        """How long each step took, for the end of the log."""
        if not self.clock:
            return ""
        ends = [began for _, began in self.clock[1:]] + [time.monotonic()]
        return "".join(
            f"== hpcstack took {end - began:.1f} s: {title}\n"
            for (title, began), end in zip(self.clock, ends, strict=True)
        )


class Engine(Protocol):
    """`build` makes job.image or returns the program that failed; it leaves clean-up of job.work to
    the caller.

    `run_inside` runs SCRIPT, a path in FOLDER, in job.base, with FOLDER at /opt/hpcstack, nothing
    of the user's home, and no other folder of the host but what the site lends.
    """

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> tuple[str, ...]: ...

    @property
    def splices(self) -> bool:
        """Whether its images keep the base's compressed bytes where that can be."""
        ...

    def usable(self, runner: Runner) -> str:
        """Why this engine cannot be used here; empty where it can."""
        ...

    def build(self, job: Job, runner: Runner) -> Completed: ...

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed: ...


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
