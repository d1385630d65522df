"""What is rendered: whole files of every recipe against goldens, and what other tools read in them.

HPCSTACK_GOLDEN=write makes the goldens anew; then read the diff. A golden is all files of one
stack, one after another: six whole, each of another kind, and a digest of every other, so that a
person can read what an edit of a template changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.core.errors import BuildError
from hpcstack.lock.model import Lock
from hpcstack.preview import render_stack_files
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Stack
from hpcstack.render.image import render_environment_file
from hpcstack.render.readback import check_definition
from hpcstack.render.site_files import make_lent_files
from hpcstack.render.steps import plan_steps
from hpcstack.site.load import Site
from support.locks import example_lock

CATALOG = Catalog([data.find_data_folder("recipes")])
NAMES = sorted(CATALOG.names())
COMMON = (
    "/smoke/",
    "build/lib.sh",
    "build/guard.sh",
    "compat.sh",
    "build/conda.py",
)  # files of the package as they are
GOLDEN = Path(__file__).parents[2] / "golden"
PLATFORM = "linux/amd64"
WRITE = os.environ.get("HPCSTACK_GOLDEN") == "write"
# An NGC image with what it brings, a newer CUDA, a plain Debian, conda, a second framework, a CUDA
# base with MPI
WHOLE = (
    "pytorch-24.11",
    "pytorch-25.10",
    "python-3.12-mpi",
    "miniforge-26.3",
    "horovod-24.10",
    "openmpi-12.9",
)


def example_site() -> Site:
    places = {
        "store": "/cluster/hpcstack/store",
        "lock_dir": "/cluster/hpcstack/locks",
        "module_root": "/cluster/modules",
    }
    nodes = {
        "node_types": {"dgx": {"gpus": {"model": "H100", "count": 8}}},
        "partitions": {"gpu": {"node_type": "dgx", "default": True}},
    }
    return Site.model_validate({**places, **nodes, "mounts": ["/scratch:/scratch"]})


@pytest.fixture
def files(stack: Stack, lock: Lock) -> dict[str, str]:
    return render_stack_files(stack, lock, example_site(), PLATFORM)


def rendered(name: str) -> tuple[Stack, Lock, str, dict[str, str]]:
    """The stack NAME, its example lock, its first platform, and all its files."""
    stack = CATALOG.find(name).stack
    lock, platform = example_lock(stack), stack.base.platforms[0]
    return stack, lock, platform, render_stack_files(stack, lock, example_site(), platform)


def as_one(files: dict[str, str]) -> str:
    """FILES one after another, without those that are the package's own."""
    own = {path: text for path, text in files.items() if not any(part in path for part in COMMON)}
    return "".join(f"==== {path}\n{text}" for path, text in sorted(own.items()))


@pytest.mark.parametrize("full_name", WHOLE)
def test_whole_files_are_as_the_goldens(full_name: str) -> None:
    golden = GOLDEN / "rendered" / f"{full_name}.txt"
    text = as_one(rendered(full_name)[3])
    if WRITE:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert golden.read_text() == text


def test_every_other_stack_is_as_its_digest() -> None:
    others = [name for name in NAMES if name not in WHOLE]
    digests = {
        name: hashlib.sha256(as_one(rendered(name)[3]).encode()).hexdigest() for name in others
    }
    text = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    if WRITE:
        (GOLDEN / "rendered.sha256").write_text(text)
    assert (GOLDEN / "rendered.sha256").read_text() == text


def test_no_golden_is_left_over() -> None:
    assert sorted(
        path.name.removesuffix(".txt") for path in (GOLDEN / "rendered").iterdir()
    ) == sorted(WHOLE)


@pytest.mark.parametrize("full_name", NAMES)
def test_spython_reads_every_definition_back(full_name: str) -> None:
    stack, lock, platform, files = rendered(full_name)
    check_definition(stack, lock, platform, files["apptainer.def"])


@pytest.mark.shellcheck
def test_shellcheck_finds_nothing_in_any_script_of_any_recipe(tmp_path: Path) -> None:
    judged: set[str] = set()  # most recipes share most of their scripts
    for full_name in NAMES:
        for path, text in rendered(full_name)[3].items():
            is_script = "/smoke/" not in path and (text.startswith("#!") or path.endswith(".sh"))
            if is_script and text not in judged:
                judged.add(text)
                (tmp_path / full_name / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / full_name / path).write_text(text)
    scripts = sorted(str(path) for path in tmp_path.rglob("*") if path.is_file())
    done = subprocess.run(
        ["shellcheck", "--severity=warning", "--exclude=SC2155", *scripts],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[:4000]
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.lua
def test_luac_takes_every_modulefile(tmp_path: Path) -> None:
    for full_name in NAMES:
        (tmp_path / f"{full_name}.lua").write_text(rendered(full_name)[3]["modulefile.lua"])
    luac = shutil.which("luac5.3") or shutil.which("luac5.4") or "luac"
    subprocess.run([luac, "-p", *map(str, sorted(tmp_path.glob("*.lua")))], check=True)


@pytest.mark.tcl
@pytest.mark.parametrize("full_name", NAMES)
def test_tcl_runs_every_modulefile(full_name: str, tmp_path: Path) -> None:
    """A Tcl with the commands of Environment Modules as stubs runs it, and says what was set."""
    stack, _, _, files = rendered(full_name)
    stubs = "foreach c {module-whatis conflict prepend-path} { proc $c {args} {} }\n"
    stubs += 'proc module-info {args} { return 0 }\nproc setenv {n v} { puts "$n=$v" }\n'
    path = tmp_path / "m.tcl"
    path.write_text(stubs + files["modulefile.tcl"] + "ModulesHelp\n")
    done = subprocess.run(["tclsh", str(path)], capture_output=True, text=True, check=True)
    assert f"HPCSTACK_STACK={stack.full_name}\n" in done.stdout
    assert stack.summary in done.stderr


@pytest.mark.parametrize("full_name", NAMES)
def test_dockers_own_parser_reads_every_dockerfile(full_name: str) -> None:
    import dockerfile

    stack, lock, platform, files = rendered(full_name)
    read = dockerfile.parse_string(files["Dockerfile"])
    assert read[0].value == (
        f"{stack.base.registry}/{stack.base.repository}@{lock.platform(platform).digest}",
    )
    runs = [command.value[0] for command in read if command.cmd.lower() == "run"]
    wanted = plan_steps(stack, lock.platform(platform), lock.sources)
    assert len(runs) == len(wanted)
    assert all(line in run for step, run in zip(wanted, runs, strict=True) for line in step.lines)


def test_the_files_that_the_chain_promises(files: dict[str, str]) -> None:
    assert {
        "apptainer.def",
        "Dockerfile",
        "enroot.sh",
        "modulefile.lua",
        "srun.sh",
        "sbatch.sh",
    } <= set(files)


def test_rendering_twice_gives_the_same_bytes(
    stack: Stack, lock: Lock, files: dict[str, str]
) -> None:
    assert render_stack_files(stack, lock, example_site(), PLATFORM) == files


def test_a_definition_that_says_something_else_is_refused(
    stack: Stack, lock: Lock, files: dict[str, str]
) -> None:
    with pytest.raises(BuildError, match="with the base"):
        check_definition(
            stack, lock, PLATFORM, files["apptainer.def"].replace("@sha256:", "@sha512:")
        )
    for step in plan_steps(stack, lock.platform(PLATFORM), lock.sources):
        with pytest.raises(BuildError, match="reads back without"):
            check_definition(
                stack, lock, PLATFORM, files["apptainer.def"].replace(step.lines[0], "true")
            )


@pytest.mark.parametrize("place", [str(Path.cwd()), __file__])
def test_nothing_rendered_holds_a_place_of_this_machine(files: dict[str, str], place: str) -> None:
    assert place not in "\n".join(files.values())


def test_the_base_and_the_recipe_meet_in_etc_environment(stack: Stack, lock: Lock) -> None:
    text = render_environment_file(lock.platform(PLATFORM), stack)
    assert "HF_HUB_DISABLE_TELEMETRY=1\n" in text
    assert "NVIDIA_VISIBLE_DEVICES=all\n" in text


def test_a_site_lends_only_what_it_has(site: Site) -> None:
    assert "export" not in make_lent_files(site)["hpcstack-site.sh"]
    build = {
        "proxy": {"http": "http://proxy:3128", "no": "localhost"},
        "pip": {"index_url": "https://user:secret@mirror/simple"},
        "ca_bundle": "/etc/ca.pem",
        "apt": {"mirrors": {"http://deb.debian.org/debian": "http://mirror/debian"}},
    }
    lent = make_lent_files(
        site.model_copy(update={"build": type(site.build).model_validate(build)})
    )["hpcstack-site.sh"]
    for part in (
        "http_proxy=http://proxy:3128",
        "PIP_INDEX_URL=https://user:secret@mirror/simple",
        "PIP_CERT=/mnt/",
        "apt.conf",
    ):
        assert part in lent
    subprocess.run(["bash", "-n"], input=lent, text=True, check=True)


def test_no_file_of_an_image_names_the_mirror(stack: Stack, lock: Lock, site: Site) -> None:
    mirrored = site.model_copy(update={"registries": Site.model_validate({
        "store": "/s", "lock_dir": "/l", "module_root": "/m",
        "registries": {"nvcr.io": {"mirror": "cache.site:5000", "plain_http": True}}}).registries})  # fmt: skip
    files = render_stack_files(stack, lock, mirrored, PLATFORM)
    assert [path for path, text in files.items() if "cache.site" in text] == []


def test_the_template_version_is_that_of_the_templates() -> None:
    """A lock says which templates it was made for: when they change, TEMPLATE_VERSION goes up, and
    this digest with it.
    """
    import hashlib

    from hpcstack.lock.model import TEMPLATE_VERSION

    files = rendered("pytorch-24.11")[3]
    own = {
        path: text
        for path, text in files.items()
        if path in ("apptainer.def", "Dockerfile", "enroot.sh")
    }
    before = (
        "resolve.sh",
        "fetch.sh",
        "build_requirements.py",
    )  # run inside a base, and leave nothing in an image
    beside = (
        "mount.sh",
        "overlay.sh",
        "enclose.py",
        "supervise.py",
    )  # run by the machine that builds
    images = (
        path
        for path in sorted(data.find_data_folder("images").iterdir())
        if path.is_file() and path.name not in (*before, *beside)
    )
    own |= {path.name: path.read_text() for path in images}
    digest = hashlib.sha256(
        "".join(f"{name}\0{text}\0" for name, text in sorted(own.items())).encode()
    ).hexdigest()[:16]
    record = GOLDEN / "template-version.txt"
    written_for, _, was = record.read_text().strip().partition(" ")
    if written_for == TEMPLATE_VERSION and was != digest:
        pytest.fail("the templates have changed: raise TEMPLATE_VERSION in lock/model.py")
    if os.environ.get("HPCSTACK_GOLDEN") == "write":
        record.write_text(f"{TEMPLATE_VERSION} {digest}\n")
    assert record.read_text() == f"{TEMPLATE_VERSION} {digest}\n", (
        "raise TEMPLATE_VERSION in lock/model.py"
    )


def test_condas_installer_is_taken_by_its_hash() -> None:
    """N17: a locked stack's own tools are locked, too."""
    text = (data.find_data_folder("images") / "lib.sh").read_text()
    (install,) = re.findall(r"python3 -m pip install (?:[^\n]*\\\n)*[^\n]*rattler\.txt", text)
    assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(install.split())
    (wanted,) = re.findall(r"HPCSTACK_RATTLER='(.*?)'", text, re.DOTALL)
    assert re.fullmatch(r"py-rattler==[0-9.]+(\s+--hash=sha256:[0-9a-f]{64}){2}", wanted)


def test_r8_apptainer_build_reads_no_script_for_nodes(
    files: dict[str, str], tmp_path: Path
) -> None:
    """As Apptainer runs a %post with -c (1.5, internal/pkg/build/util.go): sh -ex -c "ARGUMENTS
    SCRIPT". NVIDIA's images name a script in BASH_ENV, which on a node with a GPU takes compat/lib
    out of the image.
    """
    found = re.search(r"^%post -c (.*)$", files["apptainer.def"], re.MULTILINE)
    assert found
    (tmp_path / "for-nodes").write_text(f"touch {tmp_path}/was-read\n")
    (tmp_path / "script").write_text(f"touch {tmp_path}/ran\n")
    named = {
        "PATH": "/usr/bin:/bin",
        "BASH_ENV": f"{tmp_path}/for-nodes",
        "ENV": f"{tmp_path}/for-nodes",
    }
    subprocess.run(
        ["/bin/sh", "-ex", "-c", f"{found[1]} {tmp_path}/script"],
        env=named,
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "ran").exists()
    assert not (tmp_path / "was-read").exists()
