"""What a researcher types on the first day, and what comes of it: no image, no Slurm, the command
line alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.launch import limits
from hpcstack.launch.resources import Resources
from hpcstack.project.named import read_named_packages
from hpcstack.slurm.query import Limits


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HPCSTACK_", "SLURM_", "XDG_"))
    }
    argv = [sys.executable, "-m", "hpcstack", "launch", *words]
    return subprocess.run(
        argv,
        cwd=folder,
        env={**plain, "HOME": str(folder), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_template_keeps_what_is_asked(tmp_path: Path) -> None:
    done = run(tmp_path, "pytorch-24.11", "--template", "ddp", "--gpus-per-node", "0", "--mem=2G", "-t", "30", "--with", "einops",
               "--mount", "/a b:/data", "--home", "--", "other.py", "--lr", "3 4")  # fmt: skip
    text = done.stdout
    assert done.returncode == 0, done.stderr
    assert "--gpus-per-node" not in text
    assert "#SBATCH --mem=2G" in text
    assert "#SBATCH --time=30" in text
    assert "set -- other.py --lr '3 4'" in text
    assert (
        "hpcstack launch pytorch-24.11 --mode torchrun --mount '/a b:/data' --home "
        "--with einops -- "
    ) in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    none = run(tmp_path, "pytorch-24.11", "--template", "ddp", "-G", "0", "--", "x.py")
    assert "--gpus" not in none.stdout and "#SBATCH" in none.stdout, none.stderr
    two = run(tmp_path, "pytorch-24.11", "--template", "jupyter", "--", "x.py")
    assert two.returncode == 2
    assert "starts its own program" in two.stderr


def test_the_loaded_module_names_the_stack(tmp_path: Path) -> None:
    assert "no module of one is loaded" in run(tmp_path, "--", "python3", "x.py").stderr
    done = run(tmp_path, "--template", "mpi", "--", "./program", HPCSTACK_STACK="python-3.12-mpi")
    assert (
        "hpcstack launch python-3.12-mpi --mode mpi" in done.stdout
        and "set -- ./program" in done.stdout
    ), done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pytorch-24.11", "-N", "2", "train.py", "--epochs", "1"), ("put `--` before the command: hpcstack launch pytorch-24.11 -N 2 -- " "train.py")),
        (("pytorch-24.11", "-N", "two", "--", "x"), "'two' is no number of nodes, such as 4 or 2-4"),
        (("pytorch-24.11", "--json", "--", "x"), "--json goes with --dry-run"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_slip(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("said", "write"), [("2h", "2:00:00"), ("90m", "90"), ("3d", "3-0"), ("soon", "minutes (30)")]
)
def test_a_time_limit_as_people_write_it(said: str, write: str) -> None:
    with pytest.raises(InputError) as error:
        limits.check_limits(
            Resources(time=said), {"debug": Limits("debug", nodes=2, cpus=4, default=True)}
        )
    assert write in error.value.message
    assert not error.value.hint


def test_files_are_not_packages_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("einops==0.8.0 # tensors\n\n# more\nlightning>=2\n")
    (tmp_path / "wandb").mkdir()
    assert read_named_packages(("requirements.txt",)) == ("einops==0.8.0", "lightning>=2")
    assert read_named_packages(("wandb",)) == ("wandb",), "a folder of that name is no reason"
    (tmp_path / "bad.txt").write_text("--index-url https://evil\neinops\n")
    for one, says in (
        ("none.txt", "none.txt"), ("environment.yml", "environment of conda's"), ("./pkg", "not on the package index"), (".", "not on"),
        ("-r", "name the file itself"), ("bad.txt", "only packages are accepted"), ("dist/x.whl", "not on the package index"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=says):
            read_named_packages((one,))


def test_checks_that_pass_are_listed_once(tmp_path: Path) -> None:
    """While the suite runs: what is wrong at once, what passes as a number now and then; the report
    lists all.
    """
    from hpcstack.suite.steps import watch_steps

    said: list[str] = []
    times = iter([0.0, 1.0, 12.0, 13.0])
    tell = watch_steps(said.append, lambda: next(times))
    for line in (
        ":: PASS node.cpu 0.1 2 cores",
        "hello",
        ":: SKIP node.gpus 0.0 none",
        ":: FAIL ddp.fp32 1.0 1 != 2",
        ":: ",
    ):
        tell(line)
    assert said == ["2 checks done, the last node.gpus", "FAIL ddp.fp32 1.0 1 != 2"], said


MOUNTS = """\
21 1 {shared} / /shared rw,relatime shared:1 - nfs4 server:/home rw
22 1 {local} / /data rw,relatime shared:2 - {kind} /dev/sdb1 rw
"""


def test_a_folder_that_nodes_may_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcstack.launch.folders import own_folder

    here, shared = Path("/proc/self"), Path("/")  # two filesystems that every machine has
    device = here.stat().st_dev
    mounts = MOUNTS.format(
        shared="0:99", local=f"{os.major(device)}:{os.minor(device)}", kind="xfs"
    )
    assert own_folder(here, shared, mounts) == "/proc/self is on a disk of this machine's own (xfs)"
    assert own_folder(here, shared, mounts.replace("xfs", "lustre")) == ""
    assert own_folder(here, here, mounts) == ""
    assert own_folder(here, Path("/none"), mounts) == ""
    assert own_folder(Path("/tmp/x"), shared, "").startswith("/tmp/x is this machine's own")
    assert own_folder(here, shared, "torn\n - \n1 2 3\n") == ""


@pytest.mark.parametrize(
    ("words", "as_typed"),
    [
        (["--mem", "4G", "--", "a.py"], ["--mem=4G", "--", "a.py"]),
        (["-J", "me", "pytorch", "-x", "n4"], ["--job-name=me", "pytorch", "--exclude=n4"]),
        (
            ["-N", "2", "--mem=4G", "--", "--mem", "4G"],
            ["-N", "2", "--mem=4G", "--", "--mem", "4G"],
        ),
        (["--mem"], ["--mem"]),
        (["-xn4", "-Jme", "-N2"], ["--exclude=n4", "--job-name=me", "-N2"]),
        (
            ["--with", "-e .", "-Jme"],
            ["--with", "-e .", "--job-name=me"],
        ),  # the value of an option of ours
    ],
)
def test_options_of_srun_as_people_write_them(words: list[str], as_typed: list[str]) -> None:
    from hpcstack.cli.resources import join_values

    assert (
        join_values(words, {"-N", "--nodes", "-c", "--with"}, {"-N", "--nodes", "-c", "--with"})
        == as_typed
    )


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["train.py", "--epochs", "2"], 0),
        (["pytorch", "-c", "print(1)"], 1),
        (["-c", "4"], 2),
        (["-N1", "-m", "pip"], 1),
        ([], 0),
    ],
)
def test_where_what_python_runs_begins(words: list[str], begins: int) -> None:
    from hpcstack.cli.interactive import _begins

    assert _begins(words, {"-N", "-c"}) == begins
