"""What pip and apt say inside a base, read as entries of a lock."""

from __future__ import annotations

import json

import pytest

from hpcstack.core.errors import InputError
from hpcstack.lock.model import LockedPip
from hpcstack.recipe.model import Stack
from hpcstack.render.steps import plan_steps, render_requirements, render_step_files
from hpcstack.resolve.answers import (
    read_apt,
    read_conda,
    read_dnf,
    read_left_out,
    read_missing,
    read_own_mpi,
    read_pip,
    want_files,
)
from support.locks import base_lock, example_lock

SIMULATED = """\
NOTE: This is only a simulation!
Inst libibumad3 (44.0-2 Debian:12.9/stable [amd64])
Inst infiniband-diags (44.0-2 Debian:12.9/stable [amd64])
Inst tzdata [2024a-0] (1:2025b-0+deb12u2 Debian:12.11/stable [all])
Conf libibumad3 (44.0-2 Debian:12.9/stable [amd64])
"""
RECORDS = """\
Package: libibumad3
Architecture: amd64
Version: 44.0-2
Depends: libc6
Filename: pool/main/r/rdma-core/libibumad3_44.0-2_amd64.deb
SHA256: abcd
Description: x
 SHA256: not this

Package: infiniband-diags
Architecture: amd64
Version: 44.0-2
Filename: x/infiniband-diags_44.0-2_amd64.deb
SHA256: ffff

Package: tzdata
Architecture: all
Version: 1:2025b-0+deb12u2
Filename: pool/main/t/tzdata/tzdata_2025b-0+deb12u2_all.deb
SHA256: 0123

Package: tzdata
Version: older
SHA256: 9999
"""


def report(**archive: object) -> str:
    entry = {
        "metadata": {"name": "Py_Cpuinfo", "version": "9.0.0"},
        "download_info": {
            "url": "https://u:p@files.example/py_cpuinfo-9.0.0-py3-none-any.whl#sha256=x",
            **archive,
        },
    }
    return json.dumps({"install": [entry]})


@pytest.mark.parametrize(
    "archive",
    [{"archive_info": {"hashes": {"sha256": "aa"}}}, {"archive_info": {"hash": "sha256=aa"}}],
    ids=["newer pip", "pip 22.2"],
)
def test_pips_report_in_both_forms(archive: dict[str, object]) -> None:
    (found,) = read_pip(report(**archive))
    assert found == LockedPip(
        name="py-cpuinfo",
        version="9.0.0",
        hashes=("sha256:aa",),
        file="py_cpuinfo-9.0.0-py3-none-any.whl",
    )


def test_the_indexs_address_and_password_are_not_kept() -> None:
    (found,) = read_pip(report(archive_info={"hashes": {"sha256": "aa"}}))
    assert "example" not in found.model_dump_json()
    assert "u:p" not in found.model_dump_json()


def test_what_has_no_hash_is_refused() -> None:
    with pytest.raises(InputError, match=r"Py_Cpuinfo 9\.0\.0 is not a file with a hash"):
        read_pip(report(vcs_info={"vcs": "git"}))


def test_apts_simulation() -> None:
    found = {entry.name: entry for entry in read_apt(SIMULATED, RECORDS)}
    assert list(found) == ["infiniband-diags", "libibumad3", "tzdata"]
    assert (found["libibumad3"].version, found["libibumad3"].hash) == ("44.0-2", "sha256:abcd")
    assert (found["tzdata"].file, found["tzdata"].hash) == (
        "tzdata_2025b-0+deb12u2_all.deb",
        "sha256:0123",
    )


def test_a_package_of_nvidias_that_would_be_replaced_is_refused_when_it_is_locked() -> None:
    line = "Inst rdma-core [56.0mlnx] (44.0-2 Debian:12.9/stable [amd64])\n"
    with pytest.raises(
        InputError, match=r"apt would replace rdma-core 56\.0mlnx of the base by 44\.0-2"
    ):
        read_apt(line, "")
    with pytest.raises(InputError, match="apt would remove libucx0 of the base"):
        read_apt("Remv libucx0 [1.18]\n", "")
    with pytest.raises(InputError, match="no sha256 of libibumad3"):
        read_apt(SIMULATED, "")


def test_condas_answer() -> None:
    row = {
        "name": "n",
        "version": "1",
        "build": "h_0",
        "subdir": "noarch",
        "url": "https://c/n.conda",
        "sha256": "aa",
    }
    assert read_conda(json.dumps([row]))[0].build_number == 0


def test_what_is_asked(stack: Stack) -> None:
    files = want_files(stack)
    assert files["want/pip.txt"] == "deepspeed==0.19.8\n"
    assert files["want/apt.txt"] == "infiniband-diags\n"


def test_a_resolved_lock_installs_these_files_and_no_others(stack: Stack) -> None:
    lock = base_lock(stack)
    open_platform = lock.platform("linux/amd64")
    locked = open_platform.model_copy(update={"pip": read_pip(report(archive_info={"hashes": {"sha256": "aa"}})),
                                              "apt": read_apt(SIMULATED, RECORDS)})  # fmt: skip
    assert "py-cpuinfo==9.0.0 \\\n    --hash=sha256:aa\n" in render_requirements(locked.pip or ())
    lines = [line for step in plan_steps(stack, locked, {}) for line in step.lines]
    assert any("--require-hashes" in line and "--no-deps" in line for line in lines)
    assert any(
        "hpcstack_apt_locked" in line and "libibumad3=44.0-2 tzdata=1:2025b-0+deb12u2" in line
        for line in lines
    )
    assert render_step_files(stack, locked)["build/apt.sha256"].split() == ["0123", "abcd", "ffff"]
    loose = [line for step in plan_steps(stack, open_platform, {}) for line in step.lines]
    assert any("deepspeed==0.19.8" in line and line.startswith("hpcstack_pip ") for line in loose)


def test_what_is_built_with_the_base_is_asked_and_installed_apart(stack: Stack) -> None:
    """R7: in a build environment of its own it would be compiled against another torch than
    NVIDIA's.
    """
    packages = stack.packages.model_copy(
        update={
            "pip": ("einops", "Flash_Attn==2.7", "my-ext>=1"),
            "no_build_isolation": ("my-ext",),
        }
    )
    mine = stack.model_copy(update={"packages": packages})
    wanted = want_files(mine)
    assert wanted["want/pip.txt"] == "einops\n"
    assert wanted["want/pip-of-base.txt"] == "Flash_Attn==2.7\nmy-ext>=1\n"
    entries = [LockedPip(name=name, version="1", hashes=("sha256:aa",), file=file)
               for name, file in (("einops", "e.whl"), ("flash-attn", "f.tar.gz"), ("my-ext", "m.whl"))]  # fmt: skip
    locked = example_lock(mine).platform("linux/amd64").model_copy(update={"pip": tuple(entries)})
    files = render_step_files(mine, locked)
    assert "flash-attn==1" in files["build/requirements-of-base.txt"]
    assert "my-ext==1" in files["build/requirements.txt"], "a wheel is built by nobody"
    (step,) = [one for one in plan_steps(mine, locked, {}) if one.title.startswith("pip:")]
    isolated, of_base = (line for line in step.lines if " pip " in line)
    assert "--no-build-isolation" not in isolated
    assert "--no-build-isolation" in of_base
    open_lines = [
        line
        for one in plan_steps(mine, locked.model_copy(update={"pip": None}), {})
        for line in one.lines
    ]
    assert "hpcstack_pip install --no-cache-dir --no-compile einops" in open_lines


def test_r5_what_may_be_replaced_is_no_reason_to_refuse() -> None:
    """`packages.allow_replace` held for builds, not for locks."""
    simulated = "Inst libnccl2 [2.23.4-1] (2.25.1-1 NVIDIA:cuda [amd64])\n"
    record = (
        f"Package: libnccl2\nVersion: 2.25.1-1\nArchitecture: amd64\nFilename: pool/n.deb\nSHA256: "
        f"{'a' * 64}\n"
    )
    with pytest.raises(InputError, match="apt would replace libnccl2"):
        read_apt(simulated, record)
    (entry,) = read_apt(simulated, record, ("nccl",))
    assert entry.version == "2.25.1-1"
    with pytest.raises(InputError, match="apt would replace libnccl2"):
        read_apt(simulated, record, ("cudnn",))


def test_r4_what_a_base_says_of_its_indexes_is_kept_short() -> None:
    assert read_left_out("") is None
    (said,) = read_left_out("https://x: \x1b[2Jgone" + "y" * 9000 + "\n\n") or ()
    assert "\x1b" not in said
    assert len(said) == 500


@pytest.mark.parametrize(
    "package", ["libopenmpi-dev", "openmpi-bin", "libopenmpi3", "libmpich12", "mpich"]
)
def test_r11_no_second_mpi_comes_beside_the_bases_own(package: str) -> None:
    """Debian's Open MPI beside HPC-X locked without a word; programs were then built with one and
    started with the other.
    """
    simulated = f"Inst {package} (4.1.4-3 Debian:12/stable [amd64])\n"
    records = (
        f"Package: {package}\nArchitecture: amd64\nVersion: 4.1.4-3\nFilename: "
        f"x/{package}.deb\nSHA256: 00ff\n"
    )
    mpi = read_own_mpi({"HPCX_VERSION": "2.21", "OPENMPI_VERSION": "4.1.7"})
    with pytest.raises(
        InputError,
        match=rf"install {package} 4.1.4-3 beside the base's own HPC-X 2.21 with Open MPI 4",
    ):
        read_apt(simulated, records, mpi=mpi)
    assert read_apt(simulated, records, ("mpi",), mpi)
    assert read_apt(simulated, records, (), read_own_mpi({}))


def test_r11_files_that_the_base_has_removed_are_named() -> None:
    text = (
        "libibverbs-dev /usr/lib/x86_64-linux-gnu/libibverbs.so\nlibibverbs-dev /usr/include/a "
        "b\x1b[2J\nx /y\n"
    )
    found = read_missing(text)
    assert found["libibverbs-dev"][0] == "/usr/lib/x86_64-linux-gnu/libibverbs.so"
    assert found["x"] == ["/y"]
    assert "\x1b" not in found["libibverbs-dev"][1]


TOOL = {
    "name": "nccl-tool",
    "version": "1:1.0-1.el9",
    "arch": "x86_64",
    "file": "nccl-tool-1.0-1.el9.x86_64.rpm",
    "hash": f"sha256:{'ab' * 32}",
}
PLAN = {
    "install": [TOOL],
    "remove": [],
    "lost": [],
    "gone": [],
    "problem": "",
}


def plan_of_dnf(**changes: object) -> str:
    return json.dumps({**PLAN, **changes})


def test_dnfs_plan_is_locked_as_dnf_takes_it_again() -> None:
    [found] = read_dnf(plan_of_dnf())
    assert found.nevra == "nccl-tool-1:1.0-1.el9.x86_64"
    assert read_dnf(plan_of_dnf(install=[])) == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"install": [{**TOOL, "hash": "sha1:ab"}]},
            "the repository has no sha256 of nccl-tool",
        ),
        ({"lost": ["gti", "x\n"]}, r"no repository of the base has gti, x\?"),
        (
            {"gone": ["git=2.43-1.el9"]},
            "no repository of the base has git=2.43-1.el9 any more",
        ),
        (
            {"problem": "Error:\n Problem: curl conflicts with curl-minimal"},
            "dnf finds no way to install them: Error: Problem: curl conflicts with curl-minimal",
        ),
        (
            {"remove": [{"name": "libnccl", "version": "2.23"}]},
            "dnf would remove libnccl 2.23 of the base",
        ),
        (
            {
                "install": [{**TOOL, "name": "libnccl"}],
                "remove": [{"name": "libnccl", "version": "2.23"}],
            },
            "dnf would replace libnccl 2.23 of the base by 1:1.0-1.el9",
        ),
    ],
)
def test_what_dnf_must_not_do_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_dnf(plan_of_dnf(**changes))
    if "remove" in changes:
        assert read_dnf(plan_of_dnf(**changes), ("nccl",)) != ()


@pytest.mark.parametrize(
    "entry", [{"hash": "sha256:0"}, {"name": "-x"}, {"version": "1 2"}, {"arch": "a.b"}]
)
def test_a_package_of_dnfs_that_cannot_be_locked_is_nonsense(entry: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="1 validation error"):
        read_dnf(plan_of_dnf(install=[{**TOOL, **entry}]))
