"""The chain, as the ordinary user, on the testbed: lock, render, build, publish, module, launch,
test.
"""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from conftest import HERE
from support.testbed import Testbed

STACK = "pytorch-24.11"
TRAIN = """\
import json, os, socket, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(json.dumps({"rank": dist.get_rank(), "world": dist.get_world_size(), "host": socket.gethostname(),
    "sum": total.item(), "arguments": sys.argv[1:], "torch": torch.__version__, "cwd": os.getcwd(),
    "void": os.environ.get("NVIDIA_VISIBLE_DEVICES"), "hub": os.environ.get("HF_HUB_DISABLE_TELEMETRY")}) + "\\n", end="", flush=True)
dist.destroy_process_group()
"""
RUNTIMES = [
    pytest.param("pyxis", marks=[pytest.mark.pyxis, pytest.mark.enroot]),
    pytest.param("apptainer", marks=pytest.mark.apptainer),
]

pytestmark = [pytest.mark.testbed, pytest.mark.slurm]


def documents(text: str) -> list[dict[str, Any]]:
    """The JSON objects in TEXT, also where two ranks wrote on one line."""
    out, decoder, place = [], json.JSONDecoder(), text.find("{")
    while place >= 0:
        document, end = decoder.raw_decode(text, place)
        out.append(document)
        place = text.find("{", end)
    return sorted(out, key=lambda d: d["rank"])


def test_list_names_the_recipes(testbed: Testbed) -> None:
    assert {STACK, "pytorch-25.10"} <= {row["name"] for row in testbed.json("list")}


@pytest.mark.registry
def test_lock_says_what_the_base_is(testbed: Testbed) -> None:
    document = testbed.json("lock", STACK)
    assert document["base"]["answered_by"] == testbed.ngc
    assert (
        document["base"]["platforms"]["linux/amd64"]["environment"]["PYTORCH_VERSION"]
        == "2.6.0a0+df5bbc0"
    )
    assert testbed.hpcstack("lock", STACK, "--check").returncode == 0


def test_render_writes_all_files(testbed: Testbed) -> None:
    files = testbed.bash(
        f"rm -rf rendered && hpcstack render {STACK} -o rendered >&2 && cd rendered && find . "
        f"-maxdepth 1 -type f | sort"
    ).stdout.split()
    assert files == [
        "./Dockerfile",
        "./apptainer.def",
        "./enroot.sh",
        "./modulefile.lua",
        "./modulefile.tcl",
        "./sbatch.sh",
        "./srun.sh",
    ]


@pytest.mark.apptainer
def test_a_second_build_is_no_build(testbed: Testbed, built: dict[str, Any]) -> None:
    again = testbed.json("build", STACK)
    assert (again["built"], again["sha256"]) == (False, built["sha256"])
    assert "Debian" in again["stand_in"]


def test_the_image_holds_nvidias_torch_and_what_was_asked_for(built: dict[str, Any]) -> None:
    assert built["pip"]["torch"] == "2.6.0a0+df5bbc09d1.nv24.11"
    assert built["pip"]["deepspeed"] == "0.19.8"
    assert "infiniband-diags" in built["apt"]


@pytest.mark.apptainer
def test_apptainer_runs_the_image(testbed: Testbed, built: dict[str, Any]) -> None:
    script = "import torch, os; print(torch.__version__, os.environ['HF_HUB_DISABLE_TELEMETRY'])"
    done = testbed.run(
        "apptainer", "--quiet", "exec", built["image"], "python3", "-c", script, check=True
    )
    assert done.stdout.split() == ["2.6.0a0+df5bbc09d1.nv24.11", "1"]


@pytest.mark.pyxis
@pytest.mark.enroot
def test_pyxis_runs_the_same_file(testbed: Testbed, built: dict[str, Any]) -> None:
    script = (
        "import torch, os; print(torch.__version__, os.environ['HF_HUB_DISABLE_TELEMETRY'], "
        "os.environ['CUDA_VERSION'])"
    )
    done = testbed.bash(
        (
            'NVIDIA_VISIBLE_DEVICES=void srun --container-image="$1" '
            '--container-env=NVIDIA_VISIBLE_DEVICES python3 -c "$2"'
        ),
        built["image"],
        script,
    )
    assert done.stdout.split() == ["2.6.0a0+df5bbc09d1.nv24.11", "1", "12.6.3.001"]


@pytest.mark.apptainer
def test_layers_were_merged_as_oci_says(testbed: Testbed, built: dict[str, Any]) -> None:
    script = (
        "ls /opt/pytorch/examples; ls -d /usr/local/lib/python3.11/dist-packages/torch-*; stat -c "
        "%h /opt/nvidia/nvidia_entrypoint.sh; find /dev -mindepth 1 -xdev -type b -o -type c | wc "
        "-l"
    )
    done = testbed.run("unsquashfs", "-ll", built["image"], check=True)
    names = [
        line.split()[-1]
        for line in done.stdout.splitlines()
        if line.startswith(("-", "d", "l", "c", "b"))
    ]
    assert "squashfs-root/opt/pytorch/examples/README.md" in names
    assert not any(
        "hidden-by-the-opaque" in name or "torch-2.13.0" in name or ".wh." in name for name in names
    ), script
    assert not [line for line in done.stdout.splitlines() if line[:1] in ("b", "c")]


@pytest.mark.lmod
def test_the_module_loads_and_unloads_without_a_trace(
    testbed: Testbed, published: dict[str, Any], built: dict[str, Any]
) -> None:
    done = testbed.bash(
        'env | grep -v -E "^(_|LMOD|__LMOD|_ModuleTable|LOADEDMODULES|_LMFILES_|BASH_FUNC)" | sort '
        ">before;"
        'module load pytorch/24.11; command -v torchrun deepspeed; echo "$HPCSTACK_IMAGE";'
        "module unload pytorch; env | grep -v -E "
        '"^(_|LMOD|__LMOD|_ModuleTable|LOADEDMODULES|_LMFILES_|BASH_FUNC)" | sort >after; diff '
        "before after"
    )
    release = f"{testbed.folder}/site/store/releases/{published['release']}"
    assert done.stdout.split() == [
        f"{release}/bin/torchrun",
        f"{release}/bin/deepspeed",
        built["image"],
    ]


@pytest.mark.lmod
def test_spider_finds_what_is_inside(testbed: Testbed, published: dict[str, Any]) -> None:
    assert "pytorch/24.11" in testbed.bash("module spider deepspeed/0.19.8 2>&1").stdout
    assert "STAND-IN" in testbed.bash("module help pytorch/24.11 2>&1").stdout


@pytest.mark.lmod
@pytest.mark.slurm
@pytest.mark.parametrize(
    "how",
    [
        "On two nodes, now",
        pytest.param("By srun with Pyxis", marks=pytest.mark.pyxis),
        pytest.param("By srun and Apptainer", marks=pytest.mark.apptainer),
    ],
)
def test_a_line_of_modules_help_runs_as_it_is_printed(
    testbed: Testbed, published: dict[str, Any], how: str
) -> None:
    """researcher 11: srun's line with train.py could not open /workspace/train.py: no mount, no
    folder.
    """
    program = "import os, torch\nprint('at', os.path.basename(os.getcwd()), torch.__version__)\n"
    testbed.give("tests/helped/train.py", program)
    said = testbed.bash("module help pytorch/24.11 2>&1").stdout
    (line,) = (one.partition(":")[2].strip() for one in said.splitlines() if one.startswith(how))
    line = line.replace("COMMAND", "python3 train.py")
    done = testbed.bash(f"cd tests/helped && module load pytorch/24.11 && {line}")
    assert done.stdout.splitlines() == ["at helped 2.6.0a0+df5bbc09d1.nv24.11"] * 2, (
        line,
        done.stdout,
        done.stderr,
    )


def test_publishing_the_same_image_again_makes_no_release(
    testbed: Testbed, published: dict[str, Any]
) -> None:
    again = testbed.json("publish", STACK)
    assert (again["new"], again["release"]) == (False, published["release"])


@pytest.mark.lmod
@pytest.mark.apptainer
def test_a_wrapper_passes_arguments_input_and_status(
    testbed: Testbed, published: dict[str, Any]
) -> None:
    testbed.give("w.py", "import sys; print(sys.argv[1:], sys.stdin.read()); sys.exit(9)")
    done = testbed.bash(
        'module load pytorch/24.11; echo in | torchrun --no-python python3 w.py "a b" "c;d"; '
        'echo "rc $?"; echo x | srun -n1 "$(command -v torchrun)" --help >/dev/null; echo "rc $?"'
    )
    assert "['a b', 'c;d'] in" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("rc")] == ["rc 1", "rc 0"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_launch_starts_torchrun_on_both_nodes(
    testbed: Testbed, published: dict[str, Any], runtime: str
) -> None:
    testbed.give("train.py", TRAIN)
    done = testbed.hpcstack(
        "launch",
        STACK,
        "-N",
        "2",
        "--nproc-per-node",
        "2",
        "--runtime",
        runtime,
        "--",
        "train.py",
        "a b",
        "$X;{{y}}",
    )
    ranks = documents(done.stdout)
    assert [d["rank"] for d in ranks] == [0, 1, 2, 3]
    assert [d["host"] for d in ranks] == ["node1", "node1", "node2", "node2"]
    assert {d["sum"] for d in ranks} == {10.0}
    assert ranks[0]["arguments"] == ["a b", "$X;{{y}}"]
    assert {(d["void"], d["hub"], d["torch"]) for d in ranks} == {
        ("void", "1", "2.6.0a0+df5bbc09d1.nv24.11")
    }
    assert {d["cwd"] for d in ranks} == {str(testbed.home)}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_launch_returns_the_steps_own_status(
    testbed: Testbed, built: dict[str, Any], runtime: str
) -> None:
    done = testbed.hpcstack(
        "launch",
        STACK,
        "--mode",
        "plain",
        "--runtime",
        runtime,
        "--",
        "sh",
        "-c",
        "exit 7",
        check=False,
    )
    assert done.returncode == 7


PROVEN = {
    "node.image", "node.torch", "node.shm", "node.same", "fabric.tools", "io.bandwidth", "io.metadata", "io.small", "io.lock",
    "io.shared", "tasks.exchange", "nccl.gloo", "nccl.gloo-bandwidth", "nccl.gloo-pairs", "ddp.placement", "ddp.fp32",
    "ddp.buckets", "ddp.autocast", "fsdp.fsdp2", "deepspeed.zero1", "deepspeed.zero2", "deepspeed.zero3", "parallel.tensor",
    "parallel.pipeline", "parallel.mesh", "train.checkpointing", "train.attention", "train.loader", "train.profiler",
    "train.resume", "train.reshard", "train.digits", "scaling.strong", "scaling.weak",
}  # fmt: skip


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_suite_proves_ddp_and_deepspeed_on_two_nodes(
    testbed: Testbed, built: dict[str, Any], runtime: str
) -> None:
    document = testbed.json("test", STACK, "-N", "2", "--runtime", runtime, "--tier", "standard")
    status = {outcome["code"]: outcome["status"] for outcome in document["outcomes"]}
    assert document["verdict"] == "PASS", document
    assert document["nodes"] == ["node1", "node2"]
    assert document["virtual_nodes"]
    assert document["stand_in"]
    assert {code for code, one in status.items() if one == "PASS"} >= PROVEN
    assert set(status.values()) == {"PASS", "SKIP"}
    for code in ("node.driver", "node.gpus", "nccl.exact", "nccl.bandwidth", "fabric.hcas"):
        assert status[code] == "SKIP", code
    shown = testbed.hpcstack("report", document["folder"]).stdout
    assert "STAND-IN" in shown
    assert "VIRTUAL" in shown
    suite = ElementTree.fromstring(
        testbed.hpcstack("report", document["folder"], "--junit", "-").stdout.split("\n", 1)[1]
    )
    assert suite.get("skipped") == str(sum(1 for value in status.values() if value == "SKIP"))


@pytest.mark.apptainer
def test_nothing_but_skip_is_not_a_pass(testbed: Testbed, built: dict[str, Any]) -> None:
    document = testbed.json(
        "test", STACK, "--runtime", "apptainer", "--only", "node.driver,node.gpus", check=False
    )
    assert document["verdict"] == "SKIP"
    assert (
        testbed.hpcstack(
            "test", STACK, "--runtime", "apptainer", "--only", "node.driver", check=False
        ).returncode
        == 1
    )


EXACT = """\
import torch
from hpcstack_smoke.collectives.exact import make_summed
from hpcstack_smoke.context import Context
for world in (2, 8, 128, 129, 1000, 9999):
    context = Context(0, world, 0, 1, "gloo", False, torch.device("cpu"))
    total = sum(make_summed(context, rank, torch.float32) for rank in range(world))
    assert 0 < total.min() and total.max() <= 256, (world, total.min(), total.max())
    assert not torch.equal(make_summed(context, 0, torch.float32), make_summed(context, 1, torch.float32))
"""


@pytest.mark.apptainer
def test_sums_prove_something_and_are_exact_at_any_size(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    testbed.run(
        "env",
        "APPTAINERENV_PYTHONPATH=/opt/hpcstack/smoke",
        "apptainer",
        "--quiet",
        "exec",
        built["image"],
        "python3",
        "-c",
        EXACT,
        check=True,
    )


@pytest.mark.apptainer
def test_gpus_that_are_expected_and_missing_are_no_pass(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    """A site that says H100, on nodes without: not one check of a GPU may pass or be skipped away."""
    site = (
        (testbed.folder / "etc/site.yaml")
        .read_text()
        .replace("model: virtual", "model: H100")
        .replace("count: 4", "count: 2")
    )
    path = testbed.give("tests/h100.yaml", site)
    argv = (
        "hpcstack",
        "--site",
        str(path),
        "test",
        STACK,
        "--runtime",
        "apptainer",
        "--only",
        "node,ddp",
        "--json",
    )
    done = testbed.run(*argv)
    document = json.loads(done.stdout)
    status = {outcome["code"]: outcome["status"] for outcome in document["outcomes"]}
    assert (done.returncode, document["verdict"]) == (1, "ERROR")
    assert (status["node.driver"], status["node.gpus"], status["ddp.fp32"]) == (
        "FAIL",
        "FAIL",
        "ERROR",
    )
    evidence = next(
        outcome["evidence"] for outcome in document["outcomes"] if outcome["code"] == "ddp.fp32"
    )
    assert re.search(r"torch sees 0 GPU\(s\) on node[12], and 2 ranks want one each", evidence), (
        evidence
    )


@pytest.mark.apptainer
def test_a_report_names_the_suite_that_ran(testbed: Testbed, built: dict[str, Any]) -> None:
    argv = ("test", STACK, "--runtime", "apptainer", "--only", "node.image")
    images = testbed.json(*argv)
    assert images["suite"] == built["suite"]
    assert not images["suite_from_host"]
    assert testbed.json(*argv, "--suite-from-host")["suite_from_host"]


def test_a_check_that_is_not_there_is_refused(testbed: Testbed) -> None:
    done = testbed.hpcstack("test", STACK, "--only", "ddp.fp23", check=False)
    assert done.returncode == 2
    assert "no check or family 'ddp.fp23' (did you mean 'ddp.fp32'?)" in done.stderr


@pytest.mark.lmod
@pytest.mark.apptainer
def test_a_loaded_module_is_launched_without_its_recipe(
    testbed: Testbed, published: dict[str, Any]
) -> None:
    done = testbed.bash(
        "module load pytorch/24.11; hpcstack launch pytorch-24.11 --mode plain --runtime "
        "apptainer -- hostname 2>&1"
    )
    assert f"module {published['release']}" in done.stdout
    assert done.stdout.splitlines()[-1] in ("node1", "node2"), "whichever is free"


@pytest.mark.lmod
@pytest.mark.parametrize("script", ["srun.sh -N 2 --", "sbatch"])
@pytest.mark.soak("sbatch.sh runs a step as srun.sh does", but=lambda script: script == "sbatch")
def test_the_scripts_that_users_copy_run(
    testbed: Testbed, published: dict[str, Any], script: str
) -> None:
    testbed.give("train.py", TRAIN)
    prepare = (
        f"rm -rf copied && hpcstack render {STACK} -o copied >&2 && cd copied && cp ../train.py . "
        f"&& module load pytorch/24.11;"
    )
    if script == "sbatch":
        run = "sbatch --wait --output=out.txt sbatch.sh train.py >&2; cat out.txt"
    else:
        run = f"./{script} train.py"
    ranks = documents(testbed.bash(f"{prepare} {run}").stdout)
    assert [d["host"] for d in ranks] == ["node1", "node2"]
    assert {d["sum"] for d in ranks} == {3.0}


@pytest.mark.enroot
def test_the_enroot_script_builds_an_image_that_runs(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    """Slow: imports the base by Enroot.

    The registry is named as a mirror, since Enroot knows none.
    """
    lock = json.loads((testbed.folder / f"site/locks/{STACK}.lock.json").read_text())
    platform, base = lock["base"]["platforms"]["linux/amd64"], lock["base"]
    uri = f"docker://{base['answered_by']}#{base['repository']}:{platform['digest']}"
    done = testbed.bash(
        "set -e; rm -rf enroot-build && hpcstack render pytorch-24.11 -o enroot-build >&2 && cd "
        "enroot-build;"
        'mkdir lent && cp "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" lent/ca.pem;'
        'echo "export PIP_CERT=/mnt/ca.pem" >lent/hpcstack-site.sh;'
        "export ENROOT_DATA_PATH=$PWD/data ENROOT_RUNTIME_PATH=$PWD/run "
        "ENROOT_CACHE_PATH=$PWD/cache ENROOT_TEMP_PATH=$PWD;"
        f"export CURL_CA_BUNDLE={testbed.ca_bundle};"
        f'HPCSTACK_LENT=$PWD/lent HPCSTACK_BASE="{uri}" ./enroot.sh out.sqsh >&2;'
        'apptainer --quiet exec out.sqsh python3 -c "import deepspeed, torch; '
        'print(torch.__version__)" | tail -n1; rm -rf "$PWD"'
    )
    assert done.stdout.split() == ["2.6.0a0+df5bbc09d1.nv24.11"]


def test_the_golden_locks_are_of_stand_ins_and_of_todays_recipes() -> None:
    for path in sorted((HERE / "golden/locks").glob("*.json")):
        assert "stands in for" in path.read_text()
