"""Scripts of a site whose nodes bring the fabric's libraries: what shellcheck says, and what a
shell makes of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core import data
from hpcstack.preview import render_stack_files
from hpcstack.recipe.catalog import Catalog
from hpcstack.site.load import Site
from support.locks import example_lock

HOSTILE = 'it\'s `$(touch /tmp/no)` "so" # said'


def scripts(folder: Path, **fabric: Any) -> dict[str, str]:
    """The wrapper and the script to copy of pytorch-24.11, at a site on Slingshot."""
    stack = Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack
    document = {
        "store": "/cluster/store", "lock_dir": "/cluster/locks", "module_root": "/cluster/modules", "mounts": ["/scratch:/scratch"],
        "node_types": {"gh200": {"gpus": {"model": "H100", "count": 4}}},
        "partitions": {"gpu": {"node_type": "gh200", "default": True}}, "fabric": fabric,
    }  # fmt: skip
    files = render_stack_files(
        stack, example_lock(stack), Site.model_validate(document), "linux/amd64"
    )
    out = {path: files[path] for path in ("libexec/run", "srun.sh")}
    for path, text in out.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return out


def injection(*libraries: str, **changes: Any) -> dict[str, Any]:
    settings = {"FI_PROVIDER": {"value": "cxi", "reason": HOSTILE}}
    return {"reason": HOSTILE, "libraries": list(libraries), "settings": settings, **changes}


@pytest.mark.shellcheck
@pytest.mark.parametrize("kind", ["", "slingshot"])
def test_shellcheck_finds_nothing(tmp_path: Path, kind: str) -> None:
    one = injection(
        "/opt/cray/lib64", "/usr/lib64/libcxi.so.1", files=["/etc/cxi.conf:/etc/cxi.conf"]
    )
    cases: list[dict[str, Any]] = [
        {"settings": {"NCCL_IB_HCA": {"value": "mlx5", "reason": HOSTILE}}},
        {"injections": {"cxi": one, "more": injection("/opt/more/lib")}},
        {
            "settings": {"NCCL_IB_HCA": {"value": "mlx5", "reason": HOSTILE}},
            "injections": {"cxi": one},
        },
    ]
    for number, fabric in enumerate(cases):
        scripts(tmp_path / str(number), kind=kind, **fabric)
    found = sorted(str(path) for path in tmp_path.rglob("*") if path.is_file())
    argv = ["shellcheck", "--severity=warning", "--exclude=SC2155", *found]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[:4000]


@pytest.fixture
def wrapper(tmp_path: Path) -> Path:
    """`libexec/run` where one of two injections is on the machine, and programs that print how they
    were called.
    """
    (tmp_path / "here").mkdir()
    (tmp_path / "image.sqsh").write_text("")
    both = {"cxi": injection(f"{tmp_path}/here"), "other": injection(f"{tmp_path}/away")}
    text = scripts(tmp_path, kind="slingshot", injections=both)["libexec/run"]
    (tmp_path / "libexec/run").write_text(
        text.replace("/cluster/store/images/KEY/image.sqsh", f"{tmp_path}/image.sqsh")
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("apptainer", "srun"):
        said = 'printf "%s\\n" "$@"; env | grep -E "^(APPTAINERENV_)?(FI_|NCCL_)" | sort\n'
        help_text = (
            '[ "$1" != --help ] || { echo --container-image; exit; }\n' if name == "srun" else ""
        )
        (programs / name).write_text(f"#!/bin/sh\n{help_text}{said}")
        (programs / name).chmod(0o755)
    return tmp_path / "libexec/run"


def run(wrapper: Path, shell: str, runtime: str, **environment: str) -> list[str]:
    env = {
        "PATH": f"{wrapper.parents[1]}/programs:/usr/bin:/bin",
        "HPCSTACK_RUNTIME": runtime,
        "HOME": "/",
        **environment,
    }
    argv = [shell, str(wrapper), "hostname"]
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_job_of_several_nodes_gets_what_the_node_has(wrapper: Path, shell: str) -> None:
    here = f"{wrapper.parents[1]}/here:/opt/hpcstack-host/cxi.1"
    said = run(wrapper, shell, "apptainer", SLURM_JOB_NUM_NODES="2")
    assert said[said.index("host-libraries") + 1 :][:2] == ["/opt/hpcstack-host/cxi.1", "hostname"]
    assert said[said.index(here) - 1] == "--bind"
    assert not any("away" in line for line in said)
    assert "APPTAINERENV_FI_PROVIDER=cxi" in said
    assert "APPTAINERENV_NCCL_NET=AWS Libfabric" in said


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_pyxis_is_told_the_same(wrapper: Path, shell: str) -> None:
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7"}
    said = run(wrapper, shell, "pyxis", **job)
    mounts = next(line for line in said if line.startswith("--container-mounts="))
    assert (
        mounts
        == f"--container-mounts=/scratch:/scratch,{wrapper.parents[1]}/here:/opt/hpcstack-host/cxi.1"
    )
    names = next(line for line in said if line.startswith("--container-env="))
    assert {"FI_PROVIDER", "NCCL_NET"} <= set(names.partition("=")[2].split(","))
    assert "FI_PROVIDER=cxi" in said
    assert "NCCL_NET=AWS Libfabric" in said


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_NUM_NODES": "1"}])
def test_one_node_gets_nothing(wrapper: Path, environment: dict[str, str]) -> None:
    said = run(wrapper, "sh", "apptainer", **environment)
    assert "host-libraries" not in said
    assert not any("hpcstack-host" in line or "FI_" in line for line in said)


def test_what_the_caller_has_set_wins(wrapper: Path) -> None:
    said = run(
        wrapper, "sh", "apptainer", SLURM_JOB_NUM_NODES="2", FI_PROVIDER="verbs", NCCL_NET="Socket"
    )
    assert "APPTAINERENV_FI_PROVIDER=verbs" in said
    assert "APPTAINERENV_NCCL_NET=Socket" in said
