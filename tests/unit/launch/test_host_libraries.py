"""Libraries of the nodes' own in a step: what each runtime gets, and images that cannot load them."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.process import Completed, Runner
from hpcstack.launch.host_libraries import (
    describe_not_here,
    find_misfit,
    find_nccl,
    read_glibc,
    read_wants,
)
from hpcstack.launch.plan import Plan, plan_step
from hpcstack.launch.request import LaunchRequest
from hpcstack.launch.resources import Resources
from hpcstack.launch.surroundings import look_around
from hpcstack.site.fabric import Fabric
from hpcstack.site.injection import Brought
from hpcstack.site.load import Site
from hpcstack.store.artifact import Artifact

ARTIFACT = Artifact(
    stack="pytorch-24.11", key="k", sha256="0" * 64, size=1, platform="linux/amd64", engine="apptainer",
    lock_sha256="0" * 64, base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={}, folder="/store/images/k",
    environment={"CUDA_VERSION": "12.6.3", "FI_PROVIDER": "tcp"},
)  # fmt: skip


class Cluster(Runner):
    """A machine with srun and every runtime."""

    def has(self, tool: str) -> bool:
        return True

    def output(self, argv: object, **_: object) -> Completed:
        return Completed(("srun", "--help"), 0, ("--container-image",))


def site(folder: Path, *libraries: str) -> Site:
    injection = {
        "reason": "the node's own", "libraries": libraries or ["/usr/lib64/libcxi.so.1"], "cuda": ["12"],
        "settings": {"FI_PROVIDER": {"value": "cxi", "reason": "Slingshot's"}}, "mapped": ["libcxi.so.1"],
    }  # fmt: skip
    return Site.model_validate(
        {
            "store": folder,
            "lock_dir": folder,
            "module_root": folder,
            "fabric": {"injections": {"cxi": injection}},
        }
    )


def planned(folder: Path, runtime: str, nodes: int = 2, **changes: Any) -> Plan:
    artifact = replace(ARTIFACT, **changes)
    request = LaunchRequest(
        ("hostname",),
        Resources(nodes=nodes),
        mode="plain",
        runtime=runtime,
        workdir=Path("/work"),
    )
    return plan_step(
        request,
        artifact,
        look_around(request.runtime, site(folder), Cluster(), batch=request.batch),
    )


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer", "enroot", "podman", "charliecloud"])
def test_every_runtime_brings_them_and_searches_them_first(tmp_path: Path, runtime: str) -> None:
    made = planned(tmp_path, runtime)
    line = made.shown()
    assert "/usr/lib64/libcxi.so.1:/opt/hpcstack-host/cxi/libcxi.so.1" in line
    at = made.argv.index("host-libraries")
    assert made.argv[at - 3 : at - 1] == ("/bin/sh", "-c")
    assert made.argv[at + 1] == "/opt/hpcstack-host/cxi"
    assert "hostname" in made.argv[at + 2 :]
    said = {name.removeprefix("APPTAINERENV_"): value for name, value in made.environment.items()}
    assert said["FI_PROVIDER"] == "cxi", "the site's setting is above the image's"


def test_the_loader_searches_them_before_the_images_own(tmp_path: Path) -> None:
    made = planned(tmp_path, "apptainer")
    at = made.argv.index("host-libraries")
    words = [*made.argv[at - 3 : at + 2], "/bin/sh", "-c", 'echo "$LD_LIBRARY_PATH"']
    for given, path in (
        ({"LD_LIBRARY_PATH": "/of/image"}, "/opt/hpcstack-host/cxi:/of/image"),
        ({}, "/opt/hpcstack-host/cxi"),
    ):
        done = subprocess.run(
            words,
            env={"PATH": "/usr/bin:/bin", **given},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == path


@pytest.mark.parametrize(
    ("nodes", "changes"), [(1, {}), (2, {"environment": {"CUDA_VERSION": "13.0.1"}})]
)
def test_one_node_and_other_images_get_nothing(
    tmp_path: Path, nodes: int, changes: dict[str, Any]
) -> None:
    made = planned(tmp_path, "apptainer", nodes, **changes)
    assert "/opt/hpcstack-host" not in made.shown()
    assert not made.brought


def test_what_the_user_has_set_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_PROVIDER", "verbs")
    assert planned(tmp_path, "pyxis").environment["FI_PROVIDER"] == "verbs"


# -- libraries made here, and an image that says its glibc


def library(path: Path, wants: str = "") -> Path:
    """A library at PATH; WANTS: a version of glibc that no system has, which it says that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = (
        "#include <stdlib.h>\nint version(void) { return abs(-7); }\nvoid *more(void) { return "
        "malloc(7); }\n"
    )
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)],
        input=source,
        text=True,
        check=True,
    )
    if wants:
        old = re.search(rb"GLIBC_2\.[0-9.]+", path.read_bytes())
        assert old, "it wants nothing of glibc"
        new = f"GLIBC_{wants}".encode()
        assert len(new) <= len(old[0])
        path.write_bytes(path.read_bytes().replace(old[0], new.ljust(len(old[0]), b"\0")))
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A squashfs whose C library says 2.36."""
    root = tmp_path / "root/usr/lib/x86_64-linux-gnu"
    root.mkdir(parents=True)
    said = b"\0GNU C Library (Debian GLIBC 2.36-9+deb12u10) stable release version 2.36.\n\0"
    (root / "libc.so.6").write_bytes(os.urandom(1000) + said)
    (tmp_path / "root/lib").symlink_to("usr/lib")
    made = tmp_path / "image.sqsh"
    subprocess.run(
        ["mksquashfs", str(tmp_path / "root"), str(made), "-quiet", "-no-progress"], check=True
    )
    return made


def brought(*libraries: Path) -> list[Brought]:
    injection = {"reason": "r", "libraries": list(map(str, libraries))}
    return Fabric.model_validate({"injections": {"net": injection}}).bring(None, {})


@pytest.mark.squashfs
def test_an_image_says_its_glibc(image: Path, tmp_path: Path) -> None:
    assert read_glibc(image) == "2.36"
    assert read_glibc(tmp_path / "none.sqsh") == ""


@pytest.mark.gcc
@pytest.mark.squashfs
@pytest.mark.parametrize("folder", [False, True])
def test_what_wants_a_newer_glibc_than_the_image_has_is_refused(
    image: Path, tmp_path: Path, folder: bool
) -> None:
    fits = library(tmp_path / "old/libnet.so.1")
    assert find_misfit(brought(fits.parent if folder else fits), image, "linux/amd64") == ""
    newer = library(tmp_path / "new/libnet.so.1", wants="2.99")
    said = find_misfit(brought(newer.parent if folder else newer), image, "linux/amd64")
    assert f"fabric.injections.net: {newer} wants glibc 2.99, and the image has 2.36" in said


@pytest.mark.gcc
@pytest.mark.squashfs
def test_what_is_for_another_processor_is_refused(image: Path, tmp_path: Path) -> None:
    made = library(tmp_path / "libnet.so.1")
    wants = read_wants(made)
    assert wants is not None
    other = "linux/arm64" if wants.machine == "EM_X86_64" else "linux/amd64"
    assert f"is for another processor than {other}" in find_misfit(brought(made), image, other)


@pytest.mark.squashfs
@pytest.mark.parametrize("name", ["libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6"])
def test_the_nodes_own_c_library_is_refused(image: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / name).write_bytes(b"")
    said = find_misfit(brought(tmp_path / "lib64"), image, "linux/amd64")
    assert name in said
    assert "no program of the image would start with it" in said


@pytest.mark.squashfs
def test_what_is_no_library_or_not_here_is_left_to_the_nodes(image: Path, tmp_path: Path) -> None:
    script = tmp_path / "libnet.so"
    script.write_text("INPUT(libnet.so.1)\n")
    gone = tmp_path / "only-on-nodes/libnet.so.1"
    assert find_misfit(brought(script, gone.parent), image, "linux/amd64") == ""
    assert describe_not_here(brought(script, gone.with_name("libother.so.1"))) == [
        str(gone.with_name("libother.so.1"))
    ]


def plugin(path: Path, *interfaces: int) -> Path:
    """A plugin of NCCL's with INTERFACES, as far as NCCL looks before it calls one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = "".join(f"int ncclNetPlugin_v{number};\n" for number in interfaces)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)],
        input=source,
        text=True,
        check=True,
    )
    return path


@pytest.mark.gcc
@pytest.mark.squashfs
@pytest.mark.parametrize(
    ("interfaces", "nccl", "fits"),
    [
        ((8, 9), "2.23.4", True),
        ((9, 10), "2.23.4", False),
        ((5,), "2.27.7", False),
        ((4,), "", True),  # the image does not say which NCCL it has
        ((4,), "99.1", True),  # nobody has read what that one takes
        ((12,), "2.30.7+cuda13.3", True),
    ],
)
def test_a_plugin_that_the_images_nccl_does_not_know_is_refused(
    tmp_path: Path, image: Path, interfaces: tuple[int, ...], nccl: str, fits: bool
) -> None:
    made = plugin(tmp_path / "host/libnccl-net.so", *interfaces)
    said = find_misfit(brought(made), image, "linux/amd64", nccl)
    assert (said == "") == fits
    if not fits:
        assert f"ncclNetPlugin_v{interfaces[0]}" in said
        assert f"NCCL {nccl}" in said


@pytest.mark.gcc
@pytest.mark.squashfs
def test_an_older_plugin_beside_the_one_that_is_loaded_is_no_reason(
    tmp_path: Path, image: Path
) -> None:
    plugin(tmp_path / "host/libnccl-net-old.so", 5)
    made = plugin(tmp_path / "host/libnccl-net.so", 10)
    assert find_misfit(brought(made.parent), image, "linux/amd64", "2.27.7") == ""


def test_the_nccl_of_a_python_package_is_the_one_that_torch_loads() -> None:
    base = replace(ARTIFACT, environment={"NCCL_VERSION": "2.20.5"})
    assert find_nccl(base) == "2.20.5"
    assert find_nccl(replace(base, pip={"nvidia-nccl-cu12": "2.27.3"})) == "2.27.3"
