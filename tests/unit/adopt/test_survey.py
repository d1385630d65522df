"""What an image of others says of itself, and what it does not."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.adopt.survey import (
    Exports,
    find_base,
    read_environment,
    read_exports,
    read_labels,
    read_rc,
    survey_image,
)
from hpcstack.core.errors import InputError
from hpcstack.oci.metadata import render_entrypoint

# As Enroot 4.1.2 writes it for NVIDIA's image (src/docker.sh, docker::configure).
ENROOT_RC = """\
# com.nvidia.volumes.needed nvidia_driver
# org.opencontainers.image.version 24.04

mkdir -p "/workspace" 2> /dev/null
cd "/workspace" && unset OLDPWD || exit 1

if [ -s /etc/rc.local ]; then
    . /etc/rc.local
fi

if [ $# -gt 0 ]; then
    exec '/opt/nvidia/nvidia_entrypoint.sh' "$@"
else
    exec '/opt/nvidia/nvidia_entrypoint.sh'
fi
"""
words = st.lists(
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=20),
    max_size=3,
)


def test_enroots_rc_is_read() -> None:
    assert read_rc(ENROOT_RC) == (("/opt/nvidia/nvidia_entrypoint.sh",), (), "/workspace")
    assert read_labels(ENROOT_RC)["com.nvidia.volumes.needed"] == "nvidia_driver"


def test_enroots_rc_of_an_image_that_names_nothing_is_read() -> None:
    text = ENROOT_RC.replace("'/opt/nvidia/nvidia_entrypoint.sh' \"$@\"", ' "$@"')
    text = text.replace("'/opt/nvidia/nvidia_entrypoint.sh'", " '/bin/sh'").replace(
        "/workspace", "/"
    )
    assert read_rc(text) == ((), (), "/")


@given(
    words,
    words,
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20),
)
def test_what_an_import_wrote_is_read_back(
    entrypoint: list[str], command: list[str], workdir: str
) -> None:
    read = read_rc(render_entrypoint(f"/{workdir}", tuple(entrypoint), tuple(command), "x"))
    if not entrypoint and command == ["/bin/sh"]:
        command = []
    assert read == (tuple(entrypoint), tuple(command), f"/{workdir}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#!/bin/sh\nexec bash\n",
        ENROOT_RC.replace('"/workspace" && unset', '"/work space && unset'),
        ENROOT_RC.replace(
            "    exec '/opt/nvidia/nvidia_entrypoint.sh'\nfi", "    exec '/bin/other'\nfi"
        ),
    ],
    ids=["none", "a-sites-own", "an-open-quote", "two-entrypoints"],
)
def test_any_other_rc_says_nothing(text: str) -> None:
    assert read_rc(text) is None


def test_variables_are_read_and_what_is_none_is_not() -> None:
    text = "A=1\nB=two words\nC=a=b\nnot a variable=1\nD=\x1b[31mred\n# E=1\nF=\n"
    assert read_environment(text) == {"A": "1", "B": "two words", "C": "a=b", "F": ""}


def test_apptainers_own_script_is_read() -> None:
    text = (
        '#!/bin/sh\nexport PATH="/opt/bin:/bin"\nexport LC_ALL="${LC_ALL:-"C.UTF-8"}"\nexport '
        'X="${X:-"$(id)"}"\n'
    )
    assert read_exports(text) == Exports({"PATH": "/opt/bin:/bin", "LC_ALL": "C.UTF-8"}, ["X"])


def test_a_definitions_own_environment_is_read_and_other_lines_are_counted() -> None:
    text = (
        "#!/bin/sh\n# a comment\n\n    export A=b C='d e'\nexport PATH=/opt/bin:/bin  # mine\n"
        "export HERE=$HOME/x\nPLAIN=1\nexport A\n. /opt/setup.sh\nexport B='open\n"
    )
    values = {"A": "b", "C": "d e", "PATH": "/opt/bin:/bin"}
    assert read_exports(text) == Exports(values, ["HERE"], others=4)


def test_long_labels_take_no_time() -> None:
    began = time.monotonic()
    assert read_labels(f"# {'a.' * 500_000}\n# org.example.name x\n") == {"org.example.name": "x"}
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("labels", "environment", "rc", "base"),
    [
        (
            {"org.opencontainers.image.base.name": "docker.io/library/debian:12"},
            {},
            "",
            "docker.io/library/debian:12",
        ),
        ({"org.opencontainers.image.base.name": "debian"}, {}, "", ""),
        ({"org.opencontainers.image.base.name": "rocm/pytorch:latest"}, {}, "", ""),
        (
            {},
            {"NVIDIA_PRODUCT_NAME": "PyTorch", "NVIDIA_PYTORCH_VERSION": "24.11"},
            "",
            "nvcr.io/nvidia/pytorch:24.11-py3",
        ),
        ({}, {"NVIDIA_PRODUCT_NAME": "vLLM", "NVIDIA_PYTORCH_VERSION": "25.10"}, "", ""),
        ({}, {"NVIDIA_PRODUCT_NAME": "PyTorch", "NVIDIA_PYTORCH_VERSION": "$(id)"}, "", ""),
        ({}, {}, "# enroot-provenance: quay.io/x/y:1\n", "quay.io/x/y:1"),
        ({}, {}, ENROOT_RC, ""),
    ],
    ids=[
        "label",
        "no-tag",
        "no-registry",
        "nvidia",
        "derived-from-nvidia",
        "hostile",
        "imported",
        "nothing",
    ],
)
def test_the_base_is_what_the_image_says_and_nothing_else(
    labels: dict[str, str], environment: dict[str, str], rc: str, base: str
) -> None:
    found, said_by = find_base(labels, environment, rc)
    assert found == base
    assert bool(said_by) == bool(base)


def pack(
    tmp_path: Path,
    machine: int = 0x3E,
    rc: str = ENROOT_RC,
    shell: bytes | None = None,
    exports: str = "",
) -> Path:
    """A squashfs with a shell of MACHINE, a program `mine`, and Enroot's files."""
    top = tmp_path / "top"
    for folder in ("etc", "usr/bin", "opt/bin"):
        (top / folder).mkdir(parents=True)
    (top / "bin").symlink_to("usr/bin")
    header = b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + bytes(100)
    (top / "usr/bin/dash").write_bytes(header if shell is None else shell)
    (top / "usr/bin/sh").symlink_to("dash")
    (top / "opt/bin/mine").write_text("#!/bin/sh\n")
    (top / "opt/bin/mine").chmod(0o755)
    (top / "opt/bin/plain").write_text("no program\n")
    (top / "etc/rc").write_text(rc)
    (top / "etc/environment").write_text("PATH=/opt/bin:/usr/bin\nA=1\n")
    if exports:
        (top / ".singularity.d/env").mkdir(parents=True)
        (top / ".singularity.d/env/10-docker2singularity.sh").write_text(exports)
    image = tmp_path / "image.sqsh"
    argv = ["mksquashfs", str(top), str(image), "-quiet", "-no-progress", "-noappend", "-all-root"]
    subprocess.run(argv, check=True, capture_output=True)
    return image


@pytest.mark.squashfs
def test_an_image_is_surveyed(tmp_path: Path) -> None:
    found = survey_image(pack(tmp_path), ("mine", "plain", "absent"))
    assert found.platform == "linux/amd64"
    assert found.environment == {"PATH": "/opt/bin:/usr/bin", "A": "1"}
    assert found.workdir == "/workspace"
    assert found.files == {"mine"}
    assert found.base == ""
    assert "which image it was made from" in found.unknown


@pytest.mark.squashfs
def test_another_processor_is_seen(tmp_path: Path) -> None:
    assert survey_image(pack(tmp_path, machine=0xB7)).platform == "linux/arm64"


@pytest.mark.squashfs
def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    found = survey_image(pack(tmp_path, rc="exec bash\n"))
    assert any("entrypoint" in said for said in found.unknown)


@pytest.mark.squashfs
@pytest.mark.parametrize(
    ("machine", "shell"), [(0x15, None), (0x3E, b"#!/no/program\n")], ids=["ppc64", "no-program"]
)
def test_what_no_image_can_be_is_refused(tmp_path: Path, machine: int, shell: bytes | None) -> None:
    with pytest.raises(InputError):
        survey_image(pack(tmp_path, machine=machine, shell=shell))


def test_a_file_that_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.sqsh").write_bytes(b"hsqs" + bytes(200))
    with pytest.raises(InputError, match="cannot be read as an image"):
        survey_image(tmp_path / "x.sqsh")


@pytest.mark.squashfs
def test_an_image_of_apptainers_has_the_variables_that_its_script_sets(tmp_path: Path) -> None:
    """There /etc/environment is the distribution's own, for logins."""
    exports = '#!/bin/sh\nexport PATH="/conda/bin:/bin"\nexport A="${A:-"2"}"\nexport B="$(id)"\n'
    found = survey_image(pack(tmp_path, rc="", exports=exports))
    assert found.environment == {"PATH": "/conda/bin:/bin", "A": "2"}
    assert any(said.startswith("the variables B:") for said in found.unknown)
