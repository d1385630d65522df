"""Wrappers of a published module on the testbed: in srun, sbatch, a Makefile, a clean environment;
by each runtime.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.slurm, pytest.mark.lmod]
RUNTIMES = [
    pytest.param("apptainer", marks=pytest.mark.apptainer),
    pytest.param("enroot", marks=pytest.mark.enroot),
    pytest.param("pyxis", marks=[pytest.mark.pyxis, pytest.mark.enroot]),
]
PROGRAM = """\
import os, signal, sys, time
if sys.argv[1] == "wait":
    signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), sys.exit(33)))
    print("ready", flush=True)
    time.sleep(60)
print(sys.argv[1:], sys.stdin.read().strip(), os.getcwd(), os.environ.get("MINE"), os.environ.get("CUDA_VERSION"),
      os.path.exists("/opt/hpcstack/stack.json"), os.uname().nodename)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def loaded(testbed: Testbed, published: dict[str, Any]) -> str:
    """A shell's beginning, after which the module is loaded; and a program beside it."""
    testbed.give("wrappers/w.py", PROGRAM)
    return (
        "cd ~/wrappers; module load pytorch/24.11 || exit 99; run=$(dirname $(dirname $(command -v "
        "torchrun)))/libexec/run; "
    )


# Pyxis is for jobs: elsewhere the wrapper takes Enroot, which has cases of its own
CASES = [
    pytest.param(where, *one.values, marks=one.marks)
    for one in RUNTIMES
    for where in (
        ["batch"] if one.values == ("pyxis",) else ["srun -N1 -n1", "batch", "make", "clean"]
    )
]


@pytest.mark.parametrize(("where", "runtime"), CASES)
def test_arguments_input_and_status_are_the_programs(
    testbed: Testbed, loaded: str, where: str, runtime: str
) -> None:
    call = '"$run" python3 w.py 7 "a b" "c;\\$(d)" "*" <in'
    steps = {
        "srun -N1 -n1": "srun -N1 -n1 sh -c '\"$0\" python3 w.py 7 \"a b\" \"c;\\$(d)\" \"*\" <in' \"$run\"; echo status=$?",
        "batch": "printf '#!/bin/sh\\n%s\\necho status=$?\\n' '" + call.replace("$run", "'\"$run\"'") + "' >b.sh; "
        "sbatch --quiet --wait -N1 -o out.txt b.sh; cat out.txt",
        "make": "printf 'all:\\n\\t@%s; echo status=$$?\\n' '" + call.replace("$run", "'\"$run\"'").replace("\\$(d)", "\\$$(d)")
        + "' >Makefile; make -s",
        "clean": f'env -i HOME="$HOME" PATH=/usr/bin:/bin MINE="$MINE" sh -c \'{call.replace("$run", "$0")}\' "$run"; echo status=$?',
    }  # fmt: skip
    script = (
        f"{loaded} echo in put >in; export MINE='x $(y)' HPCSTACK_RUNTIME={runtime}; {steps[where]}"
    )
    done = testbed.bash(
        script.replace("env -i ", f"env -i HPCSTACK_RUNTIME={runtime} "), check=False
    )
    said = done.stdout
    assert "['7', 'a b', 'c;$(d)', '*'] in put" in said, said + done.stderr
    assert "/wrappers x $(y) 12.6.3.001 True" in said and "status=7" in said, said + done.stderr


@pytest.mark.parametrize("runtime", RUNTIMES[:2])
def test_a_signal_reaches_the_program(testbed: Testbed, loaded: str, runtime: str) -> None:
    script = f'{loaded} export HPCSTACK_RUNTIME={runtime}; rm -f out; "$run" python3 w.py wait >out & p=$!; ' \
        "until grep -qs ready out; do sleep 0.1; done; kill -TERM $p; wait $p; echo status=$?; cat out"  # fmt: skip
    said = testbed.bash(
        script, check=False
    ).stdout  # under Enroot the image's entrypoint speaks first
    assert said.startswith("status=33\n")
    assert said.endswith("ready\ntold\n")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_torchrun_of_the_module_runs_two_ranks(testbed: Testbed, loaded: str, runtime: str) -> None:
    testbed.give(
        "wrappers/t.py",
        "import os, torch.distributed as d; d.init_process_group('gloo');"
        "os.write(1, f'rank {d.get_rank()} of {d.get_world_size()}\\n'.encode())",
    )
    job = (
        f"#!/bin/sh\\nexport HPCSTACK_RUNTIME={runtime}\\ntorchrun --standalone --nproc-per-node 2 "
        f"t.py\\n"
    )
    done = testbed.bash(
        f"{loaded} printf '{job}' >j.sh; sbatch --quiet --wait -N1 -c2 -o j.txt j.sh; cat j.txt",
        check=False,
    )
    assert "rank 0 of 2" in done.stdout and "rank 1 of 2" in done.stdout, done.stdout + done.stderr
