"""What is killed, full, contended or gone: nothing half-made is visible, nothing is lost, the next
run works.

HPCSTACK_FAULTS says how many of each (1, on a small base; ci/soak runs 50, imports of a large one).
Kills are drawn over the measured duration, and the log says in which phase each one came.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcstack.build.verify import read_image
from hpcstack.core.lease import is_alive, read_holder
from hpcstack.core.process import Runner
from hpcstack.store.store import Store
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.faults, pytest.mark.registry, pytest.mark.squashfs]
COUNT = int(os.environ.get("HPCSTACK_FAULTS", "1"))
SMALL = "nvcr.io/hpcstack-tests/debian-tiny:12"
IMAGE = "nvcr.io/nvidia/pytorch:24.11-py3" if COUNT > 1 else SMALL
IMPORT_PHASES = ("start", "fetch", "layer", "sync", "rename")
BUILD_PHASES = ("build", "step", "pack", "inspect", "store")
RECIPE = """\
apiVersion: hpcstack/v1
name: faulty
version: "1"
summary: A stack that is killed
base: {{image: "{base}"}}
run:
  - {{name: first, command: "sleep 0.3; echo 1 >/opt/first"}}
  - {{name: second, command: "sleep 0.3; head -c 20000000 /dev/urandom >/opt/second"}}
"""


@dataclass
class Place:
    """A site of this test's own, on a folder that may be small or vanish."""

    folder: Path
    testbed: Testbed

    def __post_init__(self) -> None:
        text = (
            f"apiVersion: hpcstack/site/v1\nname: faults\nstore: {self.folder}/store\nlock_dir: "
            f"{self.folder}/locks\n"
            f"module_root: {self.folder}/modules\n"
            f'registries: {{nvcr.io: {{mirror: "{self.testbed.ngc}"}}}}\n'
            f"build: {{engine: builtin, ca_bundle: {self.testbed.ca_bundle}, cachedir: "
            f"{self.folder}/cache, tmpdir: {self.folder}/tmp}}\n"
        )
        (self.folder / "tmp").mkdir(exist_ok=True)
        (self.folder / "recipes").mkdir(exist_ok=True)
        (self.folder / "recipes/faulty-1.yaml").write_text(RECIPE.format(base=SMALL))
        (self.folder / "site.yaml").write_text(text)

    def argv(self, *words: str) -> list[str]:
        return [
            sys.executable, "-m", "hpcstack", "--site", f"{self.folder}/site.yaml", "--recipes", f"{self.folder}/recipes",
            *words,
        ]  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*words), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.argv(*words),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, done.stderr)

    def phase(self) -> str:
        """Where the run that writes events was last."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            lines = (self.folder / "events").read_text().splitlines()
            for line in reversed(lines):
                event = json.loads(line)
                if event["event"] in ("phase", "layer", "step"):
                    return str(event.get("name") or event["event"])
        return "start"


@pytest.fixture
def place(tmp_path: Path, testbed: Testbed, tiny_base: str) -> Place:
    return Place(tmp_path, testbed)


def gone(place: Place) -> None:
    """Nothing of a killed run goes on: what it had started has ended with it."""
    until = time.monotonic() + 30  # on a busy machine
    while time.monotonic() < until:
        found = subprocess.run(
            ["pgrep", "-a", "-f", str(place.folder)], capture_output=True, check=False
        ).stdout
        if not found.strip():
            return
        time.sleep(0.1)
    raise AssertionError(f"processes of a killed run go on: {found.decode()}")


def killed_at(place: Place, moment: float | str, *words: str) -> str:
    """A run killed after so many seconds, or when it comes to a phase; where it was, or `done` if
    it was faster.
    """
    (place.folder / "events").unlink(missing_ok=True)
    process = place.start(*words, "--events", "events")
    until = time.monotonic() + (moment if isinstance(moment, float) else 60)
    while process.poll() is None and time.monotonic() < until and place.phase() != moment:
        time.sleep(0.005)
    if process.poll() is not None:
        return "done"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    gone(place)
    return place.phase()


def moments(duration: float, *phases: str) -> list[float | str]:
    """COUNT moments over a duration, one at random in each of so many equal parts; and the
    beginning of each phase.
    """
    draw = random.Random(20261121)
    return [*(duration * (part + draw.random()) / COUNT for part in range(COUNT)), *phases]


@pytest.mark.timeout(900)
@pytest.mark.soak(
    "a build imports its base", kept="tests/integration/test_faults.py::test_a_build_that_is_killed"
)
def test_an_import_that_is_killed(place: Place) -> None:
    began = time.monotonic()
    words = ("import", IMAGE, "--output", "image.sqsh", "--force")
    assert place.run(*words).returncode == 0
    duration, image = time.monotonic() - began, place.folder / "image.sqsh"
    whole, phases = image.read_bytes(), []
    image.unlink()
    tried = IMPORT_PHASES if COUNT > 1 else ("fetch", "layer", "sync")
    for moment in moments(duration, *tried):
        phases.append(killed_at(place, moment, *words))
        if phases[-1] != "done":
            assert not image.exists() or image.read_bytes() == whole
        image.unlink(missing_ok=True)
    print("killed in:", *phases)
    assert set(tried) - {"rename"} <= set(phases)
    assert place.run(*words).returncode == 0
    assert image.read_bytes() == whole
    assert not list(place.folder.glob(".image*")), "no left-over beside the image"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "engine",
    [
        "builtin",
        pytest.param(
            "apptainer",
            marks=[
                pytest.mark.apptainer,
                pytest.mark.soak("the engine makes steps, not what is kept"),
            ],
        ),
    ],
)
def test_a_build_that_is_killed(place: Place, engine: str) -> None:
    """From the base's import through the steps to the store's write."""
    assert place.run("lock", "faulty-1").returncode == 0
    build = ("build", "faulty-1", "--engine", engine)
    began = time.monotonic()
    first = place.run(*build, "--json")
    assert "anew" not in first.stderr, first.stderr
    assert first.returncode == 0, first.stderr
    duration, phases = time.monotonic() - began, []
    store = place.folder / "store"
    tried = BUILD_PHASES if COUNT > 1 else ("step", "store")  # the image is made between these
    for moment in moments(duration, *tried):
        subprocess.run(
            [
                "rm",
                "-rf",
                str(store / "images"),
                str(store / "stacks"),
                str(place.folder / "cache"),
            ],
            check=True,
        )
        phases.append(killed_at(place, moment, *build))
        for folder in (store / "images").glob("*") if (store / "images").is_dir() else ():
            record = json.loads((folder / "artifact.json").read_text())
            assert (folder / "image.sqsh").stat().st_size == record["size"], "no half image"
    print("killed in:", *phases)
    assert set(tried) - {"inspect"} <= set(phases)  # which takes a few milliseconds
    # One that was killed when all was in the store leaves its workspace to the next that builds.
    subprocess.run(["rm", "-rf", str(store / "images"), str(store / "stacks")], check=True)
    again = place.run(*build, "--json")
    assert again.returncode == 0, again.stderr
    image = Path(json.loads(again.stdout)["image"])
    assert {"opt/first", "opt/second"} <= set(read_image(image, Runner()).contents)
    assert not list((store / "incoming").iterdir())
    for lease in (store / "leases").glob(
        "[!.]*"
    ):  # of one that was killed when all was there: nobody waits for it
        holder = read_holder(lease.read_text())
        assert holder
        assert is_alive(holder) is False
    assert not list((place.folder / "tmp").iterdir()), "the workspaces of the killed are gone"


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """All that is left of a disk, without a byte of it being written."""
    with (folder / "filler").open("wb") as file:
        end, piece = 0, 1 << 30
        while piece >= 4096:
            try:
                os.posix_fallocate(file.fileno(), end, piece)
                end += piece
            except OSError:
                piece //= 2


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted by root")
@pytest.mark.soak("the disk is as full a moment earlier", but=lambda phase: phase == "layer")
@pytest.mark.parametrize("phase", ["start", "fetch", "layer", "sync"])
def test_an_import_on_a_disk_that_gets_full(place: Place, phase: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 300 if IMAGE == SMALL else 1500):
        inner = Place(disk, place.testbed)
        words = ("import", IMAGE, "--output", f"{disk}/image.sqsh", "--events", f"{disk}/events")
        if phase == "start":
            fill(disk)
        process = inner.start(*words)
        while process.poll() is None and inner.phase() != phase:
            time.sleep(0.005)
        fill(disk)
        said = process.communicate(timeout=120)[0]
        (disk / "filler").unlink()
        if process.returncode:  # it may have been faster
            assert process.returncode == 7, said
            assert "free" in said or "space" in said
            assert not (disk / "image.sqsh").exists()
            (disk / "events").unlink()
            assert inner.run(*words).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted by root")
@pytest.mark.soak("the disk is as full a moment earlier", but=lambda phase: phase == "store")
@pytest.mark.parametrize("phase", ["build", "step", "pack", "store"])
def test_a_build_on_a_disk_that_gets_full(place: Place, phase: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 4000):
        inner = Place(disk, place.testbed)
        assert inner.run("lock", "faulty-1").returncode == 0
        process = inner.start("build", "faulty-1", "--events", f"{disk}/events")
        while process.poll() is None and inner.phase() != phase:
            time.sleep(0.005)
        fill(disk)
        said = process.communicate(timeout=120)[0]
        (disk / "filler").unlink()
        if process.returncode:
            assert process.returncode in (4, 7), said
            assert "space" in said or "free" in said, said
            there = (
                list((disk / "store/images").iterdir()) if (disk / "store/images").is_dir() else []
            )
            whole = Store(
                disk / "store"
            ).images()  # the disk may have been full a moment later: then it is stored, whole
            assert len(there) == len(whole)
            done = inner.run("build", "faulty-1")
            assert done.returncode == 0, done.stderr


def test_many_builders_of_one_stack_build_once(place: Place) -> None:
    assert place.run("lock", "faulty-1").returncode == 0
    count = 4 if COUNT == 1 else 16
    builders = [place.start("build", "faulty-1", "--json") for _ in range(count)]
    said = [process.communicate(timeout=240)[0] for process in builders]
    assert [process.returncode for process in builders] == [0] * count, said
    assert sum("building faulty-1 with builtin" in text for text in said) == 1
    assert len(list((place.folder / "store/images").iterdir())) == 1


def test_a_store_that_is_read_only_or_gone(place: Place) -> None:
    assert place.run("lock", "faulty-1").returncode == 0
    store = place.folder / "store"
    subprocess.run(["rm", "-rf", str(store)], check=True)
    store.write_text("a file where the store was")
    done = place.run("build", "faulty-1")
    assert done.returncode == 7 and "TIP" in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )
    store.unlink()
    assert place.run("build", "faulty-1").returncode == 0


def test_a_holder_in_another_pid_and_mount_namespace_is_seen_by_its_heartbeat(
    tmp_path: Path,
) -> None:
    """Two containers on one host have the same host name and boot id, and each other's pids mean
    nothing.
    """
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom hpcstack.core import lease\n"
        "lease.BEAT_S, lease.PATIENCE_S = 0.2, 2.0\n"
        "with lease.hold_lease(Path(sys.argv[1])):\n    print('held', flush=True)\n    "
        "time.sleep(float(sys.argv[2]))\n"
    )
    apart = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--mount",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ]
    argv = [*apart, sys.executable, "-c", script, str(tmp_path / "leases/k")]
    holder = subprocess.Popen([*argv, "4"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    began = time.monotonic()
    second = subprocess.run([*argv, "0"], capture_output=True, text=True, timeout=60, check=True)
    assert second.stdout == "held\n" and time.monotonic() - began > 3, (
        "a living holder is waited for"
    )
    holder.wait()
    holder = subprocess.Popen([*argv, "60"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    began = time.monotonic()
    subprocess.run([*argv, "0"], capture_output=True, text=True, timeout=60, check=True)
    assert 1 < time.monotonic() - began < 20, (
        "a dead one is taken over, once its heart has not beaten for a while"
    )
