"""Every engine on the testbed: the same recipe, the same image; and what only one of them can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.registry, pytest.mark.squashfs]
ENGINES = [
    "builtin",
    pytest.param("apptainer", marks=pytest.mark.apptainer),
    pytest.param(
        "docker",
        marks=[pytest.mark.docker, pytest.mark.soak("three engines, one image: two show it")],
    ),
    pytest.param("enroot", marks=pytest.mark.enroot),
]
# A package whose postinst makes a group and gives it a file, and one that makes a user.
APT = "[openssh-client, netbase]"
RUN = (
    "[{name: user, command: 'useradd --system --no-create-home demo && chown demo /opt && touch "
    "/opt/made'}]"
)


class Built(dict[str, dict[str, Any]]):
    """{engine: artifact}, built when it is asked for."""

    def __init__(self, recipes: Recipes) -> None:
        super().__init__()
        self.recipes = recipes

    def __missing__(self, engine: str) -> dict[str, Any]:
        done = self.recipes.run("build", "--locked", "demo-1", "--engine", engine, "--json")
        assert done.returncode == 0, done.stderr
        self[engine] = json.loads(done.stdout)
        return self[engine]


@pytest.fixture(scope="module")
def built(shared: Recipes) -> Built:
    return Built(shared)


@pytest.fixture(scope="module")
def shared(testbed: Testbed, small_base: str) -> Recipes:
    recipes = Recipes(testbed, small_base, "engines")
    recipes.write(
        "1", packages=f"{{apt: {APT}, pip: [six==1.17.0]}}", run=RUN, environment='{DEMO: "a b"}'
    )
    done = recipes.run("lock", "demo-1")
    assert done.returncode == 0, done.stderr
    return recipes


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_builds_the_stack(testbed: Testbed, built: Built, engine: str) -> None:
    assert built[engine]["engine"] == engine
    assert built[engine]["pip"]["six"] == "1.17.0"
    assert "openssh-client" in built[engine]["apt"]


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_all_engines_give_the_same_image(shared: Recipes, built: Built, engine: str) -> None:
    done = shared.run("verify", "--parity", built["builtin"]["key"], built[engine]["key"], "--json")
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["differ"]) == (0, []), verdict["differ"][:20]
    assert verdict["compared"]["files"] > 1000
    assert verdict["compared"]["apt packages"] > 100
    assert all(reason for reason in verdict["left_out"].values())


@pytest.mark.apptainer
@pytest.mark.parametrize("engine", ENGINES)
def test_apptainer_runs_what_each_engine_built(testbed: Testbed, built: Built, engine: str) -> None:
    script = (
        'echo "$DEMO"; id -un; getent passwd demo | cut -d: -f1; python3 -c "import six; '
        'print(six.__version__)"'
    )
    done = testbed.run(
        "apptainer",
        "--quiet",
        "exec",
        "--no-home",
        built[engine]["image"],
        "sh",
        "-c",
        script,
        check=True,
    )
    said = done.stdout.split("\n")
    assert (said[0], said[2], said[3]) == ("a b", "demo", "1.17.0")
    assert (
        testbed.run("apptainer", "--quiet", "run", built[engine]["image"], "echo", "run").stdout
        == "run\n"
    )


@pytest.mark.pyxis
@pytest.mark.parametrize("engine", ENGINES)
def test_pyxis_runs_what_each_engine_built(testbed: Testbed, built: Built, engine: str) -> None:
    argv = (
        "srun",
        "-N1",
        f"--container-image={built[engine]['image']}",
        "--container-env=NVIDIA_VISIBLE_DEVICES",
    )
    done = testbed.run(
        *argv,
        "sh",
        "-c",
        'echo "$DEMO"; getent passwd demo',
        NVIDIA_VISIBLE_DEVICES="void",
        check=True,
    )
    assert done.stdout.startswith("a b\ndemo:")


@pytest.mark.enroot
@pytest.mark.parametrize("engine", ENGINES)
def test_enroot_runs_what_each_engine_built(testbed: Testbed, built: Built, engine: str) -> None:
    own = testbed.home / "tests/enroot"
    env = [f"ENROOT_{kind}_PATH={own}/{kind}" for kind in ("DATA", "CACHE", "RUNTIME", "TEMP")]
    testbed.bash('mkdir -p "${@#*=}"', *env)
    name = f"demo-{engine}"
    testbed.run(
        "env",
        *env,
        "enroot",
        "create",
        "--force",
        "--name",
        name,
        built[engine]["image"],
        check=True,
    )
    argv = (
        "env",
        *env,
        "enroot",
        "start",
        "--env",
        "NVIDIA_VISIBLE_DEVICES",
        name,
        "sh",
        "-c",
        'echo "$DEMO"',
    )
    done = testbed.run(*argv, NVIDIA_VISIBLE_DEVICES="void")
    testbed.run("env", *env, "enroot", "remove", "--force", name)
    assert done.stdout == "a b\n", done.stderr


@pytest.mark.soak("layers are kept by one piece of code", but=lambda engine: engine == "builtin")
@pytest.mark.parametrize("engine", [ENGINES[0], ENGINES[1], ENGINES[3]])
def test_only_what_changed_runs_again(testbed: Testbed, recipes: Recipes, engine: str) -> None:
    def steps(last: str) -> str:
        lines = [f"{{name: step-{n}, command: 'echo {n} >/opt/{n}'}}" for n in range(1, 10)]
        return "[" + ", ".join([*lines, f"{{name: last, command: 'echo {last} >/opt/last'}}"]) + "]"

    recipes.write("1", run=steps("one"))
    first = recipes.run("build", "demo-1", "--engine", engine)
    assert first.returncode == 0, first.stderr
    assert "splicing" in first.stderr and "anew" not in first.stderr, first.stderr
    recipes.write("1", run=steps(uuid.uuid4().hex))  # what no earlier run has kept
    assert recipes.run("lock", "demo-1").returncode == 0
    second = recipes.run("build", "demo-1", "--engine", engine)
    kept = [line for line in second.stderr.splitlines() if "kept from an earlier build" in line]
    ran = [
        line
        for line in second.stderr.splitlines()
        if line.startswith("* step ") and line not in kept
    ]
    assert (len(kept), [line.split(maxsplit=3)[3] for line in ran]) == (
        9,
        ["run: last", "finish"],
    ), second.stderr
    fresh = recipes.run("build", "demo-1", "--engine", engine, "--no-cache")
    assert fresh.returncode == 0 and "kept" not in fresh.stderr, fresh.stderr
    assert "the same bytes as the image that is there" in fresh.stderr, fresh.stderr


def test_the_verb_builds_twice(recipes: Recipes) -> None:
    """With packages, too: test_ngc_inside, and ci/soak."""
    words = ("verify", "--reproducible", "--engine", "builtin", "--json")
    for command, same in (("echo 1 >/opt/one", True), ("head -c9 /dev/urandom >/opt/one", False)):
        stack = recipes.write("1", run=f"[{{name: one, command: '{command}'}}]")
        assert recipes.run("lock", stack).returncode == 0
        done = recipes.run(*words, stack)
        verdict = json.loads(done.stdout)
        assert verdict["same_bytes"] is same, done.stdout
        assert bool(verdict["differ"]) is not same
        assert done.returncode == (0 if same else 1)


@pytest.mark.soak(
    "two builds for one word",
    kept="tests/integration/test_ngc_inside.py::test_n17_images_from_source_have_the_same_bytes_again",
)
@pytest.mark.parametrize("engine", ENGINES[:2])
def test_two_builds_give_the_same_bytes(testbed: Testbed, shared: Recipes, engine: str) -> None:
    done = shared.run("verify", "--reproducible", "demo-1", "--engine", engine, "--json")
    assert json.loads(done.stdout) == {
        "stack": "demo-1",
        "engine": engine,
        "same_bytes": True,
        "differ": [],
    }, done.stdout


@pytest.mark.apptainer
def test_what_a_user_has_set_for_apptainer_reaches_no_build(
    testbed: Testbed, recipes: Recipes
) -> None:
    seen = (
        "env >/opt/seen; cp /etc/resolv.conf /opt/names; cat /proc/self/mountinfo >>/opt/seen; "
        "echo mine >>/etc/hosts || true"
    )
    recipes.write("1", run=f"[{{name: look, command: '{seen}'}}]")
    before = Path("/etc/hosts").read_bytes()
    done = recipes.run("build", "demo-1", "--engine", "apptainer", "--json", APPTAINERENV_MINE="words-of-mine",
                       APPTAINER_BIND="/etc/hostname:/opt/mine,/nowhere", SINGULARITYENV_MINE="words-of-mine")  # fmt: skip
    assert done.returncode == 0 and "anew" not in done.stderr, done.stderr
    image = json.loads(done.stdout)["image"]
    found = testbed.run("unsquashfs", "-cat", image, "opt/seen", check=True).stdout
    names = testbed.run("unsquashfs", "-cat", image, "opt/names", check=True).stdout
    assert names == testbed.run("cat", "/etc/resolv.conf", check=True).stdout, (
        "the base's own is empty"
    )
    assert testbed.run("unsquashfs", "-cat", image, "etc/resolv.conf", check=True).stdout == ""
    assert "words-of-mine" not in found
    assert "/opt/mine" not in found
    assert "PATH=" in found
    assert "/etc/localtime" not in found
    assert Path("/etc/hosts").read_bytes() == before
    listed = testbed.run("unsquashfs", "-ls", image, check=True).stdout
    assert "squashfs-root/opt/mine" not in listed
    assert "hpcstack-step" not in listed
    assert "hpcstack-tried" not in listed


@pytest.mark.soak("one engine shows it", but=lambda engine: engine == "builtin")
@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_cache_that_takes_no_layers(testbed: Testbed, recipes: Recipes, engine: str) -> None:
    """As homes on NFS and Lustre: here an overlay, over which no other one may write.

    The image is spliced all the same.
    """
    recipes.write("1", run="[{name: one, command: 'touch /opt/one'}]")
    assert recipes.run("lock", "demo-1").returncode == 0
    top = recipes.folder / "network"
    testbed.bash('mkdir -p "$1/lower/cache" "$1/upper" "$1/work" "$1/home"', str(top))
    options = f"lowerdir={top}/lower,upperdir={top}/upper,workdir={top}/work"
    subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(top / "home")], check=True
    )
    try:
        said = recipes.render_site_text.rstrip() + f"\nbuild: {{cachedir: {top}/home/cache}}\n"
        assert "build:" not in recipes.render_site_text
        recipes.site(said)
        done = recipes.run("build", "demo-1", "--engine", engine)
        assert (
            done.returncode == 0
            and "steps are not kept" in done.stderr
            and "splicing" in done.stderr
        ), done.stderr
    finally:
        subprocess.run(["umount", "-l", str(top / "home")], check=True)


def test_auto_says_what_it_chose_and_why(testbed: Testbed, shared: Recipes) -> None:
    done = shared.run("build", "demo-1", "--engine", "auto", "--dry-run", "--json")
    assert json.loads(done.stdout)["why"]
    done = shared.run("build", "demo-1", "--engine", "dokcer")
    assert done.returncode == 2
    assert "did you mean 'docker'" in done.stderr
    bare = testbed.home / "tests/bare"
    testbed.bash(
        'mkdir -p "$1" && ln -sf /usr/bin/{unshare,mount,sh,mksquashfs,unsquashfs,env,true} "$1/"',
        str(bare),
    )
    hpcstack = testbed.bash("command -v hpcstack").stdout.strip()
    done = testbed.run(
        hpcstack, "--site", str(shared.folder / "site.yaml"), "--recipes", str(shared.folder / "recipes"),
        "build", "demo-1", "--engine", "auto", "--dry-run", "--json", PATH=str(bare),
    )  # fmt: skip
    assert json.loads(done.stdout)["engine"] == "builtin", done.stderr
    assert "apptainer not installed" in json.loads(done.stdout)["why"]


def test_a_guarded_library_that_a_step_overwrites_is_named(
    testbed: Testbed, recipes: Recipes
) -> None:
    """Not a package, a file: what `cp` or `make install` does to what NVIDIA built."""
    first = "mkdir -p /usr/lib/demo && echo one >/usr/lib/demo/libnccl.so.2.23"
    second = "echo two >/usr/lib/demo/libnccl.so.2.23"
    run = f"[{{name: first, command: '{first}'}}, {{name: second, command: '{second}'}}]"
    recipes.write("1", run=run)
    done = recipes.run("build", "demo-1")
    assert done.returncode == 4 and "step 2/3 run: second" in done.stderr, done.stderr
    assert "file /usr/lib/demo/libnccl.so.2.23" in done.stderr
    recipes.write("1", run=run, packages="{allow_replace: [nccl]}")
    assert recipes.run("lock", "demo-1").returncode == 0
    assert recipes.run("build", "demo-1").returncode == 0


@pytest.mark.soak(
    "one look at what a step has left",
    but=lambda second: not second.startswith(("rm -rf /usr/lib/demo &&", "mv")),
)
@pytest.mark.parametrize(
    ("second", "fails"),
    [
        ("echo two >/usr/lib/demo/libnccl.so.2.23", True),
        ("rm -rf /usr/lib/demo", True),
        ("rm -rf /usr/lib/demo && mkdir /usr/lib/demo", True),
        ("rm -rf /usr/lib/demo && echo >/usr/lib/demo", True),
        ("mv /usr/lib/demo /usr/lib/other", True),
        ("touch /usr/lib/demo/libnccl.so.2.23 && echo >/usr/lib/demo/libnccl.so.9", False),
    ],
)
def test_an_engine_of_layers_sees_what_became_of_libraries(
    testbed: Testbed, recipes: Recipes, second: str, fails: bool
) -> None:
    first = "mkdir -p /usr/lib/demo && echo one >/usr/lib/demo/libnccl.so.2.23"
    recipes.write(
        "1", run=f"[{{name: first, command: '{first}'}}, {{name: second, command: '{second}'}}]"
    )
    done = recipes.run("build", "demo-1", "--engine", "builtin")
    assert done.returncode == (4 if fails else 0), done.stderr
    if fails:
        assert "step 2/3 run: second" in done.stderr
        assert "file /usr/lib/demo/libnccl.so.2.23" in done.stderr


@pytest.mark.soak(
    "root's build confines its steps as a user's",
    kept="tests/hostile/test_confinement.py::test_nothing_is_open",
)
@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root unpacks owners that have no id in the build's namespace"
)
def test_root_builds_with_no_engine_too(small_base: str, testbed: Testbed, tmp_path: Path) -> None:
    """dpkg meets folders of other owners in the base: apt's cache is _apt's, /var/mail is mail's."""
    (tmp_path / "site.yaml").write_text(
        f"apiVersion: hpcstack/site/v1\nname: root\nstore: {tmp_path}/store\nlock_dir: "
        f"{tmp_path}/locks\n"
        f"module_root: {tmp_path}/modules\nregistries: {{nvcr.io: {{mirror: '{testbed.ngc}'}}}}\n"
        f"build: {{engine: builtin, ca_bundle: {testbed.ca_bundle}, tmpdir: {tmp_path}, cachedir: "
        f"{tmp_path}/cache}}\n"
    )
    (tmp_path / "root-1.yaml").write_text(
        f"apiVersion: hpcstack/v1\nname: root\nversion: '1'\nsummary: a test\nbase: {{image: "
        f"{small_base}}}\n"
        f"packages: {{apt: {APT}}}\nrun: {RUN}\n"
    )
    argv = [
        sys.executable,
        "-m",
        "hpcstack",
        "--site",
        f"{tmp_path}/site.yaml",
        "--recipes",
        str(tmp_path),
    ]
    for verb in ("lock", "build"):
        done = subprocess.run([*argv, verb, "root-1"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.soak("one engine shows it", but=lambda engine: engine == "builtin")
@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_step_cannot_write_what_it_is_lent(recipes: Recipes, engine: str) -> None:
    tries = (
        "! mount -o remount,rw,bind /mnt && ! touch /mnt/mine && ! mount -o remount,rw,bind /sys "
        "&& ! umount /mnt"
    )
    recipes.write("1", run=f'[{{name: tries, command: "{tries}"}}]')
    done = recipes.run("build", "demo-1", "--engine", engine, "--no-cache")
    assert done.returncode == 0, done.stderr


def test_a_cache_that_hands_on_its_group_and_mode_changes_no_image(recipes: Recipes) -> None:
    """A project's scratch has set-group-id; and where a step takes the right to write from /, the
    build goes on.
    """
    recipes.write(
        "1",
        run="[{name: first, command: 'mkdir /opt/made && chmod 555 /'}, {name: next, command: "
        "'touch /etc/next'}]",
    )
    digests = set()
    for name, mode in (("plain", "755"), ("shared", "2775")):
        top = f"{recipes.folder}/{name}"
        recipes.testbed.bash('mkdir -p "$1" && chmod "$2" "$1"', top, mode)
        recipes.site(
            recipes.render_site_text.partition("build:")[0]
            + f"build: {{engine: builtin, cachedir: {top}}}\n"
        )
        done = recipes.run("build", "demo-1", "--no-cache", "--json")
        assert done.returncode == 0, done.stderr
        built = json.loads(done.stdout)
        digests.add(built["sha256"])
        listed = recipes.testbed.run(
            "unsquashfs", "-lln", built["image"], check=True
        ).stdout.splitlines()
        modes = {
            line.split()[-1].removeprefix("squashfs-root"): line.split()[0]
            for line in listed
            if "squashfs-root" in line
        }
        assert modes[""] == "dr-xr-xr-x"
        assert modes["/opt"] == modes["/opt/made"] == modes["/opt/hpcstack"] == "drwxr-xr-x"
        assert not {"/hpcstack-step", "/etc/next/"} & set(modes)
        assert "/etc/next" in modes
    assert len(digests) == 1
