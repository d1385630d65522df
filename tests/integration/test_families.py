"""A stack of another family than PyTorch, and what an image does on a node with an older driver."""

from __future__ import annotations

import json

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.slurm, pytest.mark.registry]


@pytest.mark.pmix
@pytest.mark.apptainer
def test_a_stack_of_another_family(testbed: Testbed) -> None:
    """Plain Python with mpi4py: another registry, no torch, mode plain; locked, built as locked,
    tested on both nodes.
    """
    name = "python-3.12-mpi"
    lock = testbed.json("lock", name)
    assert lock["unresolved"] == []
    assert lock["base"]["registry"] == "docker.io"
    built = testbed.json("build", "--locked", name)
    assert "stands in for library/python" in built["stand_in"]
    document = testbed.json("test", name, "-N", "2", "--runtime", "apptainer")
    status = {outcome["code"]: outcome["status"] for outcome in document["outcomes"]}
    assert (document["verdict"], status["node.image"], status["node.shm"]) == (
        "PASS",
        "PASS",
        "PASS",
    )
    assert status["node.torch"] == "SKIP"
    script = "from mpi4py import MPI; print(MPI.Get_library_version().split()[0:2])"
    done = testbed.run(
        "apptainer", "--quiet", "exec", built["image"], "python3", "-c", script, check=True
    )
    assert "Open" in done.stdout


@pytest.mark.apptainer
def test_an_older_driver_makes_the_images_own_libcuda_come_first(
    testbed: Testbed, small_base: str
) -> None:
    """Forward compatibility on the real runtime; the driver's version is a recorded file, the
    library is empty.
    """
    recipes = Recipes(testbed, small_base, "compat")
    recipes.write(
        "1",
        environment='{CUDA_VERSION: "13.0.2", HPCSTACK_DRIVER_FILE: /etc/driver, LD_LIBRARY_PATH: '
        "/base}",
        files='[{path: /etc/driver, content: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  x\\n"},'
        ' {path: /usr/local/cuda/compat/lib.real/libcuda.so.1, content: ""}]',
    )
    built = json.loads(recipes.run("build", "demo-1", "--json").stdout)
    show = ("sh", "-c", "echo $LD_LIBRARY_PATH")
    done = testbed.run("apptainer", "--quiet", "exec", built["image"], *show, check=True)
    assert done.stdout.startswith("/usr/local/cuda/compat/lib.real:/base")
    launched = recipes.run(
        "launch", "demo-1", "--runtime", "apptainer", "--mode", "plain", "--", *show
    )
    assert launched.stdout.startswith("/usr/local/cuda/compat/lib.real:/base"), launched.stderr
    if testbed.has_pyxis():
        site = recipes.render_site_text + (
            "node_types: {n: {gpus: {model: H100, count: 1}}}\npartitions: {debug: {node_type: "
            "n, default: true}}\n"
        )
        recipes.site(site)
        launched = recipes.run(
            "launch",
            "demo-1",
            "--runtime",
            "pyxis",
            "--mode",
            "plain",
            "--",
            *show,
            NVIDIA_VISIBLE_DEVICES="void",
        )
        assert launched.stdout.startswith("/usr/local/cuda/compat/lib.real:/base"), launched.stderr
