"""Job scripts that users copy: what they ask for takes the place of the template's own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import make_site
from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.core.names import TEMPLATES
from hpcstack.render.job_template import Option, render_job_template
from hpcstack.site.load import Site

STACK = "pytorch-24.11"


def gpu_site(folder: Path) -> Site:
    """A site whose nodes have 8 GPUs and 96 CPUs."""
    node = {"gpus": {"model": "H100", "count": 8}, "cpus": 96}
    partitions = {"p": {"node_type": "h", "default": True}}
    return make_site(folder, node_types={"h": node}, partitions=partitions)


def directives(text: str) -> list[str]:
    return re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)


def launches(text: str) -> list[str]:
    """The calls of `hpcstack launch` up to their `--`, comments too."""
    return re.findall(r"hpcstack launch .*? -- ", text)


def test_every_template_is_named_and_there() -> None:
    folder = data.find_data_folder("launchers") / "to-copy/templates"
    there = {path.name.removesuffix(".sbatch.j2") for path in folder.iterdir()}
    assert there == set(TEMPLATES)


def test_sbatch_options_take_the_place_of_the_templates_own(tmp_path: Path) -> None:
    asked = {"nodes": "8", "account": "my proj", "time": "12:00:00", "exclusive": ""}
    text = render_job_template("ddp", STACK, gpu_site(tmp_path), asked)
    assert directives(text) == [
        "--job-name=pytorch-24.11-ddp",
        "--partition=p",
        "--nodes=8",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--cpus-per-task=96",
        "--time=12:00:00",
        "--output=%x-%j.out",
        "--account='my proj'",
        "--exclusive",
    ]
    assert text.startswith("#!/usr/bin/env bash\n#SBATCH ")


def test_none_takes_a_line_away(tmp_path: Path) -> None:
    text = render_job_template("ddp", STACK, gpu_site(tmp_path), {"gpus-per-node": None})
    assert "gpus-per-node" not in text


def test_half_of_the_gpus_come_with_half_of_the_cpus(tmp_path: Path) -> None:
    """The other half is somebody else's: with all CPUs, the job would hold the whole node."""
    site = gpu_site(tmp_path)
    half = directives(render_job_template("ddp", STACK, site, {"gpus-per-node": "4"}))
    assert {"--gpus-per-node=4", "--cpus-per-task=48"} <= set(half)
    typed = directives(render_job_template("ddp", STACK, site, {"gpus-per-node": "h100:4"}))
    assert {"--gpus-per-node=h100:4", "--cpus-per-task=48"} <= set(typed)
    own = {"gpus-per-node": "4", "cpus-per-task": "10"}
    assert "--cpus-per-task=10" in directives(render_job_template("ddp", STACK, site, own))
    for other in ("0", "8", "16", "h100:x", ""):
        text = render_job_template("ddp", STACK, site, {"gpus-per-node": other})
        assert "--cpus-per-task=96" in directives(text), other


def test_launch_options_take_the_place_of_the_templates_own(tmp_path: Path) -> None:
    asked: list[Option] = [("--grace", "60"), ("--mount", "/a b:/b"), ("--home", None)]
    text = render_job_template("checkpoint-requeue", STACK, make_site(tmp_path), {}, asked)
    assert launches(text) == [
        f"hpcstack launch {STACK} --mode torchrun --grace 60 --mount '/a b:/b' --home -- "
    ]


@pytest.mark.parametrize(("kind", "own"), [("jupyter", "jupyterlab"), ("tensorboard",) * 2])
def test_a_template_keeps_its_own_packages(tmp_path: Path, kind: str, own: str) -> None:
    """researcher 3: `--template jupyter --with requirements.txt` had them in place of JupyterLab:
    exit 127.
    """
    asked: list[Option] = [("--with", "requirements.txt")]
    text = render_job_template(kind, STACK, make_site(tmp_path), {}, asked)
    assert len(launches(text)) >= 2
    for one in launches(text):
        assert f"--with {own}" in one
        assert "--with requirements.txt" in one


@pytest.mark.parametrize("kind", ["jupyter", "tensorboard"])
def test_a_program_of_the_templates_own_starts_as_it_must(tmp_path: Path, kind: str) -> None:
    """`--mode mpi` is about the user's program: JupyterLab is started once all the same."""
    asked: list[Option] = [("--mode", "mpi"), ("--grace", "60"), ("--runtime", "enroot")]
    text = render_job_template(kind, STACK, make_site(tmp_path), {}, asked)
    own = launches(text)[1]
    assert "--mode plain" in own
    assert "--runtime enroot" in own
    assert "--grace" not in own


@pytest.mark.parametrize("kind", TEMPLATES)
@pytest.mark.parametrize("asked", [(), (("--mode", "mpi"), ("--with", "a b"), ("--home", None))])
def test_each_script_is_whole(tmp_path: Path, kind: str, asked: tuple[Option, ...]) -> None:
    command = () if kind == "jupyter" else ("train me.py", "--lr", "$HOME")
    text = render_job_template(kind, STACK, gpu_site(tmp_path), {}, asked, command)
    script = tmp_path / "job.sh"
    script.write_text(text)
    subprocess.run(["bash", "-n", script], check=True)
    assert all(" -- " in line for line in text.splitlines() if "hpcstack launch" in line)


def test_a_command_is_what_the_script_runs_without_arguments(tmp_path: Path) -> None:
    text = render_job_template("ddp", STACK, make_site(tmp_path), {}, (), ["my train.py", "$HOME"])
    shown = re.search(r"^\[ .*? \|\| (set -- .*?) # what it runs", text, re.MULTILINE)
    assert shown
    said = subprocess.check_output(
        ["bash", "-c", f'{shown[1]}; printf "%s\\n" "$@"'], text=True, env={"HOME": "/h"}
    )
    assert said == "my train.py\n$HOME\n"


def test_a_line_break_ends_no_directive(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        render_job_template("ddp", STACK, make_site(tmp_path), {"comment": "a\n#SBATCH --uid=0"})


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_no_value_says_anything_to_the_shell(value: str) -> None:
    site = make_site(Path("/nonexistent"))
    asked: list[Option] = [("--mount", value)]
    text = render_job_template("ddp", STACK, site, {}, asked)
    called = text[text.index("exec hpcstack") :]
    said = subprocess.check_output(
        ["bash", "-c", 'hpcstack() { printf "%s\\0" "$@"; }; ' + called.removeprefix("exec ")]
    )
    words = said.decode("utf-8", "surrogateescape").split("\0")
    joined = [one.partition("=")[2] if one.startswith("--mount=") else one for one in words]
    assert value in joined
