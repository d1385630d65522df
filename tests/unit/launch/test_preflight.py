"""Whether a command is in an image, asked of a real squashfs."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.launch.commands import advise, check_starter, check_step
from hpcstack.launch.preflight import explain_missing_command, note_own_torch
from hpcstack.store.artifact import Artifact

ARTIFACT = Artifact(
    stack="s-1", key="k", sha256="0" * 64, size=1, platform="linux/amd64", engine="apptainer", lock_sha256="0" * 64,
    base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={},
    environment={"PATH": "/usr/local/cuda/bin:/opt/loop/bin:/bin"},
)  # fmt: skip
pytestmark = pytest.mark.squashfs


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    tree = tmp_path / "tree"
    for folder in ("usr/local/cuda-12.6/bin", "usr/bin", "opt", "etc/alternatives"):
        (tree / folder).mkdir(parents=True)
    (tree / "usr/local/cuda-12.6/bin/nvcc").write_text("")
    (tree / "usr/bin/env").write_text("")
    (tree / "usr/bin/convert.py").write_text("")
    (tree / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (tree / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-12.6")
    (tree / "bin").symlink_to("usr/bin")
    (tree / "opt/loop").symlink_to("loop")
    subprocess.run(
        ["mksquashfs", str(tree), str(tmp_path / "image.sqsh"), "-quiet", "-no-progress"],
        check=True,
    )
    return replace(ARTIFACT, folder=str(tmp_path))


@pytest.mark.parametrize(
    "command", ["nvcc", "env", "/usr/local/cuda/bin/nvcc", "/bin/env", "/usr/bin/env"]
)
def test_a_command_behind_links_is_there(artifact: Artifact, tmp_path: Path, command: str) -> None:
    assert explain_missing_command(artifact, (command,), tmp_path, ()) == ""


@pytest.mark.parametrize(
    "command", ["nvc", "/usr/local/cuda/bin/none", "/opt/loop/x", "/nothing/at/all"]
)
def test_what_is_not_there_is_said(artifact: Artifact, tmp_path: Path, command: str) -> None:
    said = explain_missing_command(artifact, (command,), tmp_path, ())
    assert command in said
    assert "no command" in said or "neither in the image" in said


def test_what_lies_in_a_mount_or_the_folder_is_looked_at_there(
    artifact: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    assert explain_missing_command(artifact, ("train.py",), tmp_path, ()) == ""
    assert "no such file" in explain_missing_command(artifact, ("other.py",), tmp_path, ())
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/run").write_text("")
    (tmp_path / "tools/run").chmod(0o755)
    mounts = (f"{tmp_path}/tools:/data/tools",)
    assert explain_missing_command(artifact, ("/data/tools/run",), tmp_path, mounts) == ""
    assert f"({tmp_path}/tools/none)" in explain_missing_command(
        artifact, ("/data/tools/none",), tmp_path, mounts
    )
    assert "no such file" in explain_missing_command(artifact, ("./none",), tmp_path, ())


def test_what_cannot_be_read_there_or_run_is_said(artifact: Artifact, tmp_path: Path) -> None:
    """A folder above is not mounted, whatever way leads there; a program must be executable; a
    script is read.
    """
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "train.py").write_text("")
    (work / "link.py").symlink_to("../train.py")
    (work / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N 2\n")
    (work / "tool.sh").write_text("")

    def said(*command: str, mounts: tuple[str, ...] = ()) -> str:
        return explain_missing_command(artifact, command, work, mounts)

    assert "neither in the image nor in a mount" in said("../train.py")
    assert (
        f"link.py leads to {tmp_path}/train.py, which is neither mounted nor in the image"
        in said("link.py")
    )
    assert (
        said("link.py", mounts=(f"{tmp_path}:{tmp_path}",))
        == said("../train.py", mounts=(f"{tmp_path}:{tmp_path}",))
        == ""
    )
    assert "is not executable (chmod +x), and is a job script: sbatch it" in said("./job.sbatch")
    assert "is not executable" in said("./tool.sh")
    assert said("bash", "tool.sh") == ""
    assert "is not a file" in said("./")
    (work / "python").symlink_to(
        "/usr/bin/env"
    )  # as in a virtual environment: the image has what it leads to
    (work / "gone").symlink_to("/usr/bin/none")
    assert said("./python") == ""
    assert "neither mounted nor in the image" in said("./gone")
    assert said("/nvme/run.sh", mounts=("/only/on/nodes:/nvme",)) == ""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/x.py").write_text("")
    assert said("/data/sub/x.py", mounts=(f"{work}:/data", f"{tmp_path}/sub:/data/sub")) == "", (
        "the innermost mount"
    )


def test_a_program_of_the_image_may_end_in_py(artifact: Artifact, tmp_path: Path) -> None:
    assert "no such file" in explain_missing_command(artifact, ("nothing.py",), tmp_path, ())
    assert explain_missing_command(artifact, ("convert.py",), tmp_path, ()) == ""


@pytest.mark.parametrize(
    ("mode", "command", "says"),
    [
        (
            "torchrun",
            ("torchrun", "--nproc-per-node", "2", "train.py"),
            "--nproc-per-node N -- train.py",
        ),
        ("torchrun", ("/opt/x/bin/accelerate", "launch", "train.py"), "accelerate starts ranks"),
        ("task-per-gpu", ("python3", "-m", "torch.distributed.run", "train.py"), "for each task"),
        ("mpi", ("mpirun", "-np", "4", "./a.out"), "--mode mpi -- "),
        ("plain", ("srun", "hostname"), "--mode plain -- "),
        ("plain", ("torchrun", "train.py"), ""),
        ("torchrun", ("-m", "torch.distributed.run", "x.py"), "torch.distributed.run starts ranks"),
        ("torchrun", ("python", "-u", "-m", "torch.distributed.run", "x.py"), "starts ranks"),
        ("torchrun", ("accelerate", "config"), ""),
        ("torchrun", ("python", "-u", "train.py"), ""),
        ("torchrun", ("python", "-m", "mine.torchrun"), ""),
        ("torchrun", ("train.py", "torchrun"), ""),
    ],
)
def test_what_starts_ranks_is_not_started_for_each_rank(
    mode: str, command: tuple[str, ...], says: str
) -> None:
    if not says:
        check_starter(mode, command)
        return
    with pytest.raises(InputError) as error:
        check_starter(mode, command)
    assert says in f"{error.value.message} {error.value.hint}"


def test_a_launch_in_each_task_of_a_step_is_refused() -> None:
    check_step({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    check_step({"SLURM_STEP_NUM_TASKS": "4"})
    with pytest.raises(InputError, match="in each of the 4 tasks"):
        check_step({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"})


def test_what_to_type_in_place_of_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "other.py").write_text("")
    (work / "train.py").write_text("")
    for command, says in (
        (("trian.py",), (f"in {work} is " f"'train.py'")), (("python3", "trian.py"), "'train.py'"), (("zzzz-zzz.py",), f"ls {work}"),
        (("ls -la | head",), ("-- sh -c 'ls -la | " "head'")), (("../other.py",), (f"cd {tmp_path} first, or --mount " f"{tmp_path}:{tmp_path}")),
        (("pyhton3", "x.py"), "hpcstack shell"),
    ):  # fmt: skip
        assert says in advise(command, work), (command, advise(command, work))


def test_p7_a_virtual_environment_with_a_torch_of_its_own_is_told_of_nvidias(
    tmp_path: Path,
) -> None:
    """NVIDIA's images search the folder of their own torch first, whoever asks for libtorch."""
    nvidias = "/usr/local/lib/python3.12/dist-packages/torch/lib"
    image = replace(ARTIFACT, environment={"LD_LIBRARY_PATH": f"{nvidias}:/usr/local/nvidia/lib64"})
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    command = ("venv/bin/python", "train.py")
    assert note_own_torch(image, command, tmp_path) == "", (
        "an environment without a torch has the image's"
    )

    (tmp_path / "venv/lib/python3.12/site-packages/torch/lib").mkdir(parents=True)
    said = note_own_torch(image, command, tmp_path)
    assert said.startswith(f"{tmp_path}/venv has a torch of its own")
    assert nvidias in said
    assert said.endswith("-- env LD_LIBRARY_PATH=/usr/local/nvidia/lib64 venv/bin/python ...")
    absolute = (str(tmp_path / "venv/bin/python"), "train.py")
    assert note_own_torch(image, absolute, Path("/")), "by its whole path, too"

    assert note_own_torch(image, ("python3", "train.py"), tmp_path) == "", "the image's Python"
    other = replace(ARTIFACT, environment={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"})
    assert note_own_torch(other, command, tmp_path) == "", "an image that searches no torch"
