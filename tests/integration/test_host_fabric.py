"""Libraries of the nodes' own on the testbed: loaded in place of the image's, by each runtime and
by each way to start.

The library is a made-up one of the name of one that the image has, so that a rank says which of the
two it loaded.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.launching import RUNTIMES, STACK
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs("second"), pytest.mark.slurm, pytest.mark.gcc]
NAME = "libbz2.so.1.0"  # every Debian has it: dpkg wants it
SOURCE = '#include <stdlib.h>\nconst char *BZ2_bzlibVersion(void) { return getenv("HOME") ? "the node\'s" : "the node\'s"; }\n'
ASK = """\
import ctypes, os, socket
version = ctypes.CDLL("libbz2.so.1.0").BZ2_bzlibVersion
version.restype = ctypes.c_char_p
said = socket.gethostname(), version().decode(), os.environ.get("FI_PROVIDER"), os.path.exists("/etc/hpcstack-fabric.conf")
os.write(1, f"{said}\\n".encode())
"""
OF_NODES = ["('node1', \"the node's\", 'cxi', True)", "('node2', \"the node's\", 'cxi', True)"]


def said(output: str) -> list[str]:
    """What the ranks have said; a login shell of the user's may speak, too."""
    return sorted(line for line in output.splitlines() if line.startswith("('"))


class Rig:
    """A folder of libraries as nodes have it, beside a site.yaml that brings them."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.folder = testbed.folder / "host-fabric"
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "lib").mkdir(parents=True)
        self.library = self.folder / "lib" / NAME
        argv = [
            "gcc",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{NAME}",
            "-x",
            "c",
            "-",
            "-o",
            str(self.library),
        ]
        subprocess.run(argv, input=SOURCE, text=True, check=True)
        (self.folder / "fabric.conf").write_text("x\n")
        self.site = self.write_site()

    def write_site(
        self, library: Path | None = None, mapped: str = NAME, name: str = "site"
    ) -> str:
        """The path of the testbed's site.yaml with LIBRARY (or the folder) brought, and MAPPED
        wanted.
        """
        injection = {
            "reason": "the node's own libfabric",
            "libraries": [str(library or self.folder / "lib")],
            "files": [f"{self.folder}/fabric.conf:/etc/hpcstack-fabric.conf"],
            "settings": {"FI_PROVIDER": {"value": "cxi", "reason": "Slingshot's"}},
            "mapped": [mapped],
        }
        text = (self.testbed.folder / "etc/site.yaml").read_text()
        fabric = json.dumps({"injections": {"cxi": injection}})
        return str(self.testbed.give(f"tests/host-fabric/{name}.yaml", f"{text}fabric: {fabric}\n"))

    @property
    def state_pairs(self) -> list[str]:
        return [f"XDG_STATE_HOME={self.testbed.home}/tests/host-fabric/state"]

    def run(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        script = 'cd tests/host-fabric && exec "$@"'
        pairs = [*self.state_pairs, *(f"{name}={value}" for name, value in env.items())]
        return self.testbed.run(
            "bash", "-c", script, "bash", "env", f"HPCSTACK_SITE={self.site}", *pairs, *argv
        )


@pytest.fixture(scope="module")
def rig(testbed: Testbed, built: dict[str, Any]) -> Rig:
    made = Rig(testbed)
    testbed.give("tests/host-fabric/ask.py", ASK)
    return made


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_launch_on_two_nodes_loads_the_nodes_own(rig: Rig, runtime: str) -> None:
    words = (
        "--mode",
        "plain",
        "--runtime",
        runtime,
        "--ntasks-per-node=1",
        "--",
        "python3",
        "ask.py",
    )
    done = rig.run("hpcstack", "launch", STACK, "-N2", *words)
    assert said(done.stdout) == OF_NODES, done.stdout + done.stderr


@pytest.mark.apptainer
def test_one_node_has_the_images_own(rig: Rig) -> None:
    words = ("--mode", "plain", "--runtime", "apptainer", "--", "python3", "ask.py")
    done = rig.run("hpcstack", "launch", STACK, "-N1", *words)
    assert "the node's" not in done.stdout and "None, False" in done.stdout, (
        done.stdout + done.stderr
    )


@pytest.mark.apptainer
def test_the_dry_run_says_what_is_brought_and_why(rig: Rig) -> None:
    done = rig.run(
        "hpcstack",
        "launch",
        STACK,
        "-N2",
        "--dry-run",
        "--all",
        "--runtime",
        "apptainer",
        "--",
        "ask.py",
    )
    assert "the node's own libfabric (fabric.injections.cxi)" in done.stdout, done.stdout
    assert f"{rig.folder}/lib:/opt/hpcstack-host/cxi.1" in done.stdout


@pytest.mark.apptainer
def test_a_library_for_a_newer_system_is_refused_before_nodes_are_asked_for(rig: Rig) -> None:
    newer = rig.folder / "newer" / NAME
    newer.parent.mkdir(exist_ok=True)
    newer.write_bytes(rig.library.read_bytes().replace(b"GLIBC_2.2.5", b"GLIBC_2.999"))
    site = rig.write_site(newer, name="newer")
    done = rig.run(
        "hpcstack", "--site", site, "launch", STACK, "-N2", "--runtime", "apptainer", "--", "ask.py"
    )
    assert done.returncode and f"{newer} wants glibc 2.999, and the image has 2." in done.stderr, (
        done.stderr
    )


@pytest.mark.apptainer
def test_the_suite_says_where_ranks_have_them_from(rig: Rig) -> None:
    words = (
        "test",
        STACK,
        "-N2",
        "--nproc-per-node=1",
        "--runtime",
        "apptainer",
        "--only",
        "fabric.injected",
        "--json",
        "--suite-from-host",
    )
    (outcome,) = json.loads(rig.run("hpcstack", *words).stdout)["outcomes"]
    assert outcome["status"] == "PASS", outcome
    assert outcome["measured"].startswith(f"/opt/hpcstack-host/cxi.1/{NAME}: "), outcome

    other = rig.write_site(mapped="libnccl-net.so", name="other")
    (outcome,) = json.loads(rig.run("hpcstack", "--site", other, *words).stdout)["outcomes"]
    assert (
        outcome["status"] == "FAIL"
        and "node1: libnccl-net.so cannot be loaded" in outcome["measured"]
    ), outcome

    (outcome,) = json.loads(rig.testbed.run("env", *rig.state_pairs, "hpcstack", *words).stdout)[
        "outcomes"
    ]
    assert outcome["status"] == "SKIP", outcome


@pytest.fixture(scope="module")
def rendered(rig: Rig, built: dict[str, Any]) -> Path:
    """What `hpcstack render` writes at this site, with the image's real path."""
    folder = rig.testbed.home / "tests/host-fabric/rendered"
    made = rig.run("bash", "-c", f"rm -rf {folder}; hpcstack render {STACK} --output {folder}")
    assert made.returncode == 0, made.stderr
    script = 'cd "$1" && sed -i "s#[^\'= ]*/images/KEY/image.sqsh#$2#g" libexec/run && chmod +x libexec/run srun.sh'
    rig.testbed.bash(script, str(folder), built["image"])
    return folder


@pytest.mark.parametrize("runtime", RUNTIMES[:3])
def test_a_modules_wrapper_in_a_job_of_two_nodes_loads_the_nodes_own(
    rig: Rig, rendered: Path, runtime: str
) -> None:
    call = f"HPCSTACK_RUNTIME={runtime} {rendered}/libexec/run python3 ask.py"
    job = (
        f"#!/bin/sh\n{call}\n"
        if runtime == "pyxis"
        else f"#!/bin/sh\nsrun -N2 --ntasks-per-node=1 sh -c '{call}'\n"
    )
    rig.testbed.give("tests/host-fabric/job.sh", job)
    done = rig.run("bash", "-c", "sbatch --quiet --wait -N2 -o job.out job.sh; cat job.out")
    assert said(done.stdout) == (OF_NODES[:1] if runtime == "pyxis" else OF_NODES), done.stdout


@pytest.mark.apptainer
def test_a_wrapper_where_the_node_has_no_such_library_has_the_images_own(
    rig: Rig, rendered: Path
) -> None:
    """As on a cluster whose other nodes have another fabric: a modulefile does not know which it
    will meet.
    """
    away = (
        f"sed 's#{rig.folder}/lib#/nowhere/lib#g' {rendered}/libexec/run >{rendered}/libexec/other"
    )
    job = (
        f"srun -N2 --ntasks-per-node=1 sh -c 'HPCSTACK_RUNTIME=apptainer sh "
        f"{rendered}/libexec/other python3 ask.py'"
    )
    done = rig.run("bash", "-c", f"{away}; {job}")
    assert done.stdout.count("None, False") == 2 and "the node's" not in done.stdout, (
        done.stdout + done.stderr
    )


@pytest.mark.parametrize("runtime", RUNTIMES[:2])
def test_the_script_that_users_copy_loads_the_nodes_own(
    rig: Rig, rendered: Path, built: dict[str, Any], runtime: str
) -> None:
    """Its mode is torchrun's, a rank a node."""
    chosen = f"sed -i 's/^if srun --help.*/runtime={runtime}/' {rendered}/srun.sh"
    call = f"RANKS_PER_NODE=1 {rendered}/srun.sh -N 2 -- ask.py"
    done = rig.run("bash", "-c", f"{chosen}; {call}", HPCSTACK_IMAGE=built["image"])
    assert said(done.stdout) == OF_NODES, done.stdout + done.stderr
