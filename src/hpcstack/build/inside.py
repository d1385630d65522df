"""Run a script of ours inside a base, to see what the base's own tools answer or fetch.

Locks and bundles use it, when there is no image on the base yet.

Tested in tests/hostile/test_gifts.py and tests/integration/test_engines.py.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.build.diagnose_log import LoggedFailure, explain_failure
from hpcstack.build.job import make_job, read_log, redact_log
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
    """A script failed inside the base: what its log says of the failure, and the whole log."""

    def __init__(self, failure: LoggedFailure, log: str) -> None:
        super().__init__(failure.message("the build failed"), failure.hint, page=failure.page)
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
    """Run images/SCRIPT inside BASE, and return the folder that it found at /opt/hpcstack.

    The folder lies in WORK and has FILES, {path: text}, in it. The script's answers are in its
    folder ANSWERS; programs of the base wrote them, so they are untrusted. ALLOW_REPLACE names
    packages of the base that may be replaced. Raise FailedInBase where the script fails; its log is
    then written to KEPT.
    """
    job = make_job(work / script, {}, base, lock.base.registry, bench)
    job = replace(job, environment=lock.platform(platform).environment)

    ours = {
        f"build/{name}": read_data_file("images", name) for name in ("lib.sh", "live_indexes.py")
    }
    ours["build/guard.sh"] = guard.render_guard(allow_replace)
    scripts = {f"build/{script}": read_data_file("images", script)}
    folder = work / script / "hpcstack"
    write_tree(folder, {**ours, **files, **scripts}, on_disk=False)

    done = engine.run_inside(f"build/{script}", folder, job, bench.runner)
    redact_log(job.log, bench.site)
    if done.status:
        text = read_log(job.log)
        with contextlib.suppress(OSError):  # the reason of the failure is worth more than its log
            write_text(kept, text, bench.site.sharing.log_mode, sharing=bench.site.sharing)
        raise FailedInBase(explain_failure(done, job.log, kept, lock, bench.site), text)
    return folder
