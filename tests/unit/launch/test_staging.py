"""What is brought to the nodes' disks: the plan of it, and launchers/on-node/stage.sh under real
shells.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import make_site
from hpcstack.core.errors import InputError
from hpcstack.launch.staging import plan_staging
from hpcstack.render.template import read_data_file
from hpcstack.store.artifact import Artifact

ARTIFACT = Artifact(
    stack="pytorch-24.11", key="k", sha256="0" * 64, size=1, platform="linux/amd64", engine="apptainer", lock_sha256="0" * 64,
    base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={}, folder="/store/images/k",
)  # fmt: skip
CONTENT = b"an image" * 100
SHA = hashlib.sha256(CONTENT).hexdigest()


FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux's include/linux/proc_ns.h


class Node:
    """One node's folder, and the shell script that fills it."""

    def __init__(self, top: Path, shell: str) -> None:
        self.top, self.shell, self.folder = top, shell, top / "local" / str(os.getuid())
        self.image = top / "image.sqsh"
        self.image.write_bytes(CONTENT)

    def __call__(
        self, *words: str, path: str = "", job: str = "7", before: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        argv = [
            *before,
            self.shell,
            "-c",
            read_data_file("launchers", "on-node/stage.sh"),
            "stage",
            str(self.folder),
            *words,
        ]
        env = {"PATH": f"{path}:{os.environ['PATH']}".lstrip(":"), "SLURM_JOB_ID": job}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    def put(self, sha256: str = SHA, **more: Any) -> subprocess.CompletedProcess[str]:
        return self(
            "put", str(self.image), f"{SHA}.sqsh", str(len(CONTENT)), sha256, "-", "0", **more
        )

    def there(self) -> list[str]:
        return sorted(
            path.name
            for path in self.folder.iterdir()
            if not path.name.endswith((".lock", ".jobs", ".base"))
        )


@pytest.fixture(autouse=True)
def own_steps() -> Iterator[None]:
    """The slurmstepd of each job that stages here, where this is not the machine's first PID
    namespace: without it a step knows that it cannot see the others.
    """
    steps = []
    if str(Path("/proc/self/ns/pid").readlink()) != FIRST_NAMESPACE:
        for job in (7, 8, 9):
            steps.append(
                subprocess.Popen(["bash", "-c", f'exec -a "slurmstepd: [{job}.0]" sleep 600'])
            )
    yield
    for step in steps:
        step.kill()
        step.wait()


def full_disk(node: Node) -> Path:
    """A folder for PATH with a df that says that nothing is free."""
    tools = node.top / "bin"
    tools.mkdir()
    (tools / "df").write_text("#!/bin/sh\necho header\necho x x x 0\n")
    (tools / "df").chmod(0o755)
    return tools


@pytest.fixture(params=["sh", "bash"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path, request.param)


def test_an_image_comes_once_and_whole(node: Node) -> None:
    assert node("have", f"{SHA}.sqsh").returncode == 1
    assert node.put().returncode == 0
    assert node("have", f"{SHA}.sqsh").returncode == 0
    node.image.unlink()
    assert node.put().returncode == 0, "it is there: the shared file is not read again"
    assert node.there() == [f"{SHA}.sqsh"]
    assert (node.folder / f"{SHA}.sqsh").read_bytes() == CONTENT
    assert node.folder.stat().st_mode & 0o777 == 0o700


def test_what_is_not_the_image_gets_no_name(node: Node) -> None:
    done = node.put("0" * 64)
    assert done.returncode == 125
    assert "is not what was built" in done.stderr
    assert node.there() == []
    node.image.unlink()
    done = node.put()
    assert done.returncode == 125
    assert "was not copied" in done.stderr
    assert node.there() == []


def test_what_slurm_has_broadcast_is_taken_if_it_is_whole(node: Node) -> None:
    node("have", "x")
    (node.folder / f".{SHA}.sqsh.7.cast").write_bytes(CONTENT)
    node.image.unlink()
    assert node.put().returncode == 0
    assert node.there() == [f"{SHA}.sqsh"]
    (node.folder / f"{SHA}.sqsh").unlink()
    (node.folder / f".{SHA}.sqsh.8.cast").write_bytes(CONTENT[:-1])
    assert node.put(job="8").returncode == 125 and node.there() == [], (
        "broken off, and nothing to copy"
    )
    node.image.write_bytes(CONTENT)
    (node.folder / f".{SHA}.sqsh.9.cast").write_bytes(CONTENT[:-1])
    (node.folder / ".x.3.part").write_bytes(b"of a job that was killed")
    (node.folder / ".x.3.cast").write_bytes(b"of a job that was killed")
    assert node.put(job="9").returncode == 0 and node.there() == [f"{SHA}.sqsh"], (
        "broken off: it is copied"
    )


def test_a_job_with_processes_of_its_own_removes_nothing_of_others(node: Node) -> None:
    """Slurm 25.11 can give each job a PID namespace, in which no other job is seen."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespace can be made here")
    node("have", "x")
    (node.folder / "used").mkdir()
    (node.folder / ".used.jobs").write_text("41\n")
    (node.folder / ".x.41.cast").write_bytes(b"of a job that runs")
    tools = full_disk(node)

    done = node.put(path=str(tools), before=apart)

    assert done.returncode == 125
    assert "has no room" in done.stderr
    assert {"used", ".x.41.cast"} <= {path.name for path in node.folder.iterdir()}


def test_what_this_step_needs_and_what_a_job_uses_here_is_not_removed_for_room(node: Node) -> None:
    node("have", "x")
    (node.folder / "used").mkdir()
    (node.folder / ".used.jobs").write_text("41\n")
    step = subprocess.Popen(["bash", "-c", 'exec -a "slurmstepd: [41.0]" sleep 60'])
    try:
        tools = full_disk(node)
        assert node.put(path=str(tools)).returncode == 125
        assert (node.folder / "used").exists()
    finally:
        step.kill()
        step.wait()
    assert node.put(path=str(tools)).returncode == 125 and not (node.folder / "used").exists(), (
        "the job has ended"
    )
    (tools / "df").unlink()
    assert node.put().returncode == 0
    (tools / "df").write_text("#!/bin/sh\necho header\necho x x x 0\n")
    (tools / "df").chmod(0o755)
    words = (
        str(node.image),
        f"{SHA}.sqsh",
        "1",
        SHA,
        "-",
        "0",
        str(node.image),
        "data-1",
        "1",
        "-",
        "-",
        "0",
    )
    assert node("put", *words, path=str(tools)).returncode == 125
    assert f"{SHA}.sqsh" in node.there()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts /proc with hidepid")
def test_where_slurms_processes_are_hidden_a_jobs_own_tell_of_it(node: Node) -> None:
    node("have", "x")
    (node.folder / "used").mkdir()
    (node.folder / ".used.jobs").write_text("41\n")
    tools, user = full_disk(node), ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    (node.folder.parent).rename(node.top / "of-nobody")
    for path in (node.top / "of-nobody", *(node.top / "of-nobody").rglob("*")):
        os.chown(path, 65534, -1)
    folder = node.top / "of-nobody" / str(os.getuid())
    for path in (node.top, *list(node.top.parents)[:3]):
        path.chmod(path.stat().st_mode | 0o011)

    def put() -> None:
        script = read_data_file("launchers", "on-node/stage.sh")
        words = (
            "stage",
            str(folder),
            "put",
            str(node.image),
            f"{SHA}.sqsh",
            str(len(CONTENT)),
            SHA,
            "-",
            "0",
        )
        argv = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -t proc -o hidepid=2 none /proc && exec "$@"',
            "sh",
            *user,
        ]
        env = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
        subprocess.run([*argv, node.shell, "-c", script, *words], env=env, check=False)

    step = subprocess.Popen(
        [*user, "sleep", "60"], env={**os.environ, "SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0"}
    )
    try:
        put()
        assert (folder / "used").exists()
    finally:
        step.kill()
        step.wait()
    put()
    assert not (folder / "used").exists(), "the job has ended"


def test_a_copy_that_is_ended_by_a_signal_leaves_nothing(node: Node) -> None:
    tools = node.top / "bin"
    tools.mkdir()
    (tools / "cp").write_text('#!/bin/sh\nfor last; do :; done\n: >"$last"\nsleep 0.5\n')
    (tools / "cp").chmod(0o755)
    argv = [node.shell, "-c", read_data_file("launchers", "on-node/stage.sh"), "stage", str(node.folder), "put", str(node.image),
            "n", "1", "-", "-", "0"]  # fmt: skip
    process = subprocess.Popen(argv, env={"PATH": f"{tools}:{os.environ['PATH']}"})
    while not list(node.folder.glob(".*.part")):
        time.sleep(0.01)
    process.terminate()
    assert process.wait() == 143
    assert node.there() == []


BASE, KEPT = "b" * 64, 5000
BEGINNING = bytes(range(256)) * 20


def two_on_one_base(node: Node) -> tuple[tuple[str, ...], tuple[str, ...], Path]:
    """The words for two images on one base, and the second of them."""
    words = []
    for name in ("first", "second"):
        content = name.encode().ljust(96, b"!") + BEGINNING[96:KEPT] + name.encode() * 100
        path = node.top / f"{name}.sqsh"
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        words.append((str(path), f"{digest}.sqsh", str(len(content)), digest, BASE, str(KEPT)))
    return words[0], words[1], node.top / "second.sqsh"


@pytest.mark.parametrize("cast", [False, True])
def test_of_a_second_image_on_a_base_only_what_differs_is_brought(node: Node, cast: bool) -> None:
    first, second, source = two_on_one_base(node)
    assert node("begun", BASE, str(KEPT)).returncode == 1
    assert node("put", *first).returncode == 0
    assert node("begun", BASE, str(KEPT)).returncode == 0
    assert node("begun", BASE, "1").returncode == 1
    whole = source.read_bytes()
    if cast:  # Slurm has broadcast the difference
        (node.folder / f".{second[1]}.7.rest").write_bytes(whole[:96] + whole[KEPT:])
        source.unlink()
    else:
        source.write_bytes(
            whole[:96] + bytes(KEPT - 96) + whole[KEPT:]
        )  # what is not read may be anything
    done = node("put", *second)
    assert done.returncode == 0, done.stderr
    assert (node.folder / second[1]).read_bytes() == whole
    assert node.there() == sorted([first[1], second[1]])


@pytest.mark.parametrize("fault", ["another beginning", "torn rest", "gone"])
def test_a_difference_that_does_not_fit_is_not_taken(node: Node, fault: str) -> None:
    """The whole image is copied then; nothing gets the name of what it is not."""
    first, second, source = two_on_one_base(node)
    assert node("put", *first).returncode == 0
    staged = node.folder / first[1]
    staged.chmod(0o644)
    if fault == "another beginning":
        staged.write_bytes(b"y" + bytes(KEPT))
    elif fault == "torn rest":
        (node.folder / f".{second[1]}.7.rest").write_bytes(source.read_bytes()[:120])
    else:
        staged.unlink()
    assert node("put", *second).returncode == 0
    assert (node.folder / second[1]).read_bytes() == source.read_bytes()
    assert not [name for name in node.there() if name.endswith((".rest", ".part"))]


def test_killed_at_any_moment_there_is_no_half_of_an_image(node: Node) -> None:
    """HPCSTACK_FAULTS (5; ci/soak runs 50) moments of bringing a second image on a base, by a kill
    that nothing survives.
    """
    count = int(os.environ.get("HPCSTACK_FAULTS", "5"))
    beginning, words = random.Random(1).randbytes(30_000_000), []
    for name in ("first", "second"):
        content = name.encode().ljust(96, b"!") + beginning + name.encode() * 1000
        path = node.top / f"{name}.sqsh"
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        words.append(
            (str(path), f"{digest}.sqsh", str(len(content)), digest, BASE, str(96 + len(beginning)))
        )
    assert node("put", *words[0]).returncode == 0
    began = time.monotonic()
    assert node("put", *words[1]).returncode == 0
    duration, staged, whole = (
        time.monotonic() - began,
        node.folder / words[1][1],
        (node.top / "second.sqsh").read_bytes(),
    )
    argv = [
        node.shell,
        "-c",
        read_data_file("launchers", "on-node/stage.sh"),
        "stage",
        str(node.folder),
        "put",
        *words[1],
    ]
    early = 0
    for part in range(count):
        staged.unlink(missing_ok=True)
        process = subprocess.Popen(
            argv, start_new_session=True, env={**os.environ, "SLURM_JOB_ID": "7"}
        )
        time.sleep(duration * (part + 0.5) / count)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        early += not staged.exists()
        assert not staged.exists() or staged.read_bytes() == whole
    assert early
    staged.unlink(missing_ok=True)
    assert node("put", *words[1]).returncode == 0
    assert staged.read_bytes() == whole
    assert node.there() == sorted([words[0][1], words[1][1]])


def test_a_link_is_followed_and_its_end_is_left_as_it_is(node: Node) -> None:
    node("have", "x")
    (node.top / "real").mkdir()
    (node.top / "real/x").write_text("1")
    os.utime(node.top / "real", (1000, 1000))
    (node.top / "link").symlink_to("real")
    assert node("put", str(node.top / "link"), "data-1", "1", "-", "-", "0").returncode == 0
    assert (node.folder / "data-1").is_dir()
    assert not (node.folder / "data-1").is_symlink()
    assert (node.top / "real").stat().st_mtime == 1000
    subprocess.run(["chmod", "-R", "u+w", str(node.folder)], check=True)


def test_a_folder_of_somebody_else_is_not_used(node: Node) -> None:
    node.folder.parent.mkdir()
    (node.top / "theirs").mkdir()
    node.folder.symlink_to(node.top / "theirs")
    done = node.put()
    assert done.returncode == 125
    assert "somebody else's" in done.stderr


def test_what_was_used_longest_ago_makes_room(node: Node) -> None:
    """A df that tells no room until two of the three have gone."""
    node("have", "x")
    for age, name in enumerate(["old", "older", "oldest"]):
        (node.folder / name).write_bytes(b"x")
        os.utime(node.folder / name, (1000 - age, 1000 - age))
    tools = node.top / "bin"
    tools.mkdir()
    (tools / "df").write_text(
        f"#!/bin/sh\necho header\nset -- {node.folder}/*\n[ $# -gt 1 ] && echo x x x 0 || echo "
        f"x x x 9999999\n"
    )
    (tools / "df").chmod(0o755)
    assert node.put(path=str(tools)).returncode == 0
    assert node.there() == [f"{SHA}.sqsh", "old"]
    (tools / "df").write_text("#!/bin/sh\necho header\necho x x x 0\n")
    (node.folder / f"{SHA}.sqsh").unlink()
    done = node.put(path=str(tools))
    assert done.returncode == 125
    assert "no room" in done.stderr
    assert "--stage none" in done.stderr


def test_a_folder_of_data_comes_with_what_is_in_it(node: Node) -> None:
    data = node.top / "data"
    (data / "sub").mkdir(parents=True)
    (data / "sub/x").write_text("1")
    assert node("put", str(data), "data-1", "1", "-", "-", "0").returncode == 0
    assert (node.folder / "data-1/sub/x").read_text() == "1"


def test_the_plan(tmp_path: Path) -> None:
    artifact = replace(ARTIFACT, sha256=SHA, size=5)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x").write_text("1")
    site = make_site(tmp_path)
    assert plan_staging(artifact, site, "", ()) is None
    copied = plan_staging(
        artifact, make_site(tmp_path, staging={"how": "copy", "folder": "/local/i"}), "", ()
    )
    assert copied
    assert copied.image == f"/local/i/hpcstack-staged-{os.getuid()}/{SHA}.sqsh"
    assert copied.how == "copy"
    data = plan_staging(artifact, site, "", (f"{tmp_path}/data:/data",))
    assert data
    assert data.image == ""
    assert data.mounts[0].endswith(":/data")
    (tmp_path / "data/x").write_text("22")
    changed = plan_staging(artifact, site, "", (f"{tmp_path}/data:/data",))
    assert changed and changed.mounts != data.mounts, "other data has another name"
    for wrong in ("data:/data", "/data", f"{tmp_path}/none:/data", f"{tmp_path}:data"):
        with pytest.raises(InputError):
            plan_staging(artifact, site, "", (wrong,))
