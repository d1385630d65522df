"""What is rendered: whole files against goldens, read back by other tools.

HPCSTACK_GOLDEN=write makes the goldens anew; then read the diff.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcstack.errors import BuildError
from hpcstack.lock.model import Lock
from hpcstack.render.image import environment_file
from hpcstack.render.lend import lent_files, registries_conf
from hpcstack.render.module import modulerc
from hpcstack.render.readback import check
from hpcstack.render.stack import stack_files
from hpcstack.render.steps import steps
from hpcstack.site import Site
from hpcstack.spec.model import Stack

GOLDEN = Path(__file__).parents[1] / "golden"
PLATFORM = "linux/amd64"


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
    return stack_files(stack, lock, example_site(), PLATFORM)


def own(files: dict[str, str]) -> dict[str, str]:
    """Without the smoke suite and lib.sh, which are files of the package as they are."""
    return {path: text for path, text in files.items() if "/smoke/" not in path and not path.endswith("lib.sh")}


def test_whole_files_are_as_the_goldens(name: str, files: dict[str, str]) -> None:
    folder = GOLDEN / "rendered" / name
    if os.environ.get("HPCSTACK_GOLDEN") == "write":
        shutil.rmtree(folder, ignore_errors=True)
        for path, text in own(files).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    golden = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert golden == own(files)


def test_the_files_that_the_chain_promises(files: dict[str, str]) -> None:
    assert {"apptainer.def", "Dockerfile", "enroot.sh", "modulefile.lua", "srun.sh", "sbatch.sh"} <= set(files)


def test_rendering_twice_gives_the_same_bytes(stack: Stack, lock: Lock, files: dict[str, str]) -> None:
    assert stack_files(stack, lock, example_site(), PLATFORM) == files


def test_spython_reads_the_definition_back(stack: Stack, lock: Lock, files: dict[str, str]) -> None:
    check(stack, lock, PLATFORM, files["apptainer.def"])
    with pytest.raises(BuildError, match="with the base"):
        check(stack, lock, PLATFORM, files["apptainer.def"].replace("@sha256:", "@sha512:"))
    for step in steps(stack, lock.platform(PLATFORM), lock.sources):
        with pytest.raises(BuildError, match="reads back without"):
            check(stack, lock, PLATFORM, files["apptainer.def"].replace(step.lines[0], "true"))


@pytest.mark.parametrize(
    "script", ["enroot.sh", "srun.sh", "sbatch.sh", "bin/torchrun", "context/hpcstack/build/lib.sh"]
)
@pytest.mark.shellcheck
def test_shellcheck_finds_nothing(files: dict[str, str], script: str, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(files[script])
    done = subprocess.run(["shellcheck", "--severity=warning", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize("place", [str(Path.cwd()), __file__])
def test_nothing_rendered_holds_a_place_of_this_machine(files: dict[str, str], place: str) -> None:
    assert place not in "\n".join(files.values())


def test_the_base_and_the_recipe_meet_in_etc_environment(stack: Stack, lock: Lock) -> None:
    text = environment_file(lock.platform(PLATFORM), stack)
    assert "HF_HUB_DISABLE_TELEMETRY=1\n" in text
    assert "NVIDIA_VISIBLE_DEVICES=all\n" in text


def test_a_site_lends_only_what_it_has(site: Site) -> None:
    assert "export" not in lent_files(site)["hpcstack-site.sh"]
    build = {
        "proxy": {"http": "http://proxy:3128", "no": "localhost"},
        "pip": {"index_url": "https://user:secret@mirror/simple"},
        "ca_bundle": "/etc/ca.pem",
        "apt": {"mirrors": {"http://deb.debian.org/debian": "http://mirror/debian"}},
    }
    lent = lent_files(site.model_copy(update={"build": type(site.build).model_validate(build)}))["hpcstack-site.sh"]
    for part in (
        "http_proxy=http://proxy:3128",
        "PIP_INDEX_URL=https://user:secret@mirror/simple",
        "PIP_CERT=/mnt/",
        "apt.conf",
    ):
        assert part in lent
    subprocess.run(["bash", "-n"], input=lent, text=True, check=True)


def test_the_mirror_is_in_registries_conf_only(site: Site, files: dict[str, str]) -> None:
    mirrored = site.model_copy(update={"registries": Site.model_validate({
        "store": "/s", "lock_dir": "/l", "module_root": "/m",
        "registries": {"nvcr.io": {"mirror": "cache.site:5000", "plain_http": True}}}).registries})  # fmt: skip
    assert 'location = "cache.site:5000"\ninsecure = true' in registries_conf(mirrored)
    assert "cache.site" not in files["apptainer.def"]


@pytest.mark.lua
@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=100))
def test_any_summary_survives_in_a_modulefile(summary: str) -> None:
    """A Lua of stubs runs the modulefile and says what `whatis` was given."""
    from conftest import HERE, _lua
    from hpcstack import data
    from hpcstack.lock.model import read
    from hpcstack.render.module import modulefile
    from hpcstack.render.stack import preview
    from hpcstack.spec.catalog import Catalog

    stack = Catalog([data.folder("recipes")]).find("pytorch-24.11").stack.model_copy(update={"summary": summary})
    lock = read(HERE / "golden/locks/pytorch-24.11.lock.json")
    text = modulefile(preview(stack, lock, example_site(), PLATFORM))
    stubs = "function whatis(t) if t:find('^Description: ') then io.write(t:sub(14)) end end\n"
    stubs += "function help() end function family() end function mode() return 'spider' end\n"
    stubs += "function prepend_path() end function setenv() end function isFile() return true end\n"
    said = subprocess.run([str(_lua()), "-"], input=(stubs + text).encode(), capture_output=True, check=True).stdout
    assert said.decode() == summary


def test_a_modulerc_names_aliases_and_the_default() -> None:
    text = modulerc({"24.11": "pytorch/24.11-r2"}, "pytorch/24.11-r2")
    assert 'module_version("pytorch/24.11-r2", "24.11")' in text
    assert text.startswith("-- ") and text.endswith("end\n")
