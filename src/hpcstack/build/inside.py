"""A script of ours inside a base, before there is an image on it: what its own tools answer or
fetch.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.build.diagnose_log import LoggedFailure, explain_failure
from hpcstack.build.job import make_job, read_log, redact_log
from hpcstack.core import sharing
from hpcstack.core.errors import BuildError
from hpcstack.core.files import write_text, write_tree
from hpcstack.recipe import guard
from hpcstack.render.template import read_data_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.build.engines.base import Engine
    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.model import Lock


class FailedInBase(BuildError):
    """A script failed inside the base: what its log tells of the failure, and the whole LOG."""

    def __init__(self, failure: LoggedFailure, log: str) -> None:
        super().__init__(failure.message("the build failed"), failure.hint)
        self.failure, self.log = failure, log


def run_in_base(
    script: str,
    files: Mapping[str, str],
    work: Path,
    kept: Path,
    engine: Engine,
    base: Path,
    lock: Lock,
    platform: str,
    bench: Workbench,
    allow_replace: tuple[str, ...] = (),
) -> Path:
    """images/SCRIPT in BASE, with FILES beside it at /opt/hpcstack. The folder in WORK that it was;
    the answers are in its ANSWERS, and are whatever programs of the base wrote. FailedInBase where
    it fails; the log is KEPT then. What of the base is not guarded is in ALLOW_REPLACE.
    """
    job = make_job(work / script, {}, base, lock.base.registry, bench)
    job = replace(job, environment=lock.platform(platform).environment)
    folder = work / script / "hpcstack"
    ours = {
        f"build/{name}": read_data_file("images", name) for name in ("lib.sh", "live_indexes.py")
    }
    ours["build/guard.sh"] = guard.render_guard(allow_replace)
    write_tree(
        folder,
        {**ours, **files, f"build/{script}": read_data_file("images", script)},
        on_disk=False,
    )
    done = engine.run_inside(f"build/{script}", folder, job, bench.runner)
    redact_log(job.log, bench.site)
    if done.status:
        text = read_log(job.log)
        with contextlib.suppress(OSError):  # why it failed counts more than that it is written down
            write_text(kept, text, sharing.log_mode())
        raise FailedInBase(explain_failure(done, job.log, kept, lock, bench.site), text)
    return folder
