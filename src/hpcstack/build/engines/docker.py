"""Docker, or podman's compatible socket: build the rendered Dockerfile by Docker's SDK.

The result goes straight from the daemon into a squashfs. The base comes from the import, not from a
pull. What the site lends lies in a layer of its own below the build's, because a Dockerfile's RUN
has no mounts. It is left out when the image is taken from the daemon, and then removed there.

Tested in tests/integration/test_engines.py.
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

# The label of images made from what the site lends, by which they are found and removed again.
MARK = "org.hpcstack.build.build"
FROM = re.compile(r"^FROM .*$", re.MULTILINE)
INSIDE = """\
FROM {base}
COPY hpcstack /opt/hpcstack
RUN env -u BASH_ENV -u ENV /bin/bash /opt/hpcstack/{script}
"""


def list_changes(environment: dict[str, str]) -> list[str]:
    """Return the Dockerfile lines by which an imported tree gets the base's variables."""
    return [
        f"ENV {name}={quote_dockerfile(value)}"
        for name, value in environment.items()
        if VARIABLE.fullmatch(name)
    ]


def list_left_out(job: Job) -> list[str]:
    """Return whiteouts of what in the daemon's image is not the stack's.

    That is what was lent, the daemon's own file, and what is in /tmp and /var/tmp.
    """
    lent = [f"mnt/.wh.{path.name}" for path in job.lent.iterdir()]
    return [".wh..dockerenv", "tmp/.wh..wh..opq", "var/tmp/.wh..wh..opq", *lent]


@dataclass(frozen=True)
class Docker:
    """Builds by a daemon, which runs the steps in containers of its own."""

    name: str = "docker"
    tools: tuple[str, ...] = ("sqfs2tar",)
    definition: str = "Dockerfile"
    splices: bool = False

    def usable(self, runner: Runner) -> str:
        from hpcstack.oci.daemon import connect_daemon

        reason = explain_missing(self.tools, runner)
        if reason:
            return reason
        try:
            connect_daemon()
        except MissingToolError as error:
            return error.message
        return ""

    def build(self, job: Job, runner: Runner) -> BuildResult:
        text = (job.context / self.definition).read_text()

        def pack(image: str) -> None:
            from hpcstack.oci.daemon import connect_daemon
            from hpcstack.oci.importer import pack_tars, read_tars

            job.progress("packing")
            above = [make_file_member(path, "") for path in list_left_out(job)]
            tars = read_tars(above, connect_daemon().filesystem(image))
            pack_tars(tars, job.output, job.work, job.settings.compression, runner)

        require_success(self._with_base(job, runner, text, job.context, pack))
        return BuildResult(job.output)

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        def copy_answers(image: str) -> None:
            from hpcstack.oci.daemon import connect_daemon

            connect_daemon().copy_out(image, f"{HOME}/{ANSWERS}", folder)

        text = INSIDE.replace("{script}", script)
        return self._with_base(job, runner, text, folder.parent, copy_answers)

    def _with_base(
        self, job: Job, runner: Runner, text: str, context: Path, then: Callable[[str], None]
    ) -> Completed:
        """Build the Dockerfile TEXT on the imported base, and return how that ended.

        Three images are made, each on the one before: the base, which the daemon keeps for later
        builds; the base with what the site lends; and the build's own. THEN is called with the name
        of the last. The last two are removed.
        """
        from hpcstack.oci.daemon import connect_daemon

        daemon = connect_daemon()
        mark = uuid.uuid4().hex[:12]
        made: list[str] = []  # images to remove, the last one made first
        tail: list[str] = []
        network = "none" if job.options.offline else "host"
        proxies = list_proxies(job.settings)
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
            lines = daemon.build(
                job.lent.parent, "Dockerfile.lent", lent, network, proxies, fresh=True
            )
            error = _follow_build(lines, job, tail)
            if error:
                argv = ("docker", "build", "--file", "Dockerfile.lent", ".")
                return Completed(argv, 1, (*tail[-20:], error))

            local = context / "Dockerfile.local"
            local.write_text(FROM.sub(f"FROM {lent}", text, count=1).replace("{base}", lent))
            image = f"hpcstack-build:{mark}"
            made.insert(0, image)
            lines = daemon.build(context, local.name, image, network, proxies, fresh=True)
            error = _follow_build(lines, job, tail)
            if error:
                argv = ("docker", "build", "--file", str(local), ".")
                return Completed(argv, 1, (*tail[-20:], error))

            then(image)
            return Completed(("docker", "build"), 0)
        except HpcstackError as failure:
            return Completed(("docker", "build"), 1, tuple(failure.message.splitlines()))
        finally:
            daemon.remove(made, f"{MARK}={mark}")


def _follow_build(lines: Iterator[dict[str, object]], job: Job, tail: list[str]) -> str:
    """Write LINES, the daemon's answers, to JOB's log and to TAIL.

    Return the error that the daemon reports; empty where the build succeeded.
    """
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
