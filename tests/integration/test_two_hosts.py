"""Two nodes that share a store: each builds, publishes and loads while the other does.

The virtual nodes share this machine's kernel and disk. With `ci/filesystems --testbed` they have
processes of their own, and reach the store by a client each, of GlusterFS or MooseFS.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slurm,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.timeout(1200),  # a dead host is waited for, beside six other lanes
]
LOAD = """
module use {modules}
while true; do
    if [ -e {stop} ]; then last=yes; fi
    module load demo/1 && echo "$HPCSTACK_RELEASE"
    module unload demo/1
    [ -z "$last" ] || break
done
"""
PATIENCE = 400  # a lease of another host is taken over after 60 s without a heartbeat


@pytest.fixture
def job(recipes: Recipes) -> Iterator[str]:
    """The number of a job on both nodes, in which each verb is a step.

    A job for each verb might wait for ever: for one that wants whole nodes, and that waits in turn
    for what the first verb holds.
    """
    testbed = recipes.testbed
    name = f"hosts-{uuid.uuid4().hex}"  # the job of the test before may still be completing
    ask = ("--nodes=2", "--ntasks-per-node=1", "--time=15", f"--job-name={name}")
    testbed.run("salloc", "--quiet", "--no-shell", *ask, check=True, timeout=600)
    number = testbed.run("squeue", "--noheader", f"--name={name}", "--format=%A").stdout.strip()
    yield number
    testbed.run("scancel", number)


def step_on(node: str, job: str) -> list[str]:
    return ["srun", "--quiet", f"--jobid={job}", f"--nodelist={node}", "--nodes=1", "--ntasks=1"]


def start_on(node: str, job: str, recipes: Recipes, *words: str) -> subprocess.Popen[str]:
    """The verb WORDS as a job step on NODE; it answers with one JSON document."""
    site, folder = recipes.folder / "site.yaml", recipes.folder / "recipes"
    options = ["--site", str(site), "--recipes", str(folder)]
    command = [*step_on(node, job), "hpcstack", *options, *words, "--json"]
    argv = [str(recipes.testbed_control), "exec", *command]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def prepare(recipes: Recipes, stack: str) -> None:
    """Lock STACK and import its base: no node reaches a registry."""
    for words in (("build", recipes.write("0")), ("lock", stack)):
        done = recipes.run(*words)
        assert done.returncode == 0, done.stderr


def list_images(recipes: Recipes) -> list[str]:
    return [one for one in recipes.stored() if one.endswith(".sqsh")]


def publish(recipes: Recipes, job: str, number: int) -> None:
    """Build and publish a further release of demo-1 on node1."""
    stack = recipes.write("1", run=f"[{{name: count, command: 'echo {number} >/opt/number'}}]")
    prepare(recipes, stack)
    into = ("--channel", "production", "--override", "a test")
    for words in (("build", "--offline", stack), ("publish", stack, *into)):
        step = start_on("node1", job, recipes, *words)
        answer, said = step.communicate(timeout=300)
        assert step.returncode == 0, (answer, said)


def wait_until_it_waits(builder: subprocess.Popen[str]) -> None:
    """Until BUILDER says that another one holds the lease."""
    assert builder.stderr
    said = ""
    for line in builder.stderr:
        said += line
        if "waiting for another builder" in line:
            return
    raise AssertionError(f"it has not waited: {said}")


def wait_until_running(testbed: Testbed, mark: str, but: str = "") -> str:
    """The process of the build's step, once it runs; not that which BUT names."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        process = testbed.bash(f"pgrep -f '^sleep {mark}$'", check=False).stdout.strip()
        if process not in ("", but):
            return process
        time.sleep(0.1)
    raise AssertionError("the build has not come to its step")


def write_waiting(recipes: Recipes) -> tuple[str, str]:
    """(stack, mark): a stack whose build waits in a step until `end_step` of MARK."""
    mark = f"600.{time.time_ns() % 10**6:06}"  # so many seconds does nothing else sleep
    stack = recipes.write("1", run=f"[{{name: wait, command: 'sleep {mark} || true'}}]")
    return stack, mark


def end_step(testbed: Testbed, mark: str) -> None:
    testbed.bash(f"pkill -f '^sleep {mark}$'")


def test_two_nodes_build_one_image_once(recipes: Recipes, job: str) -> None:
    stack, mark = write_waiting(recipes)
    prepare(recipes, stack)

    first = start_on("node1", job, recipes, "build", "--offline", stack)
    wait_until_running(recipes.testbed, mark)
    second = start_on("node2", job, recipes, "build", "--offline", stack)
    wait_until_it_waits(second)
    end_step(recipes.testbed, mark)
    answers = [one.communicate(timeout=PATIENCE) for one in (first, second)]

    assert [one.returncode for one in (first, second)] == [0, 0], answers
    documents = [json.loads(answer) for answer, _ in answers]
    assert len({one["sha256"] for one in documents}) == 1
    assert sorted(one["built"] for one in documents) == [False, True]
    assert len(list_images(recipes)) == 2  # and that of demo-0


def test_another_node_takes_over_what_a_killed_one_has_begun(recipes: Recipes, job: str) -> None:
    testbed = recipes.testbed
    stack, mark = write_waiting(recipes)
    prepare(recipes, stack)

    first = start_on("node1", job, recipes, "build", "--offline", stack)
    killed = wait_until_running(testbed, mark)
    second = start_on("node2", job, recipes, "build", "--offline", stack)
    wait_until_it_waits(second)
    testbed.run("scancel", "--signal=KILL", f"{job}.0", check=True)  # the first verb's step
    assert first.wait(timeout=300) != 0
    wait_until_running(testbed, mark, but=killed)
    end_step(testbed, mark)

    answer, said = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    assert json.loads(answer)["built"] is True
    assert len(list_images(recipes)) == 2  # and that of demo-0


@pytest.mark.lmod
def test_a_node_loads_while_another_publishes(recipes: Recipes, job: str) -> None:
    """No load fails or goes back to an older release, on a node of its own."""
    testbed, times = recipes.testbed, 4
    publish(recipes, job, 1)

    script = LOAD.format(modules=f"{recipes.folder}/modules/Core", stop=f"{recipes.folder}/stop")
    step = step_on("node2", job)
    argv = [str(recipes.testbed_control), "exec", *step, "bash", "-c", script]
    reader = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert reader.stdout
    first = reader.stdout.readline()
    try:
        for number in range(times):
            publish(recipes, job, 2 + number)
    finally:
        testbed.give(str(recipes.folder / "stop").removeprefix(f"{testbed.home}/"), "")
        others, said = reader.communicate(timeout=300)

    loads = first + others
    releases = [int(one.removeprefix("demo/1-r")) for one in loads.split()]
    assert releases == sorted(releases), loads
    assert len(releases) > times, (loads, said)
    assert releases[-1] == 1 + times, said
