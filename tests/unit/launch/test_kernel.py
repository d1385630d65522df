"""A kernel of Jupyter's: its kernel.json, its connection, and where it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from hpcstack.core.errors import InputError
from hpcstack.launch.kernel import (
    Connection,
    describe_old_ipykernel,
    find_kernels_folder,
    find_place,
    list_request_words,
    read_connection,
    with_kernel,
    write_kernel,
)
from hpcstack.launch.request import LaunchRequest
from hpcstack.launch.resources import Resources
from hpcstack.slurm.options import SlurmOptions

PORTS = {
    "shell_port": 50001, "iopub_port": 50002, "stdin_port": 50003, "control_port": 50004,
    "hb_port": 50005,
}  # fmt: skip
BY_PORTS: dict[str, Any] = {
    **PORTS,
    "transport": "tcp",
    "ip": "127.0.0.1",
    "key": "secret",
    "signature_scheme": "hmac-sha256",
}
REQUEST = LaunchRequest(("x",), Resources(nodes=1, time="60", gpus_per_node=1))
# https://jupyter-client.readthedocs.io/en/stable/kernels.html#kernel-specs
KERNEL_JSON = {
    "type": "object",
    "required": ["argv", "display_name", "language"],
    "properties": {
        "argv": {"type": "array", "items": {"type": "string"}, "contains": {"const": "{connection_file}"}},
        "display_name": {"type": "string"},
        "language": {"type": "string"},
        "env": {"type": "object"},
        "interrupt_mode": {"enum": ["signal", "message"]},
        "metadata": {"type": "object"},
    },
    "additionalProperties": False,
}  # fmt: skip


def test_a_kernel_is_written_and_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "kernels/hpcstack-pytorch"
    for name in ("One", "Two"):
        path = write_kernel(
            folder, name, ["/opt/hpcstack", "kernel", "start", "x"], {"SLURM_CONF": "/x"}
        )
    document = json.loads(path.read_text())
    validate(document, KERNEL_JSON)
    assert document["argv"][-2:] == ["-f", "{connection_file}"]
    assert document["display_name"] == "Two"
    assert document["env"] == {"SLURM_CONF": "/x"}
    assert document["interrupt_mode"] == "message"


def test_the_kernel_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "kernel.json").write_text('{"argv": ["mine"]}')
    with pytest.raises(InputError, match="not of hpcstack's"):
        write_kernel(tmp_path, "One", ["hpcstack"], {})
    assert json.loads((tmp_path / "kernel.json").read_text()) == {"argv": ["mine"]}


def test_where_jupyter_looks(tmp_path: Path) -> None:
    assert (
        find_kernels_folder(None, {"HOME": str(tmp_path)})
        == tmp_path / ".local/share/jupyter/kernels"
    )
    assert find_kernels_folder(None, {"XDG_DATA_HOME": "/d"}) == Path("/d/jupyter/kernels")
    assert find_kernels_folder(None, {"JUPYTER_DATA_DIR": "/x"}) == Path("/x/kernels")
    own = find_kernels_folder(Path("/usr/local"), {"JUPYTER_DATA_DIR": "/x"})
    assert own == Path("/usr/local/share/jupyter/kernels")


@pytest.mark.parametrize(
    "text", ["", "[]", "7", "{}", '{"ip": "127.0.0.1"}', '{"ip": 1, "shell_port": 2}']
)
def test_what_is_no_connection_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kernel.json"
    path.write_text(text)
    with pytest.raises(InputError, match="no connection file of Jupyter's"):
        read_connection(path)


def test_the_ends_of_a_connection(tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(BY_PORTS))
    outside = read_connection(path)
    assert outside.list_ends()[0] == "127.0.0.1:50001"
    inside = outside.with_sockets("/tmp/folder")
    assert inside.list_ends() == [f"/tmp/folder/kernel-{n}" for n in range(1, 6)]
    assert inside.document["key"] == "secret"
    assert outside.document["transport"] == "tcp"  # as it was


IN_A_JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node3", "SLURM_CPUS_ON_NODE": "16"}
IN_SALLOC = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "16"}


def test_in_a_job_it_shares_what_the_job_has_on_its_node() -> None:
    place = find_place(IN_A_JOB, by_slurm=True)
    request, inside = with_kernel(REQUEST, Connection(BY_PORTS), place, IN_A_JOB)
    assert place.is_here
    assert inside.document == BY_PORTS
    asked = request.resources
    assert (asked.nodelist, asked.cpus_per_task, asked.time) == ("node3", 16, "")
    in_a_step = {**IN_A_JOB, "SLURM_CPUS_ON_NODE": "1", "SLURM_JOB_CPUS_PER_NODE": "32(x2)"}
    stepped, _ = with_kernel(REQUEST, Connection(BY_PORTS), place, in_a_step)
    assert stepped.resources.cpus_per_task == 32
    assert asked.extra.has("--overlap")
    assert request.needs == ("ipykernel",)


def test_on_a_login_node_it_is_a_job_of_its_own() -> None:
    place = find_place({}, by_slurm=True)
    request, inside = with_kernel(REQUEST, Connection(BY_PORTS), place, {})
    assert not place.is_here
    assert request.resources == REQUEST.resources
    assert request.serves
    assert inside.document["transport"] == "ipc"
    assert inside.document["ip"] == f"{request.serves.folder}/kernel"


def test_in_salloc_on_a_login_node_it_is_elsewhere() -> None:
    place = find_place(IN_SALLOC, by_slurm=True)
    request, inside = with_kernel(REQUEST, Connection(BY_PORTS), place, IN_SALLOC)
    assert inside.is_by_files
    assert request.resources.nodelist == ""
    assert request.resources.extra.has("--overlap")


def test_without_slurm_it_is_here_whatever_job_this_is() -> None:
    for environ in ({}, IN_A_JOB, IN_SALLOC):
        place = find_place(environ, by_slurm=False)
        request, inside = with_kernel(REQUEST, Connection(BY_PORTS), place, environ)
        assert inside.document == BY_PORTS
        assert request.resources == REQUEST.resources


def test_sockets_of_a_jupyter_here_are_mounted() -> None:
    by_files = Connection({**BY_PORTS, "transport": "ipc", "ip": "/run/user/1/kernel-x-ipc"})
    place = find_place(IN_A_JOB, by_slurm=True)
    request, inside = with_kernel(REQUEST, by_files, place, IN_A_JOB)
    assert "/run/user/1:/run/user/1" in request.mounts
    assert inside is by_files
    assert by_files.list_ends()[0] == "/run/user/1/kernel-x-ipc-50001"


def test_options_mean_the_same_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("einops\n")
    asked = Resources(nodes=1, time="60", partition="gpu", extra=SlurmOptions.parse(["--mem=8G"]))
    request = LaunchRequest(
        ("x",),
        asked,
        runtime="enroot",
        mounts=("/data:/data",),
        packages=("einops", "requirements.txt"),
        project=Path("mine"),
        home=False,
        slurm=True,
        bind=False,
    )
    words = list_request_words(request)
    assert words == [
        "--nodes=1", "--partition=gpu", "--time=60", "--mem=8G",
        "--runtime", "enroot",
        "--mount", "/data:/data",
        "--with", "einops", "--with", f"{tmp_path}/requirements.txt",
        "--project", f"{tmp_path}/mine",
        "--no-home", "--slurm", "--no-bind",
    ]  # fmt: skip
    assert list_request_words(LaunchRequest(("x",))) == ["--nodes=1"]
    staged = list_request_words(LaunchRequest(("x",), stage_in=("data:/data",)))
    assert staged[-1] == f"{tmp_path}/data:/data"
    with pytest.raises(InputError, match="--grace: a kernel has no use for it"):
        list_request_words(LaunchRequest(("x",), grace=60))


def test_an_old_ipykernel_is_said() -> None:
    assert "6.0.0 cannot be interrupted" in describe_old_ipykernel({"ipykernel": "6.0.0"})
    assert describe_old_ipykernel({"ipykernel": "6.29.5"}) == ""
    assert "is not known" in describe_old_ipykernel({"ipykernel": "of-mine"})
    assert describe_old_ipykernel({}) == ""  # it is added, and then it is new
