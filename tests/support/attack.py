"""Runs a hostile script in a hostile base by one engine: `attack.py ENGINE FOLDER lock|build`.
Started as the user who builds, with a canary in its environment; prints what the script said.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpcstack.build.engines import find_engine
from hpcstack.build.engines.base import Job, ProgramFailed
from hpcstack.core.errors import HpcstackError
from hpcstack.core.files import remove_tree
from hpcstack.core.process import Completed, Runner
from hpcstack.core.progress import Progress
from hpcstack.render.steps import BuildStep
from hpcstack.site.load import BuildSite


def main() -> int:
    name, folder, how = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if os.environ.get("FORCED") == "no layers":
        from hpcstack.build.engines import overlay

        setattr(overlay, "explain_refused_overlay", lambda _: "this test says so")  # noqa: B010
    script = (folder / "attack.sh").read_text()
    own = folder / f"{name}-{os.getuid()}-{how}"
    remove_tree(own)
    work, lent = own / "work", own / "work/lent"
    for path in (work, lent, own / "context/context/hpcstack/build"):
        path.mkdir(parents=True, mode=0o700)
    (lent / "lent.txt").write_text("lent")
    for file in ("lib.sh", "guard.sh"):
        (own / "context/context/hpcstack/build" / file).write_text("hpcstack_step() { :; }\n")
    steps = (BuildStep("attack", tuple(script.splitlines())),)
    job = Job(own / "context", lent, work, folder / "base.sqsh", own / "cache", work / "image.sqsh", work / "log",
              BuildSite(splice="auto"), Progress(), steps=steps)  # fmt: skip
    job.log.touch()
    if name == "docker":
        (own / "context/attack.sh").write_text(script)
        (own / "context/Dockerfile").write_text(
            "FROM the-base\nCOPY attack.sh /opt/attack.sh\nRUN /bin/bash /opt/attack.sh\n"
        )
    try:
        if how == "lock":
            inside = work / "hpcstack"
            inside.mkdir()
            (inside / "attack.sh").write_text(script)
            done = find_engine(name).run_inside("attack.sh", inside, job, Runner())
        else:
            try:
                find_engine(name).build(job, Runner())
                done = Completed((name,), 0)
            except ProgramFailed as failed:
                done = failed.done
    except HpcstackError as error:
        print(f"REFUSED {error.message}")
        return 3
    print(job.log.read_text(errors="replace"))
    print(*done.tail, sep="\n")
    return done.status


if __name__ == "__main__":
    sys.exit(main())
