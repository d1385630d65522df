"""Which mounts are squashfs files, and which files nobody means to mount like a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.launch.plan import plan_step
from hpcstack.launch.request import LaunchRequest, resolve_mount
from hpcstack.launch.squashfs_files import find_squashfs_mounts
from hpcstack.launch.surroundings import look_around
from hpcstack.runtimes.squashfs_mounts import keep_hook
from unit.launch.test_plan import ARTIFACT, PLAIN, PYXIS

SQUASHFS = b"hsqs" + bytes(92)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "data.sqsh"
    path.write_bytes(SQUASHFS)
    return path


def test_a_squashfs_file_is_known_by_what_it_begins_with(packed: Path) -> None:
    renamed = packed.with_name("data.img")
    shutil.copy(packed, renamed)
    text = packed.with_name("text.sqsh")
    text.write_text("hello")
    pairs = [f"{path}:/data" for path in (packed, renamed, text, packed.parent)]
    found = find_squashfs_mounts(pairs)
    assert [one.file for one in found] == [packed, renamed]
    assert len({one.name for one in found}) == 2


def test_a_file_that_only_nodes_have_is_known_by_its_name() -> None:
    (found,) = find_squashfs_mounts(["/nowhere/data.sqsh:/data", "/nowhere/data:/other"])
    assert found.mount == "/nowhere/data.sqsh:/data"


def test_what_is_packed_anew_has_another_name(packed: Path) -> None:
    (before,) = find_squashfs_mounts([f"{packed}:/data"])
    packed.write_bytes(SQUASHFS + b"more")
    (after,) = find_squashfs_mounts([f"{packed}:/data"])
    assert before.name != after.name


def test_a_squashfs_file_can_be_mounted_as_a_file(packed: Path) -> None:
    assert find_squashfs_mounts([f"{packed}:/images/data.sqsh"]) == ()


@pytest.mark.parametrize(
    ("name", "target", "says"),
    [
        ("data.tar", "/data", "an archive cannot be mounted as a folder"),
        ("notes.txt", "/data", "it is a file, but not a squashfs file"),
        ("data.sqsh", "/data", "its contents are not"),
        ("noname", "/data", "it is a file"),
    ],
)
def test_another_file_is_refused_as_a_folder(
    tmp_path: Path, name: str, target: str, says: str
) -> None:
    source = tmp_path / name
    source.write_text("hello")
    with pytest.raises(InputError, match=says) as refused:
        resolve_mount(f"{source}:{target}")
    if not name.endswith(".sqsh"):
        assert f"--mount {source}:{target}/{name}" in (refused.value.hint or "")


@pytest.mark.parametrize("target", ["/data/notes.txt", "/etc/other.txt"])
def test_a_file_is_mounted_where_the_target_is_one(tmp_path: Path, target: str) -> None:
    source = tmp_path / "notes.txt"
    source.write_text("hello")
    assert resolve_mount(f"{source}:{target}") == f"{source}:{target}"


def plan_line(
    tmp_path: Path, runtime: str, packed: Path, other: str
) -> tuple[list[str], dict[str, str]]:
    request = LaunchRequest(
        ("hostname",),
        mode="plain",
        runtime=runtime,
        mounts=(other, f"{packed}:/scratch/data"),
        home=False,
        workdir=Path("/work"),
    )
    runner = PYXIS if runtime == "pyxis" else PLAIN
    plan = plan_step(
        request,
        ARTIFACT,
        look_around(request.runtime, make_site(tmp_path), runner, batch=request.batch),
    )
    return list(plan.argv), plan.environment


def test_apptainer_binds_it_after_what_it_lies_in(tmp_path: Path, packed: Path) -> None:
    argv, _ = plan_line(tmp_path, "apptainer", packed, "/scratch:/scratch")
    outer = argv.index("/scratch:/scratch")
    inner = argv.index(f"{packed}:/scratch/data:image-src=/,ro")
    assert outer < inner


@pytest.mark.parametrize("runtime", ["podman", "charliecloud"])
def test_a_script_on_the_node_puts_the_folder_in(
    tmp_path: Path, packed: Path, runtime: str
) -> None:
    argv, _ = plan_line(tmp_path, runtime, packed, "/scratch:/scratch")
    assert any(word.endswith("@squashfs1:/scratch/data") for word in argv)
    file = argv.index(str(packed))
    assert argv[file + 2] == "--"
    assert not [word for word in argv if word.startswith(f"{packed}:")]


@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_enroot_opens_it_by_a_hook_and_keeps_the_users_settings(
    tmp_path: Path, packed: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    (own / "mounts.d").mkdir(parents=True)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(own))
    argv, variables = plan_line(tmp_path, runtime, packed, "/scratch:/scratch")
    folder = Path(variables["ENROOT_CONFIG_PATH"])
    assert any(f"{folder}/places/1:/scratch/data" in word for word in argv)
    assert (folder / "places/1").is_dir()
    assert (folder / "mounts.d").resolve() == own / "mounts.d"
    assert os.access(folder / "hooks.d/50-hpcstack-squashfs.sh", os.X_OK)
    assert variables["HPCSTACK_ENROOT_CONFIG"] == str(own)
    file, name, place = variables["HPCSTACK_SQUASHFS"].split(":")
    assert (file, place) == (str(packed), f"{folder}/places/1")
    assert name


def test_the_hook_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert keep_hook(1) == keep_hook(2)
    assert (keep_hook(1).folder / "places/2").is_dir()


UNPACK = """\
serve_squashfs() { return 1; }
served=$$
for one; do
    open_squashfs "$one" name-of-it "$TMPDIR/folder"
    cat "$opened/a"
    echo "$opened"
done
"""


@pytest.mark.squashfs
def test_without_fuse_it_is_unpacked_once_a_node(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    (source / "a").write_text("hello\n")
    packed = tmp_path / "data.sqsh"
    subprocess.run(["mksquashfs", source, packed, "-quiet", "-no-progress"], check=True)
    needs = data.read_script("on-node/own-folder.sh")
    script = needs + data.read_script("on-node/squashfs.sh") + UNPACK

    env = {**os.environ, "TMPDIR": str(tmp_path)}
    argv = ["sh", "-c", script, "unpack", str(packed), str(packed)]
    tasks = [
        subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = ""
    for task in tasks:
        out, errors = task.communicate()
        assert task.returncode == 0, errors
        assert (
            out.splitlines()
            == ["hello", str(tmp_path / f"hpcstack-unpacked-{os.getuid()}/name-of-it")] * 2
        )
        said += errors
    assert said.count("no FUSE here") == 1


@pytest.mark.squashfs
def test_what_was_unpacked_long_ago_goes_unless_it_is_in_use(tmp_path: Path) -> None:
    top = tmp_path / f"hpcstack-unpacked-{os.getuid()}"
    old = top / "old"
    old.mkdir(parents=True)
    (old / "file").touch(0o400)
    os.utime(old, (1, 1))
    script = (
        data.read_script("on-node/squashfs.sh")
        + "served=$$ top=$1\nhold_unpacked\necho held\nread -r line\n"
    )
    argv = ["sh", "-c", script, "hold", str(top)]

    using = subprocess.Popen(
        ["flock", "-s", top / ".used", "sh", "-c", "echo; read -r line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert using.stdout
    using.stdout.readline()
    subprocess.run(argv, input=b"\n", check=True)
    assert old.exists()
    using.communicate(b"\n")

    for _ in range(20):  # the process that held the lock for the first one notices its end
        subprocess.run(argv, input=b"\n", check=True)
        if not old.exists():
            break
        time.sleep(0.1)
    assert not old.exists()
