"""An image that somebody made by hand becomes a release beside the others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.index import add_wheel
from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.squashfs,
    pytest.mark.timeout(900),  # images are packed twice, beside six other lanes
]
MODULEFILE = """\
whatis("Name: byhand")
setenv("BYHAND_HOME", "/apps/byhand")
prepend_path("PATH", "/apps/byhand/bin")
load("gcc")
"""
WHEEL = "einops-0.8.1-py3-none-any.whl"


@pytest.fixture(scope="module")
def place(testbed: Testbed, small_base: str, tmp_path_factory: pytest.TempPathFactory) -> Recipes:
    """A site's folder with an imported image, a wheel, and the modulefile of the image that is made
    by hand of them.
    """
    recipes = Recipes(testbed, small_base, "adopting")
    done = recipes.run("import", small_base, "-o", str(recipes.folder / "base.sqsh"))
    assert done.returncode == 0, done.stderr
    index = tmp_path_factory.mktemp("wheel")
    add_wheel(index, "einops", "0.8.1", {"einops.py": "__version__ = '0.8.1'\n"})
    testbed.bash('mkdir -p "$1/wheels" "$1/lua/byhand"', str(recipes.folder))
    testbed.give_bytes(
        recipes.folder / "wheels" / WHEEL, (index / "simple/einops" / WHEEL).read_bytes()
    )
    testbed.give(
        str(recipes.folder / "lua/byhand/1.lua").removeprefix(f"{testbed.home}/"), MODULEFILE
    )
    return recipes


@pytest.fixture(scope="module")
def unpacked(testbed: Testbed, place: Recipes) -> Path:
    """byhand.sqsh as a site without Enroot makes one: unpacked, changed, packed."""
    script = """
    cd "$1" && rm -rf tree && unsquashfs -quiet -no-progress -d tree base.sqsh >/dev/null
    packages=$(find tree/usr/local/lib tree/usr/lib -maxdepth 2 -name dist-packages | head -n 1)
    (cd "$packages" && python3 -m zipfile -e "$1/wheels/$2" .)
    mksquashfs tree byhand.sqsh -quiet -no-progress -noappend -all-root -noI -noD -noF -noX >/dev/null && rm -rf tree
    """
    testbed.bash(script, str(place.folder), WHEEL)
    return place.folder / "byhand.sqsh"


@pytest.fixture(scope="module")
def adopted(place: Recipes, unpacked: Path) -> dict[str, Any]:
    done = place.run(
        "adopt",
        str(unpacked),
        "--as",
        "byhand/1",
        "--lua",
        str(place.folder / "lua"),
        "--command",
        "python3",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_its_lock_names_what_is_in_it_and_what_is_not_known(
    testbed: Testbed, adopted: dict[str, Any]
) -> None:
    lock = json.loads(testbed.run("cat", adopted["lock"], check=True).stdout)["adopted"]
    assert lock["pip"]["einops"] == "0.8.1"
    assert lock["apt"]["python3-minimal"]
    assert lock["unknown"] == adopted["unknown"]
    assert adopted["unknown"]


def test_its_files_are_as_they_were(
    testbed: Testbed, place: Recipes, unpacked: Path, adopted: dict[str, Any]
) -> None:
    """What is not of a runtime's own metadata is byte for byte what was there."""
    listed = [
        subprocess.run(["sqfs2tar", str(image)], capture_output=True, check=True).stdout
        for image in (unpacked, Path(adopted["image"]))
    ]
    before, after = (_contents(tar) for tar in listed)
    changed = sorted(path for path in before if before[path] != after.get(path))
    metadata = (
        "etc/environment",
        "etc/fstab",
        "etc/rc",
        ".singularity.d/",
        "singularity",
        "environment",
    )
    of_a_build = (
        "var/cache/",
        "var/lib/dpkg/",
        "etc/passwd-",
        "etc/group-",
        "etc/shadow-",
        "etc/gshadow-",
    )
    assert not [path for path in changed if not path.startswith((*metadata, *of_a_build))]


def _contents(archive: bytes) -> dict[str, tuple[int, bytes]]:
    import io
    import tarfile

    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isreg() else None
            found[member.name.strip("/")] = (member.mode, content.read() if content else b"")
    return found


@pytest.mark.lmod
def test_its_module_does_what_the_sites_own_did(
    testbed: Testbed, place: Recipes, adopted: dict[str, Any]
) -> None:
    assert adopted["release"] == "byhand/1-r1"
    assert adopted["not_taken_over"] == ["load gcc"]
    script = """
    module use "$1/modules/Core" && module load byhand/1
    printf '%s\\n' "$BYHAND_HOME" "$PATH"
    python3 -c 'import einops; print(einops.__version__)'
    module unload byhand && printf '%s\\n' "${BYHAND_HOME:-none}"
    """
    said = testbed.bash(script, str(place.folder)).stdout.splitlines()
    assert said[0] == "/apps/byhand"
    assert ":/apps/byhand/bin:" in said[1]
    assert said[2:] == ["0.8.1", "none"]


@pytest.mark.slurm
@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param("apptainer", marks=pytest.mark.apptainer),
        pytest.param("pyxis", marks=pytest.mark.pyxis),
        pytest.param("enroot", marks=pytest.mark.enroot),
    ],
)
def test_each_runtime_runs_it(place: Recipes, adopted: dict[str, Any], runtime: str) -> None:
    words = ("launch", "byhand-1", "--runtime", runtime, "-N", "2", "--", "python3", "-c")
    done = place.run(*words, "import einops; print(einops.__version__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.8.1", "0.8.1"]


def test_gate_signature_and_parts_list_say_adopted(
    testbed: Testbed, place: Recipes, adopted: dict[str, Any]
) -> None:
    key = str(place.folder / "key")
    testbed.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, check=True)
    assert place.run("sign", "byhand-1", "--key", key).returncode == 0
    signed = place.run("verify", "byhand-1", "--signature", "--key", f"{key}.pub")
    gate = place.run("promote", "byhand/1")
    parts = place.run("sbom", "byhand-1")
    assert gate.returncode == 1
    assert "ADOPTED" in gate.stderr
    assert signed.returncode == 0
    assert "ADOPTED" in signed.stdout
    assert parts.returncode == 0
    assert "ADOPTED" in parts.stdout


@pytest.mark.parametrize(
    "verb",
    [("build",), ("lock",), ("bundle", "create", "-o", "/nonexistent/x.tar")],
    ids=lambda words: words[0],
)
def test_it_is_not_built(place: Recipes, adopted: dict[str, Any], verb: tuple[str, ...]) -> None:
    done = place.run(*verb, "byhand-1")
    assert done.returncode == 2
    assert "was adopted from" in done.stderr
    assert "drop `adopted`" in done.stderr


def test_a_second_time_changes_nothing(
    place: Recipes, unpacked: Path, adopted: dict[str, Any]
) -> None:
    before = place.stored()
    done = place.run(
        "adopt",
        str(unpacked),
        "--as",
        "byhand/1",
        "--lua",
        str(place.folder / "lua"),
        "--command",
        "python3",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == adopted
    assert place.stored() == before


def test_an_image_of_a_registry_is_taken_over(place: Recipes, small_base: str) -> None:
    done = place.run("adopt", small_base, "--as", "fromregistry/1", "--no-publish", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["base"] == f"{small_base} (as the image says)"


@pytest.mark.enroot
def test_what_enroot_exported_is_taken_over(testbed: Testbed, place: Recipes) -> None:
    """As users make them: enroot start, pip install, enroot export."""
    script = """
    cd "$1"
    export ENROOT_DATA_PATH=$1/data ENROOT_CACHE_PATH=$1/cache ENROOT_RUNTIME_PATH=$1/run ENROOT_TEMP_PATH=$1
    mkdir -p data cache run
    enroot create --force --name byhand base.sqsh >/dev/null 2>&1
    enroot start --root --rw --env NVIDIA_VISIBLE_DEVICES=void --mount "$1/wheels:/mnt" byhand \\
        python3 -m pip install --quiet --break-system-packages --no-index "/mnt/$2" >/dev/null 2>&1
    enroot export --force --output enroot.sqsh byhand >/dev/null 2>&1
    enroot remove --force byhand >/dev/null 2>&1
    """
    testbed.bash(script, str(place.folder), WHEEL)
    done = place.run("adopt", str(place.folder / "enroot.sqsh"), "--as", "exported/1", "--json")
    assert done.returncode == 0, done.stderr
    lock = json.loads(testbed.run("cat", json.loads(done.stdout)["lock"], check=True).stdout)[
        "adopted"
    ]
    assert lock["pip"]["einops"] == "0.8.1"


DEFINITION = """\
Bootstrap: localimage
From: base.sqsh
%environment
    export FOO=bar
    . /opt/setup.sh
%runscript
    exec echo ran "$@"
"""


@pytest.fixture(scope="module")
def sif(testbed: Testbed, place: Recipes) -> Path:
    """A SIF as Apptainer builds one of a definition."""
    testbed.give(f"{place.folder}/a.def".removeprefix(f"{testbed.home}/"), DEFINITION)
    testbed.bash('cd "$1" && apptainer --quiet build --force a.sif a.def', str(place.folder))
    return place.folder / "a.sif"


@pytest.mark.apptainer
def test_a_sif_is_adopted_with_its_variables(testbed: Testbed, place: Recipes, sif: Path) -> None:
    done = place.run("adopt", str(sif), "--as", "sif/1", "--no-publish", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [one for one in document["unknown"] if "90-environment.sh" in one]
    said = testbed.run("apptainer", "--quiet", "exec", document["image"], "printenv", "FOO")
    assert said.stdout == "bar\n"


@pytest.mark.apptainer
def test_a_sif_is_imported_for_enroot_too(testbed: Testbed, place: Recipes, sif: Path) -> None:
    output = place.folder / "of-a-sif.sqsh"
    done = place.run("import", str(sif), "-o", str(output))
    assert done.returncode == 0, done.stderr
    script = 'cd "$1" && unsquashfs -quiet -no-progress -f -d out "$2" etc >/dev/null; cat out/etc/environment out/etc/rc'
    said = testbed.bash(script, str(place.folder), str(output)).stdout
    assert "\nFOO=bar\n" in f"\n{said}"
    assert "exec /.singularity.d/runscript" in said
    ran = testbed.run("apptainer", "--quiet", "run", str(output), "it")
    assert ran.stdout == "ran it\n"

    missing = place.run("import", "nosuch.sif")
    assert missing.returncode == 2
    assert "there is no file nosuch.sif" in missing.stderr

    again = place.run("import", str(sif), "-o", str(output), "--platform", "linux/arm64", "--force")
    assert again.returncode == 2
    assert "is for linux/amd64" in again.stderr


FAILS = "#!/bin/sh\nexit 1\n"
RECORD = json.dumps(
    {
        "id": "X-1",
        "modified": "2026-01-01T00:00:00Z",
        "affected": [{"package": {"ecosystem": "PyPI", "name": "nothing"}, "versions": ["1"]}],
    }
)
OWN_RPM = b"SQLite format 3\0" + bytes(4096)  # that no rpm reads


@pytest.fixture(scope="module")
def blind(testbed: Testbed, place: Recipes, unpacked: Path) -> dict[str, Any]:
    """The adoption of an image each of whose programs that list packages fails."""
    testbed.give_bytes(place.folder / "rpmdb.sqlite", OWN_RPM)
    testbed.give(f"{place.folder}/osv/X.json".removeprefix(f"{testbed.home}/"), RECORD)
    if "audit:" not in place.render_site_text:
        place.site(f"{place.render_site_text}audit: {{database: {place.folder}/osv}}\n")
    script = """
    cd "$1" && rm -rf tree && unsquashfs -quiet -no-progress -d tree "$2" >/dev/null
    for program in dpkg-query python3 rpm; do
        rm -f tree/usr/bin/$program
        printf '%s' "$3" >tree/usr/bin/$program && chmod 755 tree/usr/bin/$program
    done
    mkdir -p tree/var/lib/rpm tree/lib/apk/db && cp rpmdb.sqlite tree/var/lib/rpm/
    echo torn >tree/lib/apk/db/installed
    mksquashfs tree blind.sqsh -quiet -no-progress -noappend -all-root -noI -noD -noF -noX >/dev/null && rm -rf tree
    """
    testbed.bash(script, str(place.folder), str(unpacked), FAILS)
    done = place.run("adopt", str(place.folder / "blind.sqsh"), "--as", "blind/1", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("look", ["dpkg-query", "python3", "/var/lib/rpm", "/lib/apk/db/installed"])
def test_a_look_that_failed_is_unknown_wherever_packages_are_shown(
    testbed: Testbed, place: Recipes, blind: dict[str, Any], look: str
) -> None:
    lock = json.loads(testbed.run("cat", blind["lock"], check=True).stdout)["adopted"]
    assert any(line.startswith(f"{look}: ") for line in lock["unknown"])

    audit = json.loads(place.run("audit", "blind-1", "--json").stdout)
    assert f"{look}: " in json.dumps(audit)

    parts = json.loads(place.run("sbom", "blind-1").stdout)["metadata"]["component"]["properties"]
    [stated] = [one["value"] for one in parts if one["name"] == "hpcstack:unlisted"]
    assert stated.startswith("UNKNOWN: ")
    assert f"{look}: " in stated

    done = place.run("catalog", "-o", str(place.folder / "site"))
    assert done.returncode == 0, done.stderr
    read = 'cat "$1"/site/*.html; find "$1/modules" -name "1*.lua" -path "*/blind/*" | xargs cat'
    shown = testbed.bash(read, str(place.folder)).stdout
    assert shown.count("UNKNOWN, packages that could not be listed:") >= 2
    assert shown.count(f"{look}: ") >= 2
