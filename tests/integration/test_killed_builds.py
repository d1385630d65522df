"""A build that is killed takes with it what its steps have started: the next one finds nothing
running beside it.
"""

from __future__ import annotations

import subprocess
import time

import pytest

from support.recipes import Recipes

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.registry, pytest.mark.squashfs]
ENGINES = [
    "builtin",
    pytest.param("apptainer", marks=pytest.mark.apptainer),
    pytest.param("enroot", marks=pytest.mark.enroot),
    pytest.param("apptainer-unconfined", marks=pytest.mark.apptainer),
]
# A machine where Apptainer runs and no namespace of ours can be made is one with a setuid
# Apptainer, which is not here. So the enclosure is refused in the program itself: Apptainer's
# starter then runs as it does there, and for real.
WITHOUT_ENCLOSURE = """
import sys
from hpcstack.build.engines import apptainer
from hpcstack.cli import main
apptainer.explain_refused_enclosure = lambda runner: "refused by a test"
main(sys.argv[1:])
"""
KILL = """
cd "$1" && shift
"$@" >log 2>&1 & build=$!
for _ in $(seq 600); do
    if pgrep -f "^sleep $MARK$" >/dev/null; then break; fi
    sleep 0.1
done
pgrep -f "^sleep $MARK$" | wc -l
kill -KILL "$build"
"""


def sleeping(mark: str) -> bool:
    return not subprocess.run(
        ["pgrep", "-f", f"^sleep {mark}$"], capture_output=True, check=False
    ).returncode


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_ends_with_the_build_that_is_killed(recipes: Recipes, engine: str) -> None:
    name, _, unconfined = engine.partition("-")
    if unconfined:
        recipes.site(f"{recipes.render_site_text}build: {{unconfined: true}}\n")
    mark = f"{time.time():.6f}"  # so many seconds does nothing else sleep
    stack = recipes.write(
        "1", run=f"[{{name: wait, command: 'setsid sleep {mark} & sleep {mark}'}}]"
    )
    hpcstack = ["python3", "-c", WITHOUT_ENCLOSURE] if unconfined else ["hpcstack"]
    options = ["--site", f"{recipes.folder}/site.yaml", "--recipes", f"{recipes.folder}/recipes"]
    build = [*hpcstack, *options, "build", stack, "--engine", name]

    done = recipes.testbed.run(
        "env", f"MARK={mark}", "bash", "-c", KILL, "bash", str(recipes.folder), *build
    )

    log = (recipes.folder / "log").read_text()
    assert done.stdout.strip() == "2", log
    assert ("UNCONFINED" in log) is bool(unconfined)
    until = time.monotonic() + 30  # on a busy machine
    while sleeping(mark) and time.monotonic() < until:
        time.sleep(0.1)
    assert not sleeping(mark)
