"""Which libcuda a program loads on a node whose driver is older than the one that its image was
made for (P1).

By each runtime and from each shell, with libraries made here in the places of NVIDIA's: the node's
driver, and the one in the image's compat/lib.real. What decides is NVIDIA's rule: a driver of an
older major than the image's, and cudaCheck.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from support.launching import RUNTIMES
from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.squashfs,
    pytest.mark.slurm,
    pytest.mark.timeout(900),  # three images are built first, beside six other lanes
]
OF_NODE, OF_IMAGE = "node", "image"
# Answers what a file of the test's says, and counts how often it was asked.
CUDA_CHECK = """\
#!/bin/sh
echo asked >>/opt/node/asked
exit "$(cat /opt/node/answer)"
"""
BUILD = """\
mkdir -p /usr/local/cuda/compat/lib.real /usr/local/nvidia/lib64
cd /tmp
printf 'const char *which(void) { return "image"; }\\n' >image.c
printf 'const char *which(void) { return "node"; }\\n' >node.c
gcc -shared -fPIC image.c -o /usr/local/cuda/compat/lib.real/libcuda.so.1
gcc -shared -fPIC node.c -o /usr/local/nvidia/lib64/libcuda.so.1
rm image.c node.c
"""
# Their images' own start looks at the node. By the others `launch` puts the look before the command
# where it asks for GPUs (tests/unit/launch), and no node here has one: it is put there by hand, as
# docs/explanation/forward-compatibility.md has it for srun.
BY_ITSELF = ("apptainer", "enroot")
PROBE = """\
import ctypes
which = ctypes.CDLL("libcuda.so.1").which
which.restype = ctypes.c_char_p
print("loaded", which().decode())
"""
FORM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Mon Jan  1 00:00:00 UTC 2026\n"
# CUDA and the driver of three of NVIDIA's PyTorch images (facts/ngc-pytorch.yaml).
IMAGES = {
    "24.11": ("12.6.3.001", "560.35.05"),
    "25.10": ("13.0.2.006", "580.95.05"),
    "26.07": ("13.3.1.008", "610.43.02"),
}


class Case(NamedTuple):
    """A node's driver, what cudaCheck answers there, and whose libcuda is loaded."""

    driver: str
    works: bool
    loads: str


# None of NVIDIA's own figures: the rule, at its edges.
CASES = {
    "24.11": [Case("535.104.05", True, OF_IMAGE), Case("535.104.05", False, OF_NODE), Case("560.28.03", True, OF_NODE),
              Case("580.65.06", True, OF_NODE)],
    "25.10": [Case("535.104.05", True, OF_IMAGE), Case("570.86.15", True, OF_IMAGE), Case("580.65.06", True, OF_NODE)],
    "26.07": [Case("580.95.05", True, OF_IMAGE), Case("580.95.05", False, OF_NODE), Case("615.65.02", True, OF_NODE)],
}  # fmt: skip


@pytest.fixture(scope="module")
def recipes(testbed: Testbed, small_base: str) -> Recipes:
    """Three images, made for three drivers; each is built when it is asked for."""
    found = Recipes(testbed, small_base, "forward-compat")
    for month, (cuda, driver) in IMAGES.items():
        environment = {
            "CUDA_VERSION": cuda,
            "CUDA_DRIVER_VERSION": driver,
            "LD_LIBRARY_PATH": "/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            # In the image, since Apptainer reads an image's environment before it hands on the
            # user's.
            "HPCSTACK_DRIVER_FILE": "/opt/node/version",
        }
        found.write(
            month,
            packages="{apt: [gcc, libc6-dev]}",
            run=json.dumps([{"name": "libraries", "command": BUILD}]),
            files=json.dumps(
                [{"path": "/usr/local/bin/cudaCheck", "content": CUDA_CHECK, "mode": "0755"}]
            ),
            environment=json.dumps(environment),
            launch="{mode: plain}",
        )
    testbed.give(str(found.folder / "work/probe.py").removeprefix(f"{testbed.home}/"), PROBE)
    return found


@pytest.mark.parametrize("month", IMAGES)
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.soak("a build for each image", but=lambda month: month == "25.10")
def test_p1_whose_libcuda_is_loaded(
    testbed: Testbed, recipes: Recipes, runtime: str, month: str
) -> None:
    """The probe is started by itself, by sh, by bash and by a login bash."""
    built = recipes.run("build", f"demo-{month}")
    assert built.returncode == 0, built.stderr
    work = recipes.folder / "work"
    words = (
        "python3 probe.py; sh -c 'python3 probe.py'; bash -c 'python3 probe.py'; bash -lc 'python3 "
        "probe.py'"
    )
    for number, case in enumerate(CASES[month]):
        checks = work / f"{runtime}-{month}-{number}"
        script = (
            'mkdir -p "$1" && rm -f "$1/asked" && printf %s "$2" >"$1/version" && printf %s "$3" '
            '>"$1/answer"'
        )
        testbed.bash(script, str(checks), FORM.format(case.driver), "0" if case.works else "1")
        launch = 'cd "$1" && shift && exec "$@"'
        looks = [] if runtime in BY_ITSELF else ["/opt/hpcstack/compat.sh"]
        # The user's newest launch stays that of other tests.
        argv = ["env", f"XDG_STATE_HOME={recipes.folder}/state", "hpcstack", "--site", str(recipes.folder / "site.yaml"),
                "--recipes", str(recipes.folder / "recipes"), "launch", f"demo-{month}", "--runtime", runtime,
                "--mount", f"{checks}:/opt/node", "-N1", "--ntasks-per-node=1", "--", *looks, "sh", "-c", words]  # fmt: skip
        done = testbed.bash(launch, str(work), *argv, check=False)
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stdout.splitlines() if line.startswith("loaded")]
        assert said == [f"loaded {case.loads}"] * 4, f"{case}: {done.stdout}\n{done.stderr}"
        asked = testbed.bash('cat "$1/asked" 2>/dev/null || true', str(checks)).stdout.split()
        older = int(case.driver.partition(".")[0]) < int(IMAGES[month][1].partition(".")[0])
        assert len(asked) == int(older), (
            "cudaCheck is asked once, and only where the driver is older"
        )
