"""Slurm's commands typed in a container, under every runtime and with other C libraries than the
host's: what they say and start, their signals and streams, who may use them, and what is left.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import Any

import pytest

from integration.conftest import push_stand_in
from support.inside import PROGRAM
from support.launching import RUNTIMES, launch_apart
from support.recipes import Recipes
from support.testbed import REPO, Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.jobs,
    pytest.mark.slurm,
    pytest.mark.timeout(900),
]
ONE_OF_TWO = ("-N2", "--ntasks-per-node", "1", "--mode", "plain", "--slurm")


def list_helpers() -> list[str]:
    """What a step has left thirty seconds after its end, at most: helpers, and their programs."""
    seen: list[str] = []
    for _ in range(300):
        seen = subprocess.run(
            ["pgrep", "-fa", "^python3 -I -S -B .*slurm_helper.py"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.splitlines()
        if not seen:
            break
        time.sleep(0.1)
    return seen


def type_inside(
    testbed: Testbed, runtime: str, script: str, *options: str
) -> subprocess.CompletedProcess[str]:
    """SCRIPT of the shell's, run by the first rank of a launch on two nodes."""
    alone = '[ "$SLURM_PROCID" = 0 ] || exit 0\n' + script
    words = (*ONE_OF_TWO, "--runtime", runtime, *options)
    return launch_apart(testbed, *words, "--", "bash", "-c", alone)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_commands_reach_the_cluster(
    testbed: Testbed, built: dict[str, Any], show: str, runtime: str
) -> None:
    testbed.give(f"tests/launching/inside-{runtime}/program.py", PROGRAM)
    done = type_inside(testbed, runtime, f"cd inside-{runtime} && exec python3 program.py")
    assert done.stdout, done.stderr
    out = json.loads(done.stdout.splitlines()[-1])
    folder = f"{testbed.home}/tests/launching/inside-{runtime}"
    assert out.pop("seconds") < 60
    assert out.pop("complaint") == "" or runtime == "enroot"  # Enroot reads the home's profile
    said = f'{folder} True it\'s $HOME "said"'
    assert out == {
        "queued": True,
        "shown": True,
        "nodes": sorted(out["nodes"]),
        "steps": [f"node1 {said}", f"node2 {said}"],
        "status": 3,
        "unknown": testbed.run("srun", "--no-such-option", "true").returncode,
        "within": "deep\n",
        "host": 1,
        "usr1": 9,
        "term": out["term"],
        "int": out["int"],
        "gone": -9,
        "same": True,
        "at once": 50,
        "pipe": 0,
    }
    assert {"node1", "node2"} <= set(out["nodes"])
    # As Slurm ends a step: by SIGTERM, and by SIGKILL where it is still there
    assert out["term"] in (143, 137)
    assert out["int"] in (1, 130, 137, 143)
    assert list_helpers() == []


BATCH = """\
cd batch-RUNTIME
wait_for() { while [ -n "$(squeue --noheader --jobs "$1" 2>/dev/null)" ]; do sleep 0.3; done; }
export KEPT="a value of two words" PATH="/of/the/caller:$PATH"
job=$(sbatch --parsable --nodes=2 --output=wrapped.txt --wrap 'echo "$SLURM_JOB_NUM_NODES $KEPT $PATH"
srun -n2 sh -c "echo \\$SLURM_PROCID of \\$SLURM_NTASKS in \\$(ls -d /opt/hpcstack/slurm)"; exit 4')
wait_for "$job"
echo "$(scontrol show job "$job" | grep -o JobName=.*) $(sacct -nX --jobs "$job" --format=ExitCode)"
cat >/tmp/only-in-here.py <<'END'
#!/usr/bin/env python3
#SBATCH --output=python.txt
#SBATCH --comment=mine
import os, sys
print(sys.argv[1:], os.environ["SLURM_JOB_NAME"], os.getcwd(), "SLURM_STEP_ID" in os.environ)
END
wait_for "$(sbatch --parsable /tmp/only-in-here.py 'a  b' '$c')"
printf '#!/bin/sh\\necho "by stdin: $1"\\nhostname' | sbatch --parsable --wait --output=stdin.txt
printf '#!/bin/sh\\n' >empty.sh
sbatch no-such-script.sh; echo "missing: $?"
echo 'true' | sbatch; echo "no script: $?"
HPCSTACK_ON_HOST=yes sbatch --wait --output=host.txt --wrap 'ls -d /opt/hpcstack/slurm'; echo "host: $?"
sbatch --parsable --hold --wrap true >held
scancel "$(cat held)" && echo "cancelled"
salloc true; echo "salloc: $?"
"""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_jobs_are_submitted(
    testbed: Testbed, built: dict[str, Any], show: str, runtime: str
) -> None:
    folder = f"tests/launching/batch-{runtime}"
    testbed.bash(f"rm -rf {folder}; mkdir -p {folder}")
    done = type_inside(testbed, runtime, BATCH.replace("RUNTIME", runtime))
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["JobName=wrap", "4:0"], done.stderr
    assert [line for line in lines if ": " in line and not line.startswith("Submitted")] == [
        "missing: 1",
        "no script: 1",
        "host: 2",
        "salloc: 1",
    ], done.stdout
    assert "cancelled" in lines
    assert "no-such-script.sh: No such file or directory" in done.stderr
    assert "srun --pty bash" in done.stderr

    def read(name: str) -> list[str]:
        found = testbed.run("cat", f"{folder}/{name}").stdout.splitlines()
        return [line for line in found if not line.startswith(("srun: ", "/", "slurmstepd"))]

    head, *ranks = read("wrapped.txt")
    assert head.startswith("2 a value of two words /opt/hpcstack/slurm/bin:/of/the/caller:") or (
        head.startswith("2 a value of two words /of/the/caller:")
    )
    assert sorted(ranks) == ["0 of 2 in /opt/hpcstack/slurm", "1 of 2 in /opt/hpcstack/slurm"]
    expected = f"['a  b', '$c'] only-in-here.py {testbed.home}/{folder} False"
    assert read("python.txt") == [expected]
    by_stdin = read("stdin.txt")
    assert by_stdin[0] == "by stdin: "
    assert re.fullmatch("node[0-9]+", by_stdin[1])
    assert list_helpers() == []


@pytest.fixture(scope="module")
def other_libraries(testbed: Testbed) -> Recipes:
    """Images with an older and with a newer C library than the host's."""
    for name in ("older-glibc", "newer-glibc"):
        push_stand_in(testbed, name)
    recipes = Recipes(testbed, "nvcr.io/hpcstack-tests/older-glibc:11", "other-libraries")
    recipes.write("11", launch="{mode: plain, slurm: true}")
    newer = "{image: nvcr.io/hpcstack-tests/newer-glibc:13}"
    recipes.write("13", base=newer, launch="{mode: plain, slurm: true}")
    for version in ("11", "13"):
        for verb in ("lock", "build"):
            done = recipes.run(verb, f"demo-{version}")
            assert done.returncode == 0, done.stderr
    return recipes


def read_version(text: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", text)
    assert found, text
    return tuple(map(int, found.groups()))


@pytest.mark.registry
@pytest.mark.squashfs
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.soak(
    "two Debians are made for their C libraries",
    kept="tests/integration/test_slurm_inside.py::test_commands_reach_the_cluster",
)
def test_no_library_of_the_hosts_is_needed(
    testbed: Testbed, other_libraries: Recipes, runtime: str
) -> None:
    """srun on two nodes, in an image whose recipe asks for Slurm."""
    version = "import platform; print(platform.libc_ver()[1])"
    script = f'[ "$SLURM_PROCID" = 0 ] || exit 0\nsrun -N2 -n2 python3 -c "{version}"'
    host = read_version(testbed.run("getconf", "GNU_LIBC_VERSION").stdout)
    seen = {}
    for release in ("11", "13"):
        words = ("-N2", "--ntasks-per-node", "1", "--runtime", runtime, "--", "sh", "-c", script)
        done = other_libraries.run("launch", f"demo-{release}", *words)
        assert done.returncode == 0, done.stderr
        one, two = done.stdout.splitlines()
        assert one == two
        seen[release] = read_version(one)
    assert seen["11"] < host
    assert seen["13"] > host or host >= (2, 41)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_nobody_else_is_served(
    testbed: Testbed, built: dict[str, Any], show: str, runtime: str
) -> None:
    """Root is another user, too. Its connection is closed, and it is told nothing."""
    testbed.bash("rm -f tests/launching/go tests/launching/socket-name")
    words = ("--mode", "plain", "--slurm", "--runtime", runtime)
    script = "squeue >/dev/null && echo $HPCSTACK_SLURM_SOCKET >socket-name; sleep 300"
    running = testbed.bash(
        f"cd tests/launching && export XDG_STATE_HOME=$PWD/state && (hpcstack launch pytorch-24.11 --batch --json {' '.join(words)} "
        f"-- sh -c '{script}')"
    )
    job = str(json.loads(running.stdout)["job"])
    try:
        name = ""
        for _ in range(300):
            name = testbed.run("cat", "tests/launching/socket-name").stdout.strip()
            if name:
                break
            time.sleep(0.1)
        assert name
        helper = subprocess.run(
            ["pgrep", "-f", f"slurm_helper.py {name}"], capture_output=True, text=True, check=True
        ).stdout.split()[0]
        client = (
            "import socket, array; s = socket.socket(socket.AF_UNIX); s.settimeout(10)\n"
            f"s.connect('\\0{name}')\n"
            "streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1, 2]))]\n"
            "try: s.sendmsg([b'x'], streams); s.sendall(b'{}\\n'); print('got', s.recv(100))\n"
            "except (BrokenPipeError, ConnectionResetError): print('got', b'')\n"
        )
        for who in ([], ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]):
            done = subprocess.run(
                ["nsenter", f"--net=/proc/{helper}/ns/net", *who, "/usr/bin/python3", "-c", client],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.stdout == "got b''\n", done.stderr
    finally:
        testbed.run("scancel", job)
    assert list_helpers() == []


def test_it_is_off_unless_asked_for(testbed: Testbed, built: dict[str, Any], show: str) -> None:
    words = ("--mode", "plain", "--runtime", "apptainer")
    done = launch_apart(
        testbed, *words, "--", "sh", "-c", "command -v squeue; echo ${HPCSTACK_SLURM_SOCKET:-none}"
    )
    assert done.stdout.splitlines()[-1] == "none"
    assert "/opt/hpcstack/slurm" not in done.stdout


def test_a_command_of_slurms_is_launched(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    """The image itself has no squeue."""
    words = ("--mode", "plain", "--runtime", "apptainer", "--slurm")
    done = launch_apart(testbed, *words, "--", "squeue", "--noheader", "--me", "--format=%i")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


SNAKEFILE = """\
rule all:
    input: "joined.txt"

rule part:
    output: "part-{n}.txt"
    shell: "echo {wildcards.n} on $(hostname) in $(ls -d /opt/hpcstack/slurm) >{output}"

rule join:
    input: "part-1.txt", "part-2.txt"
    output: "joined.txt"
    shell: "cat {input} >{output}"
"""
PLUGIN = ("--with", "snakemake==9.15.0", "--with", "snakemake-executor-plugin-slurm==2.6.1")
SNAKEMAKE = """\
cd snakemake
export SNAKEMAKE_OUTPUT_CACHE=
exec snakemake --executor slurm --jobs 2 --default-resources slurm_partition=debug runtime=5 mem_mb=100 \\
    --latency-wait 30 --slurm-init-seconds-before-status-checks=1
"""


@pytest.mark.apptainer
@pytest.mark.soak(
    "a program that types what others type",
    kept="tests/integration/test_slurm_inside.py::test_jobs_are_submitted",
)
def test_snakemake_submits_its_jobs(testbed: Testbed, built: dict[str, Any], show: str) -> None:
    """By its Slurm plugin, which is added to the image: sbatch, sacct and srun of its own."""
    testbed.bash("rm -rf tests/launching/snakemake")
    testbed.give("tests/launching/snakemake/Snakefile", SNAKEFILE)
    done = type_inside(testbed, "apptainer", SNAKEMAKE, *PLUGIN)
    joined = testbed.run("cat", "tests/launching/snakemake/joined.txt").stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"1 on node\d+ in /opt/hpcstack/slurm", joined[0]), joined
    assert re.fullmatch(r"2 on node\d+ in /opt/hpcstack/slurm", joined[1]), joined
    assert list_helpers() == []


# What Nextflow does, of its SlurmExecutor and its .command.run:
# https://github.com/nextflow-io/nextflow
NEXTFLOW = """\
set -e
mkdir -p nextflow/work && cd nextflow/work
rm -f .exitcode .command.log
cat >.command.run <<END
#!/bin/bash
#SBATCH -J nf-hello
#SBATCH -o $PWD/.command.log
#SBATCH --no-requeue
#SBATCH --signal B:USR2@30
#SBATCH -t 00:05:00
#SBATCH -p debug
NXF_CHDIR=$PWD
on_exit() { printf "\\$?" >$PWD/.exitcode; }
trap on_exit EXIT
cd "\\$NXF_CHDIR"
python3 -c 'import torch; print("torch", torch.__file__)'
exit 6
END
submitted=$(sbatch .command.run)
job=$(echo "$submitted" | sed -n 's/Submitted batch job \\([0-9]*\\)/\\1/p')
squeue --noheader -o '%i %t' -t all -p debug -u "$(id -un)" | grep "^$job "
for _ in $(seq 200); do [ -s .exitcode ] || sleep 0.3; done
echo "exit $(cat .exitcode)"
cat .command.log
sed -i 's/^exit 6/sleep 300/; s/nf-hello/nf-stopped/' .command.run
job=$(sbatch .command.run | sed 's/[^0-9]//g')
scancel "$job"
for _ in $(seq 100); do squeue --noheader -o '%i %t' -t all -j "$job" | grep -q CA && break || sleep 0.3; done
squeue --noheader -o '%t' -t all -j "$job"
"""


@pytest.mark.apptainer
@pytest.mark.soak(
    "a program that types what others type",
    kept="tests/integration/test_slurm_inside.py::test_jobs_are_submitted",
)
def test_nextflow_would_submit_its_jobs(testbed: Testbed, built: dict[str, Any], show: str) -> None:
    done = type_inside(testbed, "apptainer", NEXTFLOW)
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ (PD|CF|R|CG|CD)", lines[0]), done.stderr
    assert lines[1] == "exit 6", done.stdout + done.stderr
    assert lines[2].startswith("torch /usr/local/lib/"), lines
    assert lines[-1] == "CA"


@pytest.mark.apptainer
@pytest.mark.soak(
    "a program that types what others type",
    kept="tests/integration/test_slurm_inside.py::test_jobs_are_submitted",
)
def test_what_the_page_says_is_typed(testbed: Testbed, built: dict[str, Any], show: str) -> None:
    """docs/how-to/slurm-inside.md: its first line starts the shell, its second block is typed."""
    page = (REPO / "docs/how-to/slurm-inside.md").read_text()
    start, typed, *_ = re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for name in ("train.py", "evaluate.py"):
        program = (
            "import os, time; print('in', os.path.exists('/opt/hpcstack/slurm')); time.sleep({})"
        )
        seconds = 60 if name == "evaluate.py" else 0
        testbed.give(f"tests/launching/page/{name}", program.format(seconds))
    mine = "$(squeue --me --noheader --name=wrap --format=%i)"
    script = '[ "$SLURM_PROCID" = 0 ] || exit 0\nset -e\n' + typed.replace("1234", mine)
    words = f"{start.strip()} --runtime apptainer -- -c"
    done = testbed.bash(
        f'cd tests/launching/page && export XDG_STATE_HOME=$PWD/state && {words} "$1"',
        script,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("in True") == 2
    assert "Submitted batch job" in done.stdout
