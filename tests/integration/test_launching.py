"""Launching on the testbed: every mode by every runtime, seen from inside; what goes wrong, and
what is written down.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from support.launching import EVERY_RUNTIME, RUNTIMES, STACK, launch
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.slurm]


def ranks(text: str) -> list[dict[str, Any]]:
    """What each rank said, in the order of ranks."""
    out, decoder, at = [], json.JSONDecoder(), text.find('{"host"')
    while at >= 0:
        document, end = decoder.raw_decode(text, at)
        out.append(document)
        at = text.find('{"host"', end)
    return sorted(
        out,
        key=lambda one: int(one["environment"].get("RANK") or one["environment"]["SLURM_PROCID"]),
    )


def runtimes_and_modes() -> list[Any]:
    """torchrun by every runtime; the other modes, which differ inside the image, by Apptainer."""
    by_torchrun = [
        pytest.param(*one.values, "torchrun", marks=one.marks, id=f"torchrun-{one.values[0]}")
        for one in EVERY_RUNTIME
    ]
    by_others = [
        pytest.param(*one.values, mode, marks=one.marks, id=f"{mode}-{one.values[0]}")
        for one in RUNTIMES
        for mode in ("task-per-gpu", "deepspeed")
    ]
    return by_torchrun + by_others


@pytest.mark.parametrize(("runtime", "mode"), runtimes_and_modes())
def test_every_rank_knows_itself_and_the_first(
    testbed: Testbed, built: dict[str, Any], show: str, mode: str, runtime: str
) -> None:
    done = launch(
        testbed,
        "-N2",
        "--nproc-per-node",
        "2",
        "--mode",
        mode,
        "--runtime",
        runtime,
        "--",
        "show.py",
        "a b",
    )
    said = ranks(done.stdout)
    assert done.returncode == 0 and len(said) == 4, done.stderr
    environments = [one["environment"] for one in said]
    assert [int(env["RANK"]) for env in environments] == [0, 1, 2, 3]
    assert [int(env["LOCAL_RANK"]) for env in environments] == [0, 1, 0, 1]
    assert {env["WORLD_SIZE"] for env in environments} == {"4"}
    assert [one["host"] for one in said] == ["node1", "node1", "node2", "node2"]
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in environments}) == 1
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", environments[0]["MASTER_ADDR"])
    assert all(one["cwd"].endswith("tests/launching") and "a b" in one["arguments"] for one in said)
    assert {env["CUDA_VERSION"] for env in environments} == {"12.6.3.001"}, (
        "the image's own variables are there"
    )


@pytest.mark.pmix
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_plain_and_mpi_are_slurms_own_tasks(
    testbed: Testbed, built: dict[str, Any], show: str, runtime: str
) -> None:
    plain = launch(
        testbed,
        "-N2",
        "--ntasks-per-node=2",
        "--mode",
        "plain",
        "--runtime",
        runtime,
        "--",
        "python3",
        show,
    )
    assert [one["environment"]["SLURM_PROCID"] for one in ranks(plain.stdout)] == [
        "0",
        "1",
        "2",
        "3",
    ], plain.stderr
    mpi = launch(
        testbed,
        "-N2",
        "--nproc-per-node=2",
        "--mode",
        "mpi",
        "--runtime",
        runtime,
        "--",
        "python3",
        show,
    )
    found = sorted(one["environment"]["PMIX_RANK"] for one in ranks(mpi.stdout))
    assert found == ["0", "1", "2", "3"], mpi.stderr


@pytest.mark.apptainer
def test_what_the_user_set_wins_and_why_tells(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    # Another test may launch meanwhile, and that would be the newest.
    state = f"{testbed.home}/tests/launching/why-state"

    def ask(verb: str, words: str) -> Any:
        return testbed.bash(f"XDG_STATE_HOME={state} hpcstack {verb} {words}", check=False)

    done = launch(
        testbed,
        "--runtime",
        "apptainer",
        "--",
        "show.py",
        MASTER_PORT="23456",
        PYTHONNOUSERSITE="0",
        XDG_STATE_HOME=state,
    )
    said = ranks(done.stdout)[0]["environment"]
    assert (said["MASTER_PORT"], said["PYTHONNOUSERSITE"]) == ("23456", "0")
    why = json.loads(ask("why", "PYTHONNOUSERSITE --json").stdout)
    assert (why["set"]["value"], why["set"]["origin"]) == ("0", "the user's environment")
    of_the_image = json.loads(ask("why", "CUDA_VERSION --json").stdout)
    assert of_the_image["set"]["origin"] == "the image"
    assert ask("why", "NOBODY_SET_THIS").returncode == 1
    token = {"HF_TOKEN": "hf_do_not_keep_me", "XDG_STATE_HOME": state}
    secret = launch(testbed, "--mode=plain", "--", "python3", "show.py", **token)
    folder = json.loads(ask("jobs", "-n 1 --json").stdout)[0]["folder"]
    assert secret.returncode == 0
    assert testbed.bash('grep -r do_not_keep_me "$1" || true', folder).stdout == ""


@pytest.mark.apptainer
def test_a_job_of_its_own_is_written_down(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    words = (
        "-N2",
        "--mode=task-per-gpu",
        "--nproc-per-node=1",
        "--batch",
        "--time=5",
        "--output=batch-%j.out",
        "--runtime",
        "apptainer",
    )
    done = launch(testbed, *words, "--json", "--", "show.py")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    until = time.monotonic() + 120
    while (row := _job(testbed, document["job"]))["state"] not in (
        "COMPLETED",
        "FAILED",
    ) and time.monotonic() < until:
        time.sleep(1)
    assert row["state"] == "COMPLETED"
    assert row["nodes"] == "node[1-2]"
    assert row["stack"] == STACK
    said = testbed.bash('cat "tests/launching/batch-$1.out"', document["job"]).stdout
    assert [one["host"] for one in ranks(said)] == ["node1", "node2"]
    kept = json.loads(testbed.bash('cat "$1/launch.json"', document["folder"]).stdout)
    assert kept["image_sha256"] == built["sha256"]
    assert kept["lock_sha256"]
    assert kept["argv"][0] == "srun"
    told = testbed.run("hpcstack", "explain", document["job"])
    assert told.returncode == 0 and told.stdout == "COMPLETED: it ended with 0\n", told.stderr


def _job(testbed: Testbed, number: str) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in testbed.json("jobs") if row["job"] == number)
    return row


@pytest.mark.apptainer
@pytest.mark.shellcheck
@pytest.mark.parametrize("mode", ["torchrun", "deepspeed", "task-per-gpu", "mpi", "plain"])
def test_the_script_is_stable_sound_and_what_slurm_takes(
    testbed: Testbed, built: dict[str, Any], show: str, mode: str
) -> None:
    words = (
        "-N2",
        "--mode",
        mode,
        "--batch",
        "--dry-run",
        "--all",
        "--time=10",
        "--mem=100",
        "--",
        "show.py",
        "it's; $(x) \\ `y`",
    )
    first, second = (launch(testbed, *words).stdout for _ in range(2))
    assert first == second
    path = testbed.give("tests/launching/script.sh", first)
    for argv in (("bash", "-n"), ("shellcheck",), ("sbatch", "--test-only")):
        done = testbed.run(*argv, str(path))
        assert done.returncode == 0, done.stdout + done.stderr
    body = first.split("line=(")[1].splitlines()
    assert all(
        above.strip().startswith("# ")
        for above, below in itertools.pairwise(body)
        if "--nodes" in below
    )


@pytest.mark.apptainer
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-N3",), "3 nodes: partition debug has 2"),
        (("-N1", "-G9"), "9 GPUs per node: the nodes of partition debug have 4"),
        (("-c99",), "99 CPUs per node (1 x 99): partition debug has 4"),
        (("-t", "soon"), "write minutes (30), H:MM:SS"),
        (("--mam=3G",), "did you mean '--mem'?"),
        (("--contiguous", "compute_bound"), "comes before the `--`"),
        (("-C", "h100"), "no node of partition debug has it"),
        (("--ntasks-per-node=4",), "--nproc-per-node 4, or --mode task-per-gpu"),
        (("--elastic", "2"), "MIN:MAX nodes are wanted"),
    ],
)
def test_what_cannot_be_is_refused_before_slurm_is_asked(
    testbed: Testbed, built: dict[str, Any], show: str, words: tuple[str, ...], says: str
) -> None:
    done = launch(testbed, *words, "--", "show.py")
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.apptainer
def test_a_quiet_launch_says_nothing_of_its_own(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    loud = launch(testbed, "--mode", "plain", "--", "true")
    assert loud.returncode == 0
    assert loud.stderr.startswith("* pytorch-24.11 (")
    quiet = launch(testbed, "--quiet", "--mode", "plain", "--", "true")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    failed = launch(testbed, "--quiet", "--mode", "plain", "--", "false")
    assert failed.returncode == 1
    assert "hpcstack: " in failed.stderr


@pytest.mark.apptainer
def test_a_script_is_shown_for_a_partition_that_slurm_does_not_have_yet(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    text = (testbed.folder / "etc/site.yaml").read_text()
    path = testbed.give(
        "tests/launching/site.yaml",
        text.replace("partitions:\n", "partitions:\n  dgx: {node_type: virtual}\n"),
    )
    words = ("hpcstack", "--site", str(path), "launch", STACK, "-p", "dgx", "-N4")
    shown = testbed.run(*words, "--batch", "--dry-run", "--all", "--", "python3", "-c", "1")
    assert shown.returncode == 0 and "#SBATCH --partition=dgx" in shown.stdout, shown.stderr
    assert "NOTE: Slurm would refuse it today: there is no partition 'dgx'" in shown.stderr

    done = testbed.run(*words, "--", "python3", "-c", "1")
    assert done.returncode == 2
    assert "there is no partition 'dgx'" in done.stderr


@pytest.mark.apptainer
def test_a_command_that_is_not_there_is_said_before_nodes_are_taken(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    assert launch(testbed, "--check", "--", "show.py").returncode == 0
    assert launch(testbed, "--check", "--mode", "plain", "--", "python3", "x").returncode == 0
    for command, says in ((("no-such-tool",), ("no command " "'no-such-tool'")), (("not-here.py",), "no such file"),
                          (("/opt/none",), "neither in the image nor in a mount")):  # fmt: skip
        done = launch(testbed, "--check", "--mode", "plain", "--", *command)
        assert done.returncode == 1 and says in done.stdout, done.stdout + done.stderr


@pytest.mark.apptainer
def test_the_doctor_sees_the_nodes(testbed: Testbed) -> None:
    document = json.loads(
        testbed.run("hpcstack", "doctor", "--nodelist", "node[1-2]", "--json").stdout
    )
    seen = {(one["where"], one["code"]): one["status"] for one in document["findings"]}
    for node in ("node1", "node2"):
        assert seen[node, "userns"] == "OK"
        assert seen[node, "gpu"] == "SKIP"
        assert seen[node, "store"] == "OK"
    assert seen["all", "clock"] == "OK"
    assert any(code == "registry" for _, code in seen)
    assert testbed.run("hpcstack", "doctor", "--nodelist", "node[1-").returncode == 2


@pytest.mark.pmix
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_mpi_program_really_talks(
    testbed: Testbed, show: str, mpi_stack: str, runtime: str
) -> None:
    """Open MPI of the image, started by Slurm's PMIx, with ranks on two nodes and two on each."""
    testbed.give("tests/launching/ring.py", RING)
    words = ("-N2", "--nproc-per-node=2", "--mode", "mpi", "--runtime", runtime, "--", "ring.py")
    script = 'cd tests/launching && exec hpcstack launch "$@"'
    done = testbed.bash(script, mpi_stack, *words, check=False)
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert said == [f"rank {n} of 4 got {(n - 1) % 4} sum 6 big 4" for n in range(4)], done.stderr


RING = """\
from mpi4py import MPI
world = MPI.COMM_WORLD
got = world.sendrecv(world.rank, dest=(world.rank + 1) % world.size, source=(world.rank - 1) % world.size)
big = world.allreduce(b"x" * (1 << 20), op=lambda one, other: one) and world.allreduce(1)
print(f"rank {world.rank} of {world.size} got {got} sum {world.allreduce(world.rank)} big {big}", flush=True)
"""


@pytest.mark.alone  # for a moment nobody can read the shared image
@pytest.mark.apptainer
@pytest.mark.parametrize("how", ["copy", "sbcast"])
def test_image_and_data_lie_on_the_nodes_own_disks(
    testbed: Testbed, built: dict[str, Any], show: str, how: str
) -> None:
    folders = [testbed.folder / "nodes" / node / "tmp" for node in ("node1", "node2")]
    for folder in (staged for node in folders for staged in node.glob("hpcstack-staged-*")):
        shutil.rmtree(folder, ignore_errors=True)
    data = testbed.give("tests/launching/data/x", "staged").parent
    where = "import os; print(open('/data/x').read(), os.environ['SLURM_NODEID'])"
    words = ("-N2", "--stage", how, "--stage-in", f"{data}:/data", "--mode", "plain", "--runtime", "apptainer", "--",
             "python3", "-c", where)  # fmt: skip
    done = launch(testbed, *words)
    assert sorted(done.stdout.splitlines()) == ["staged 0", "staged 1"], done.stderr
    for folder in folders:
        staged = next(folder.glob(f"hpcstack-staged-*/{built['sha256']}.sqsh"))
        assert staged.stat().st_size == built["size"]
        assert not list(folder.glob("hpcstack-staged-*/.*.part"))
    shared = Path(built["image"])
    mode = shared.stat().st_mode
    shared.chmod(0)
    try:
        again = launch(testbed, *words)
    finally:
        shared.chmod(mode)
    assert again.returncode == 0, "the shared image is not read again"
    assert (
        json.loads(
            testbed.bash(
                'cat "$1"/launch.json', testbed.json("jobs", "-n", "1")[0]["folder"]
            ).stdout
        )["staged"]
        == how
    )


@pytest.mark.apptainer
def test_packages_of_ones_own_and_a_stack_that_only_adds_some(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    program = "import cowsay, torch; print(cowsay.__file__.split('/')[3], torch.__version__)"
    words = ("-N2", "--mode", "plain", "--runtime", "apptainer", "--", "python3", "-c", program)
    done = launch(testbed, "--with", "cowsay==6.1", *words)
    assert done.stdout.splitlines() == [f"with {built['pip']['torch']}"] * 2, done.stderr
    recipe = testbed.give("tests/launching/cow.yaml", LAYER)
    layer = testbed.bash(
        'cd tests/launching && exec hpcstack launch "$@"', str(recipe), *words, check=False
    )
    assert layer.stdout == done.stdout and "and a layer of cowsay==6.1" in layer.stderr, (
        layer.stderr
    )
    refused = launch(testbed, "--with", "numpy<1", *words)
    assert refused.returncode == 2
    assert "numpy<1 is wanted, and the image has" in refused.stderr
    assert launch(testbed, "--with", "-r /etc/passwd", *words).returncode == 2


LAYER = """\
apiVersion: hpcstack/v1
name: cow
version: "1"
extends: pytorch-24.11
summary: pytorch with a cow
packages: {pip: ["cowsay==6.1"]}
"""


@pytest.mark.apptainer
def test_inside_an_allocation_its_number_of_tasks_does_not_count(
    testbed: Testbed, built: dict[str, Any], show: str
) -> None:
    """Two tasks per node are the job's; torchrun wants one, and a step of one node is of one node."""
    words = "salloc --quiet -N2 --ntasks-per-node=2 bash -c 'cd tests/launching && hpcstack launch \"$@\"' bash "
    torchrun = testbed.bash(
        f"{words} {STACK} --nproc-per-node 2 --runtime apptainer -- show.py", check=False
    )
    assert [one["environment"]["RANK"] for one in ranks(torchrun.stdout)] == ["0", "1", "2", "3"], (
        torchrun.stderr
    )
    plain = f"{words} {STACK} --mode plain --runtime apptainer"
    one = testbed.bash(f"{plain} -N1 --ntasks-per-node=1 -- python3 show.py", check=False)
    assert len(ranks(one.stdout)) == 1 and "can't honor" not in one.stderr, one.stderr
    assert len(ranks(testbed.bash(f"{plain} -- python3 show.py", check=False).stdout)) == 4, (
        "the job's own"
    )


@pytest.mark.enroot
def test_p5_no_banner_comes_from_each_task(
    testbed: Testbed, built: dict[str, Any], published: dict[str, Any]
) -> None:
    """`enroot start` runs an image's entrypoint, whose banner NVIDIA's write to standard output."""
    launched = testbed.run("hpcstack", "launch", STACK, "-N", "2", "--mode", "plain", "--runtime", "enroot", "--",
                           "sh", "-c", 'echo "${HPCSTACK_COMMAND_ONLY:-said}"')  # fmt: skip
    assert launched.stdout.split() == ["said"] * len(launched.stdout.split())
    assert "said" in launched.stdout
    bare = testbed.run("enroot", "start", built["image"], "true", NVIDIA_VISIBLE_DEVICES="void")
    assert "STAND-IN: Debian and torch" in bare.stdout, "by hand it is the image's own"


@pytest.mark.pyxis
@pytest.mark.enroot
def test_a_published_name_is_an_image_to_pyxis(testbed: Testbed, published: dict[str, Any]) -> None:
    words = (
        "env",
        "NVIDIA_VISIBLE_DEVICES=void",
        "srun",
        "-N2",
        "--container-env=NVIDIA_VISIBLE_DEVICES",
    )
    done = testbed.run(
        *words, f"--container-image=hpcstack/{STACK}", "cat", "/opt/hpcstack/stack.json"
    )
    assert done.returncode == 0 and done.stdout.count(f'"stack": "{STACK}"') == 2, (
        done.stdout + done.stderr
    )
    gone = testbed.run(*words, "--container-image=hpcstack/pytorch-9", "true")
    assert gone.returncode
    assert "no release of pytorch-9 is published here" in gone.stderr
    image = testbed.json("images")[0]["image"]
    assert testbed.run(*words, f"--container-image={image}", "true").returncode == 0, (
        "a file is a file"
    )
