"""Docker, or podman's compatible socket: the rendered Dockerfile through Docker's SDK, then
straight into a squashfs.

The base comes from the import, not from a pull. What the site lends lies in a layer of its own
below the build's (a Dockerfile's RUN has no mounts), is left out when the image is taken from the
daemon, and is removed from it.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import (
    ANSWERS,
    BuildResult,
    Job,
    explain_missing,
    list_proxies,
    require_success,
)
from hpcstack.core.characters import VARIABLE
from hpcstack.core.errors import HpcstackError, MissingToolError
from hpcstack.core.process import Completed, Runner
from hpcstack.core.quote import quote_dockerfile
from hpcstack.oci.metadata import make_file_member
from hpcstack.render.steps import HOME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# on what is made from the lent files, so that none of it stays in the daemon
MARK = "org.hpcstack.build.build"
FROM = re.compile(r"^FROM .*$", re.MULTILINE)
INSIDE = """\
FROM {base}
COPY hpcstack /opt/hpcstack
RUN env -u BASH_ENV -u ENV /bin/bash /opt/hpcstack/{script}
"""


def list_changes(environment: dict[str, str]) -> list[str]:
    """What makes an imported tree an image with the base's variables."""
    return [
        f"ENV {name}={quote_dockerfile(value)}"
        for name, value in environment.items()
        if VARIABLE.fullmatch(name)
    ]


def list_left_out(job: Job) -> list[str]:
    """Paths of the daemon's image that are not the stack's: what was lent, and the daemon's own
    files.
    """
    lent = [f"mnt/.wh.{path.name}" for path in job.lent.iterdir()]
    return [".wh..dockerenv", "tmp/.wh..wh..opq", "var/tmp/.wh..wh..opq", *lent]


@dataclass(frozen=True)
class Docker:
    name: str = "docker"
    tools: tuple[str, ...] = ("sqfs2tar",)
    definition: str = "Dockerfile"
    splices: bool = False

    def usable(self, runner: Runner) -> str:
        from hpcstack.oci.daemon import connect_daemon

        if reason := explain_missing(self.tools, runner):
            return reason
        try:
            connect_daemon()
        except MissingToolError as error:
            return error.message
        return ""

    def build(self, job: Job, runner: Runner) -> BuildResult:
        text = (job.context / self.definition).read_text()

        def pack(found: str) -> None:
            from hpcstack.oci.daemon import connect_daemon
            from hpcstack.oci.importer import pack_tars, tars_of

            job.progress("packing")
            above = [make_file_member(path, "") for path in list_left_out(job)]
            tars = tars_of(above, connect_daemon().filesystem(found))
            pack_tars(tars, job.output, job.work, job.settings.compression, runner)

        require_success(self._with_base(job, runner, text, job.context, pack))
        return BuildResult(job.output)

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        def copy_answers(found: str) -> None:
            from hpcstack.oci.daemon import connect_daemon

            connect_daemon().copy_out(found, f"{HOME}/{ANSWERS}", folder)

        text = INSIDE.replace("{script}", script)
        return self._with_base(job, runner, text, folder.parent, copy_answers)

    def _with_base(
        self, job: Job, runner: Runner, text: str, context: Path, then: Callable[[str], None]
    ) -> Completed:
        """Build the Dockerfile TEXT on the imported base with what the site lends, and return how
        that ended.

        THEN is called with the image's name. All that the daemon holds of the build is removed.
        """
        from hpcstack.oci.daemon import connect_daemon

        daemon, mark = connect_daemon(), uuid.uuid4().hex[:12]
        made: list[str] = []
        network = "none" if job.offline else "host"
        try:
            base = f"hpcstack-base:{re.sub('[^a-z0-9]', '-', job.base.stem)[:100]}"
            if not daemon.has(base):
                job.progress("handing the base to the daemon")
                with runner.read(["sqfs2tar", str(job.base)]) as tar:
                    daemon.import_tree(tar, base, list_changes(dict(job.environment)))
            lent = f"hpcstack-lent:{mark}"
            (job.lent.parent / "Dockerfile.lent").write_text(
                f"FROM {base}\nLABEL {MARK}={mark}\nCOPY {job.lent.name} /mnt\n"
            )
            made.append(lent)
            tail: list[str] = []
            lines = daemon.build(
                job.lent.parent,
                "Dockerfile.lent",
                lent,
                network,
                list_proxies(job.settings),
                fresh=True,
            )
            if error := _follow(lines, job, tail):
                return Completed(
                    ("docker", "build", "--file", "Dockerfile.lent", "."), 1, (*tail[-20:], error)
                )
            local = context / "Dockerfile.local"
            local.write_text(FROM.sub(f"FROM {lent}", text, count=1).replace("{base}", lent))
            image = f"hpcstack-build:{mark}"
            made.insert(0, image)
            lines = daemon.build(
                context, local.name, image, network, list_proxies(job.settings), fresh=True
            )
            if error := _follow(lines, job, tail):
                return Completed(
                    ("docker", "build", "--file", str(local), "."), 1, (*tail[-20:], error)
                )
            then(image)
            return Completed(("docker", "build"), 0)
        except HpcstackError as error:
            return Completed(("docker", "build"), 1, tuple(error.message.splitlines()))
        finally:
            daemon.remove(made, f"{MARK}={mark}")


def _follow(lines: Iterator[dict[str, object]], job: Job, tail: list[str]) -> str:
    """The daemon's answers into the log; what failed, or nothing."""
    with job.log.open("a", encoding="utf-8") as log:
        for line in lines:
            if "error" in line:
                log.write(f"{line['error']}\n")
                return str(line["error"])
            text = str(line.get("stream") or line.get("status") or "")
            if text and not text.endswith("\n"):
                text += "\n"
            log.write(text)
            for one in text.splitlines():
                tail.append(one)
                job.on_line(one)
    return ""


ENGINE = Docker()
