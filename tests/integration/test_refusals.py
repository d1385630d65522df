"""What goes wrong, as a user meets it: the message, the hint, the exit code, and nothing left
half-made.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import time
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.apptainer, pytest.mark.registry]


def test_an_unknown_stack_names_the_nearest(testbed: Testbed) -> None:
    done = testbed.hpcstack("build", "pytorch-2411", check=False)
    assert done.returncode == 2
    assert "there is no stack 'pytorch-2411' (did you mean 'pytorch-24.11'?)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_recipe_says_file_line_and_column(recipes: Recipes) -> None:
    name = recipes.write("1", packages="{pipp: [x]}")
    done = recipes.run("build", name)
    assert done.returncode == 2
    assert (
        "recipes/demo-1.yaml:6:12: packages.pipp: unknown key 'pipp' (did you mean 'pip'?)"
        in done.stderr
    )


def test_a_missing_tool_names_its_package(recipes: Recipes) -> None:
    name = recipes.write("1")
    bin_folder = recipes.testbed.bash("dirname $(command -v hpcstack)").stdout.strip()
    done = recipes.run("build", name, "--engine", "auto", PATH=bin_folder)
    assert done.returncode == 3
    assert "no engine can be used here: apptainer: apptainer, " in done.stderr
    assert "TIP: install squashfs-tools and util-linux, or apptainer" in done.stderr
    done = recipes.run("build", name, "--engine", "builtin", PATH=bin_folder)
    assert done.returncode == 3
    assert "cannot be used here: unshare, " in done.stderr


def test_a_tag_that_is_not_there(recipes: Recipes) -> None:
    recipes.base = "nvcr.io/hpcstack-tests/debian-python:99"
    done = recipes.run("build", recipes.write("1"))
    assert done.returncode == 5
    assert "has no nvcr.io/hpcstack-tests/debian-python:99" in done.stderr


def test_a_pull_that_fails_in_the_build_is_told(recipes: Recipes) -> None:
    """The lock names a digest that the registry does not have (any more)."""
    name = recipes.write("1")
    assert recipes.run("lock", name).returncode == 0
    recipes.testbed.bash(
        # else it is stale
        (
            'sed -i -e "/\\"checksum\\"/d" -e "s/\\"digest\\": \\"sha256:..../\\"digest\\": '
            '\\"sha256:0000/" "$1"'
        ),
        f"{recipes.folder}/recipes/{name}.lock.json",
    )
    done = recipes.run("build", name)
    assert done.returncode == 5
    assert "has no nvcr.io/hpcstack-tests/debian-tiny@sha256:0000" in done.stderr
    assert "hpcstack lock STACK locks what is there now" in done.stderr
    assert recipes.stored() == []


def test_a_failed_step_shows_its_command_and_its_log(recipes: Recipes) -> None:
    name = recipes.write(
        "1", run='[{name: "greet {{all}}", command: "echo hello\\nls /no/such/place\\necho never"}]'
    )
    done = recipes.run("build", name)
    assert done.returncode == 4
    assert "the build failed in step 1/2 run: greet {{all}}" in done.stderr
    assert "> ls /no/such/place  (exit 2)" in done.stderr
    log = done.stderr.split("the whole log is ")[1].split()[0]
    assert "hpcstack step 1/2" in recipes.testbed.run("cat", log).stdout
    assert "never" not in recipes.testbed.run("cat", log).stdout.replace("echo never", "")
    assert recipes.stored() == []
    assert workspaces(recipes) == ""


@pytest.mark.soak(
    "a version that is not there is said as a name is", but=lambda packages: "99.9" not in packages
)
@pytest.mark.parametrize(
    ("packages", "says"),
    [
        (
            "{apt: [hello, no-such-package-of-ours]}",
            "Unable to locate package no-such-package-of-ours",
        ),
        ("{apt: [hello=99.9]}", "hello"),
        (
            "{pip: [no-such-package-of-ours-either]}",
            "No matching distribution found for no-such-package-of-ours-either",
        ),
        ("{pip: [wheel==99.9]}", "No matching distribution found for wheel==99.9"),
        (
            "{source: [{name: x, git: 'file:///nowhere', ref: v1, build: make}]}",
            "file:///nowhere has no 'v1'",
        ),
    ],
    ids=["apt", "apt-version", "pip", "pip-version", "source"],
)
def test_what_cannot_be_had_is_said_when_it_is_locked(
    recipes: Recipes, small_base: str, packages: str, says: str
) -> None:
    recipes.base = small_base
    done = recipes.run("lock", recipes.write("1", packages=packages))
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert recipes.testbed.bash('ls "$1"', f"{recipes.folder}/recipes").stdout.split() == [
        "demo-1.yaml"
    ]


def test_pip_may_not_replace_what_the_base_brings(recipes: Recipes) -> None:
    recipes.base = "nvcr.io/nvidia/pytorch:24.11-py3"
    done = recipes.run("build", recipes.write("1", packages="{pip: [torch==2.12.0]}"))
    assert done.returncode == 2
    assert "not locked: the base's own tools failed in step 3/3 pip" in done.stderr
    assert "2.6.0a0+df5bbc09d1.nv24.11" in done.stderr
    assert "loosen the requirement" in done.stderr


def test_the_guard_of_the_build_catches_what_no_lock_can(recipes: Recipes) -> None:
    """A step that replaces torch by hand."""
    recipes.base = "nvcr.io/nvidia/pytorch:24.11-py3"
    hand = (
        "mv /usr/local/lib/python3.11/dist-packages/torch-2.6.0a0+df5bbc09d1.nv24.11.dist-info "
        "/root/gone"
    )
    done = recipes.run("build", recipes.write("1", run=f"[{{name: by hand, command: {hand!r}}}]"))
    assert done.returncode == 4
    assert "failed in step 1/2 run: by hand" in done.stderr
    assert "2.6.0a0+df5bbc09d1.nv24.11" in done.stderr


def test_a_stale_lock_is_refused(recipes: Recipes) -> None:
    name = recipes.write("1")
    assert recipes.run("lock", name).returncode == 0
    recipes.write("1", environment='{A: "1"}')
    assert recipes.run("lock", name, "--check").returncode == 1
    done = recipes.run("build", name)
    assert done.returncode == 2
    assert f"the lock of {name} is stale: the recipe has changed since it was locked" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.soak(
    "whatever ends it: KILL lets it do the least", but=lambda number: number == signal.SIGKILL
)
def test_an_interrupted_build_leaves_nothing_and_the_next_one_works(
    recipes: Recipes, number: signal.Signals
) -> None:
    name = recipes.write("1", run="[{name: slow, command: 'sleep 2; echo done >/opt/slow'}]")
    process = begin(recipes, name)
    assert process.stderr
    for line in process.stderr:
        if "step 1/2" in line:
            break
    time.sleep(0.3)
    recipes.testbed.bash(
        f'kill -{number.name.removeprefix("SIG")} "$(cat "$1")"', str(recipes.folder / "pid")
    )
    process.communicate(timeout=60)
    assert [path for path in recipes.stored() if not path.startswith("store/leases/")] == []
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert recipes.stored() == []
        assert workspaces(recipes) == ""
    done = recipes.run("build", name, "--json")
    assert done.returncode == 0, done.stderr
    image = json.loads(done.stdout)["image"]
    assert recipes.testbed.run("unsquashfs", "-cat", image, "opt/slow").stdout == "done\n"
    assert workspaces(recipes) == ""


def begin(recipes: Recipes, name: str) -> subprocess.Popen[str]:
    """A build in the background, of all its steps; its pid is in the file `pid`."""
    script = 'echo $$ >"$4"; exec hpcstack --site "$1" --recipes "$2" build --no-cache "$3"'
    places = [str(recipes.folder / part) for part in ("site.yaml", "recipes")]
    argv = [
        str(recipes.testbed_control),
        "exec",
        "bash",
        "-c",
        script,
        "bash",
        *places,
        name,
        str(recipes.folder / "pid"),
    ]
    default = functools.partial(
        signal.signal, signal.SIGINT, signal.SIG_DFL
    )  # a test run in the background ignores it
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, preexec_fn=default)


def workspaces(recipes: Recipes) -> str:
    """What builds have left; those of builders that live, beside this test, are theirs
    (lease.label: their process).
    """
    script = (
        'cd /tmp; for one in hpcstack-build-*; do [ ! -e "$one" ] || [ -d "/proc/$(echo "$one" | '
        'cut -d+ -f4)" ] || echo "$one"; done'
    )
    return recipes.testbed.bash(script).stdout


def test_launch_without_an_image_says_how_to_build_one(recipes: Recipes) -> None:
    done = recipes.run("launch", recipes.write("1"), "--", "true")
    assert done.returncode == 2
    assert "no image of demo-1" in done.stderr
    assert "TIP: hpcstack build demo-1" in done.stderr


def test_a_store_that_cannot_be_written(recipes: Recipes) -> None:
    recipes.site("store: /proc/nowhere\n")
    done = recipes.run("build", recipes.write("1"))
    assert done.returncode == 7
    assert "Traceback" not in done.stderr


def test_a_lock_that_is_there_counts_for_everybody(recipes: Recipes) -> None:
    name = recipes.write("1")
    assert recipes.run("lock", name).returncode == 0
    recipes.testbed.bash('chmod a-w "$1"', str(recipes.folder / "recipes"))
    done = recipes.run("lock", name, "--check")
    recipes.testbed.bash('chmod u+w "$1"', str(recipes.folder / "recipes"))
    assert done.returncode == 0, done.stderr


def test_slurms_own_refusal_is_not_the_commands_status(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    own = str(testbed.home / "tests/refused")  # the newest launch of others stays theirs
    words = ("launch", "pytorch-24.11", "--mode", "plain")
    done = testbed.run("hpcstack", *words, "-w", "nodeX", "--", "true", XDG_STATE_HOME=own)
    assert done.returncode == 125, done.stderr
    assert (
        testbed.run("hpcstack", *words, "-p", "nope", "--", "true", XDG_STATE_HOME=own).returncode
        == 2
    )


def test_lint_reports_all_that_it_was_given(recipes: Recipes) -> None:
    bad = recipes.write("1", packages="{pipp: [x]}")
    done = recipes.run("lint", bad, "nope", "--json")
    assert done.returncode == 2
    assert len(json.loads(done.stdout)["problems"]) == 2


def test_no_verb_at_all_shows_the_help(testbed: Testbed) -> None:
    done = testbed.hpcstack(check=False)
    assert (done.returncode, "Trouble:" in done.stdout, done.stderr) == (0, True, "")
