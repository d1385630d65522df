"""What a launch is asked for, and what is refused while it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.core.process import Runner
from hpcstack.launch.request import (
    LaunchRequest,
    check_grace,
    check_srun_options,
    resolve_mount,
)
from hpcstack.launch.resources import Resources

HELP = "  -q, --qos=qos    quality of service\n      --exclusive[=user]   alone on a node\n"


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's programs, of which sbatch knows one option more."""
    for name, said in (("srun", HELP), ("sbatch", f"{HELP}      --requeue   again\n")):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'EOF'\n{said}EOF\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_a_relative_source_is_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_mount("data:/data") == f"{tmp_path.resolve()}/data:/data"


def test_nodes_are_given_what_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert resolve_mount(f"{tmp_path}/link:/data") == f"{tmp_path.resolve()}/real:/data"


def test_an_absolute_source_may_be_on_the_nodes_alone() -> None:
    assert resolve_mount("/no/such/folder:/data") == "/no/such/folder:/data"


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("missing:/data", "does not exist"),
        ("/data", "SOURCE:TARGET is needed"),
        ("/a:/b:ro", "read-only mounts are not offered"),
        ("/a:/b:/c", "SOURCE:TARGET is needed"),
        ("/a:b", "two absolute paths"),
        ("/a,b:/c", "two absolute paths"),
    ],
)
def test_a_mount_that_no_runtime_takes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says) as refused:
        resolve_mount(said)
    assert "--mount" in refused.value.hint


def test_ranks_are_not_signalled_before_they_begin() -> None:
    with pytest.raises(InputError, match="the whole job has only 600 s"):
        check_grace(600, "10")
    check_grace(599, "10")


@pytest.mark.parametrize(("grace", "limit"), [(0, "1"), (900, ""), (900, "UNLIMITED")])
def test_without_a_grace_or_a_limit_nothing_is_too_long(grace: int, limit: str) -> None:
    check_grace(grace, limit)


@pytest.mark.usefixtures("srun")
def test_options_that_srun_knows_are_passed_on() -> None:
    check_srun_options(["--qos=high", "--exclusive"], [], Runner(), batch=False)


@pytest.mark.usefixtures("srun")
@pytest.mark.parametrize("option", ["--segment=4", "--x11", "--ntasks-per-gpu=1"])
def test_options_that_no_help_names_are_passed_on(option: str) -> None:
    check_srun_options([option], [], Runner(), batch=False)
    with pytest.raises(InputError, match="did you mean '--segment'"):
        check_srun_options(["--segmnt=4"], [], Runner(), batch=False)


@pytest.mark.usefixtures("srun")
@pytest.mark.parametrize("own", [[], ["--mode"]])
def test_an_option_that_nobody_knows_is_refused_with_the_nearest(own: list[str]) -> None:
    with pytest.raises(InputError, match=r"--qoss: neither hpcstack nor srun knows it.*--qos"):
        check_srun_options(["--qoss=high"], own, Runner(), batch=False)


@pytest.mark.usefixtures("srun")
def test_an_option_of_jobs_needs_a_job() -> None:
    with pytest.raises(InputError, match="--requeue is an option of sbatch") as refused:
        check_srun_options(["--requeue"], [], Runner(), batch=False)
    assert refused.value.hint == "add --batch"
    check_srun_options(["--requeue"], [], Runner(), batch=True)
    with pytest.raises(InputError, match="--wait-all-nodes is an option of sbatch"):
        check_srun_options(["--wait-all-nodes=1"], [], Runner(), batch=False)
    check_srun_options(["--wait-all-nodes=1"], [], Runner(), batch=True)


def test_without_slurm_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    check_srun_options(["--whatever"], [], Runner(), batch=False)


@pytest.mark.parametrize(
    ("resources", "goes_on"),
    [(Resources(), False), (Resources(elastic="1:2"), True), (Resources(restarts=1), True)],
)
def test_a_step_that_is_elastic_or_restarts_survives_a_rank(
    resources: Resources, goes_on: bool
) -> None:
    assert LaunchRequest(("true",), resources).goes_on is goes_on
