"""Wrappers, run by real shells: which runtime is chosen, and that nothing comes back to a wrapper
without end.

The runtimes are fakes that print what they were given: which one is chosen cannot be provoked with
real ones. What real ones do with it is tested on the testbed (tests/integration/test_wrappers.py).
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcstack.publish.modulefile import Release, render_wrappers
from hpcstack.recipe.model import ModuleSpec
from support.modules import Place

FAKE = '#!/bin/sh\nprintf "%s\\n" "{name}" "$@"\n'
SRUN = '#!/bin/sh\nif [ "$1" = --help ]; then echo "{help}"; else printf "%s\\n" srun "$@"; fi\n'
LOGIN = 'command -v "$1" >/dev/null'


class Wrapped:
    """The wrappers of one release below TOP, and the tools of a machine."""

    def __init__(self, top: Path, runtime: str = "auto", **more: object) -> None:
        self.top, self.tools = top, top / "tools"
        self.tools.mkdir()
        for name in ("sh", "uname", "env", "sed", "tr", "grep", "printf"):
            (self.tools / name).symlink_to(f"/usr/bin/{name}")
        (top / "image.sqsh").write_bytes(b"x")
        stack = (
            Place(top / "place")
            .stack()
            .model_copy(update={"module": ModuleSpec(commands=("torchrun",), python=True)})
        )
        self.release = replace(
            Release(stack, 1, str(top / "image.sqsh"), "0", str(top / "release"), "base", runtime=runtime),
            environment={"CUDA_HOME": "/usr/local/cuda", "NVIDIA_VISIBLE_DEVICES": "all", "A": "it's $(x)"}, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        for path, text in render_wrappers(self.release).items():
            file = top / "release" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            # the fallback of what ssh brings would find this machine's own tools
            file.write_text(text.replace("PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin", ":"))
            file.chmod(0o755)

    def has(self, *names: str, srun: str = "") -> Wrapped:
        for name in names:
            self.tool(name, FAKE.format(name=name))
        if srun:
            self.tool("srun", SRUN.format(help=srun))
        return self

    def tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def run(
        self, *words: str, command: str = "torchrun", **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.top / "release/bin" / command), *words], env={"PATH": str(self.tools), **env}, cwd=self.top,
                              capture_output=True, text=True, timeout=20, check=False)  # fmt: skip


@pytest.fixture
def wrapped(tmp_path: Path) -> Wrapped:
    return Wrapped(tmp_path)


JOB = {"SLURM_JOB_ID": "7"}
PYXIS = "--container-image"


@pytest.mark.parametrize(
    ("tools", "srun", "env", "first"),
    [
        (["apptainer", "enroot"], PYXIS, JOB, "apptainer"),
        (["enroot"], PYXIS, JOB, "sh"),  # Enroot is started by a shell that hands the variables in
        ([], PYXIS, JOB, "srun"),
        ([], PYXIS, JOB | {"SLURM_STEP_ID": "4294967290"}, "srun"),
        (["apptainer", "enroot"], PYXIS, JOB | {"HPCSTACK_RUNTIME": "pyxis"}, "srun"),
        (["apptainer", "enroot"], PYXIS, {"HPCSTACK_RUNTIME": "enroot"}, "sh"),
    ],
)  # fmt: skip
def test_the_runtime_is_chosen_where_it_runs(
    wrapped: Wrapped, tools: list[str], srun: str, env: dict[str, str], first: str
) -> None:
    wrapped.has(*tools, srun=srun)
    said = wrapped.run("a b", **env).stdout.splitlines()
    assert said and said[-2:] == ["torchrun", "a b"], said
    assert said[0] == {"sh": "enroot"}.get(first, first)


@pytest.mark.parametrize(
    ("srun", "env", "says"),
    [
        ("", {}, "neither apptainer nor enroot is on PATH"),
        (PYXIS, JOB | {"SLURM_STEP_ID": "0"}, "with Pyxis: srun --container-image="),
        ("nothing", JOB, "neither apptainer nor enroot"),
        ("", {"HPCSTACK_RUNTIME": "docker"}, "HPCSTACK_RUNTIME is 'docker'"),
        ("", {"HPCSTACK_RUNTIME": "apptainer"}, "apptainer is not on PATH"),
        (PYXIS, {"HPCSTACK_RUNTIME": "pyxis"}, "no job for srun --container-image here"),
    ],
)  # fmt: skip
def test_what_cannot_start_says_why_and_ends_with_125(
    wrapped: Wrapped, srun: str, env: dict[str, str], says: str
) -> None:
    done = wrapped.has(srun=srun).run(**env)
    assert done.returncode == 125
    assert says in done.stderr
    assert done.stderr.startswith("torchrun: ")


def test_an_image_that_cannot_be_read_is_told(wrapped: Wrapped) -> None:
    (wrapped.top / "image.sqsh").unlink()
    done = wrapped.has("apptainer").run()
    assert done.returncode == 125
    assert "cannot be read on this node" in done.stderr


def test_the_images_variables_win_over_the_hosts(wrapped: Wrapped) -> None:
    wrapped.tool("apptainer", '#!/bin/sh\nenv | grep -E "^APPTAINER|^PYTHONNO"\n')
    said = set(wrapped.run(CUDA_HOME="/opt/host", A="host").stdout.splitlines())
    assert {"APPTAINERENV_CUDA_HOME=/usr/local/cuda", "APPTAINERENV_A=it's $(x)", "APPTAINER_NO_EVAL=1",
            "PYTHONNOUSERSITE=1"} <= said  # fmt: skip


def test_the_sites_mounts_and_this_folder_are_bound(tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path, mounts=("/scratch:/scratch", "/a b:/c")).has("apptainer")
    said = wrapped.run().stdout.splitlines()
    assert {"/scratch:/scratch", "/a b:/c", f"{tmp_path}:{tmp_path}"} <= set(said)
    assert said[said.index("--pwd") + 1] == str(tmp_path)


def test_inside_the_image_it_is_the_program_itself(wrapped: Wrapped) -> None:
    """However often the wrappers stand on PATH, and also where a program of that name starts
    another.
    """
    wrapped.tool("torchrun", '#!/bin/sh\necho "own $*"\n')
    own = f"{wrapped.top}/release/bin"
    for path in (
        f"{own}:{wrapped.tools}",
        f"{own}:{own}:{wrapped.tools}:{own}",
        f"{wrapped.tools}:{own}",
    ):
        assert wrapped.run("x", PATH=path, APPTAINER_CONTAINER="/i").stdout == "own x\n"
    done = wrapped.run("x", command="python3", PATH=f"{own}:{wrapped.tools}", ENROOT_ROOTFS="/i")
    assert done.returncode == 125
    assert "which has no python3 of its own" in done.stderr


def test_a_folder_spelt_otherwise_on_path_does_not_come_back(wrapped: Wrapped) -> None:
    own = f"{wrapped.top}/release/bin"
    (wrapped.top / "link").symlink_to(wrapped.top / "release")
    for spelt in (f"{own}/", f"{own}/../bin", f"/{own}", f"{wrapped.top}/link/bin"):
        done = wrapped.run("x", PATH=f"{spelt}:{wrapped.tools}", APPTAINER_CONTAINER="/i")
        assert done.returncode == 125
        assert "which has no torchrun of its own" in done.stderr


def test_the_callers_variables_stay_his(wrapped: Wrapped) -> None:
    wrapped.tool("apptainer", "#!/bin/sh\nenv\n")
    mine = dict.fromkeys(
        ("command", "image", "here", "void", "name", "names", "mounts", "rest", "left", "home"),
        "mine",
    )
    done = subprocess.run([f"{wrapped.top}/release/bin/torchrun"], env={"PATH": str(wrapped.tools), **mine},
                          capture_output=True, text=True, check=False)  # fmt: skip
    said = done.stdout.splitlines()
    assert {f"{name}=mine" for name in mine} <= set(said)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_folder_that_was_removed_is_no_folder_to_bind(wrapped: Wrapped, shell: str) -> None:
    wrapped.has("apptainer")
    gone = wrapped.top / "gone"
    gone.mkdir()
    script = (
        f'cd "{gone}" && rmdir "{gone}" && exec {shell} "{wrapped.top}/release/libexec/run" '
        f"torchrun"
    )
    done = subprocess.run(["sh", "-c", script], env={"PATH": f"{wrapped.tools}:/usr/bin:/bin"}, capture_output=True,
                          text=True, check=False)  # fmt: skip
    said = done.stdout.splitlines()
    assert said[said.index("--pwd") + 1] == "/"
    assert "--bind" not in said


@pytest.mark.parametrize(
    ("home", "mounted"), [("/", False), ("//", False), (".", False), ("/tmp", True), ("", False)]
)
def test_enroot_gets_home_where_it_is_one(wrapped: Wrapped, home: str, mounted: bool) -> None:
    done = wrapped.has("enroot").run(HOME=home, HPCSTACK_RUNTIME="enroot")
    assert (f"{home}:{home}:none" in done.stdout) == mounted


def test_two_releases_on_path_do_not_call_each_other_without_end(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    one, two = Wrapped(tmp_path / "1"), Wrapped(tmp_path / "2")
    path = f"{one.top}/release/bin:{two.top}/release/bin:{one.tools}"
    done = one.run(PATH=path, APPTAINER_CONTAINER="/i")
    assert done.returncode == 125
    assert "already inside a container" in done.stderr


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=20),
        max_size=4,
    )
)
def test_arguments_arrive_as_they_are(wrapped: Wrapped, words: list[str]) -> None:
    wrapped.has("apptainer")
    said = wrapped.run(*words).stdout.split("\n")[:-1]
    assert said[len(said) - len(words) :] == words


@pytest.mark.shellcheck
def test_shellcheck_takes_them(wrapped: Wrapped) -> None:
    files = [str(path) for path in (wrapped.top / "release").rglob("*") if path.is_file()]
    done = subprocess.run(
        ["shellcheck", "--severity=warning", *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_wrappers_are_for_any_posix_shell(wrapped: Wrapped) -> None:
    for path in (wrapped.top / "release").rglob("*"):
        if path.is_file():
            assert path.read_text().startswith("#!/bin/sh\n")
            assert os.access(path, os.X_OK)
