"""A script of ours inside a base, before there is an image on it: what its own tools answer or fetch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.build.diagnose_log import explain_failure
from hpcstack.build.job import make_job, read_log, redact_log
from hpcstack.core import sharing
from hpcstack.core.files import write_text, write_tree
from hpcstack.recipe import guard
from hpcstack.render.template import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.build.engines.base import Engine
    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.model import Lock


def run_in_base(
    script: str, files: Mapping[str, str], work: Path, kept: Path, engine: Engine, base: Path, lock: Lock,
    platform: str, bench: Workbench,
) -> Path:  # fmt: skip
    """images/SCRIPT in BASE, with FILES beside it at /opt/hpcstack. The folder in WORK that it was; the answers are in
    its ANSWERS, and are whatever programs of the base wrote. BuildError where it fails; the log is KEPT then.
    """
    job = make_job(work / script, {}, base, lock.base.registry, bench)
    job = replace(job, environment=lock.platform(platform).environment)
    folder = work / script / "hpcstack"
    ours = {"build/lib.sh": plain("images", "lib.sh"), "build/guard.sh": guard.shell()}
    write_tree(folder, {**ours, **files, f"build/{script}": plain("images", script)})
    done = engine.run_inside(f"build/{script}", folder, job, bench.runner)
    redact_log(job.log, bench.site)
    if done.status:
        write_text(kept, read_log(job.log), sharing.log_mode())
        raise explain_failure(done, job.log, kept, lock, bench.site)
    return folder
