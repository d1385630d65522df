"""What is done with images once they are built: SIF, SBOM, signatures, bundles, collection; and
builds as batch jobs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.registry, pytest.mark.squashfs]


@pytest.fixture(scope="module")
def shared(testbed: Testbed, small_base: str) -> Recipes:
    recipes = Recipes(testbed, small_base, "images")
    text = (testbed.folder / "etc/site.yaml").read_text().partition("node_types:")[0]
    own = {"store": "store", "lock_dir": "locks", "module_root": "modules"}
    lines = [line for line in text.splitlines() if line.partition(":")[0] not in own]
    site = "\n".join([*lines, *(f"{key}: {recipes.folder}/{name}" for key, name in own.items())])
    recipes.site(
        site.replace("engine: apptainer", f"engine: builtin\n  cachedir: {recipes.folder}/cache")
        + "\n"
    )
    recipes.write(
        "1",
        packages="{apt: [netbase], pip: [six==1.17.0]}",
        run="[{name: one, command: 'echo 1 >/opt/one'}]",
    )
    return recipes


@pytest.fixture(scope="module")
def built(shared: Recipes) -> dict[str, Any]:
    done = shared.run("build", "demo-1", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.apptainer
def test_a_sif_is_assembled_around_the_image(
    testbed: Testbed, shared: Recipes, built: dict[str, Any]
) -> None:
    sif = f"{shared.folder}/demo.sif"
    done = shared.run("build", "demo-1", "--sif", sif)
    assert done.returncode == 0 and f"SIF: {sif}" in done.stdout, done.stderr
    assert (
        testbed.run("apptainer", "--quiet", "exec", sif, "cat", "/opt/one", check=True).stdout
        == "1\n"
    )
    listing = testbed.run("apptainer", "sif", "list", sif, check=True).stdout
    assert "FS (Squashfs/*System/amd64)" in listing
    assert abs(Path(sif).stat().st_size - built["size"]) < 1 << 20, "nothing was compressed again"
    again = shared.run("build", "demo-1", "--sif", sif)
    assert again.returncode == 2
    assert "already exists" in again.stderr


@pytest.mark.apptainer
def test_a_sif_for_another_architecture(
    testbed: Testbed, built: dict[str, Any], shared: Recipes
) -> None:
    """The header alone: no machine of that kind is here."""
    script = (
        "import sys; from pathlib import Path; from hpcstack.store.sif import assemble_sif; from "
        "hpcstack.core.process import Runner; "
        "assemble_sif(Path(sys.argv[1]), 'linux/arm64', Path(sys.argv[2]), Runner())"
    )
    sif = f"{shared.folder}/arm.sif"
    python = testbed.bash('dirname "$(command -v hpcstack)"').stdout.strip() + "/python"
    testbed.run(python, "-c", script, built["image"], sif, check=True)
    assert (
        "FS (Squashfs/*System/arm64)"
        in testbed.run("apptainer", "sif", "list", sif, check=True).stdout
    )


def test_an_sbom_of_what_is_really_in_the_image(shared: Recipes, built: dict[str, Any]) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    first, second = shared.run("sbom", "demo-1"), shared.run("sbom", "demo-1")
    assert first.returncode == 0
    assert first.stdout == second.stdout
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(first.stdout) is None
    document = json.loads(first.stdout)
    (system,) = (one for one in document["components"] if one["type"] == "operating-system")
    urls = {component["purl"] for component in document["components"] if component is not system}
    assert "pkg:pypi/six@1.17.0" in urls
    assert system["name"] == "debian"
    assert system["version"]
    release = f"debian-{system['version']}"
    assert f"pkg:deb/debian/netbase@{built['apt']['netbase']}?arch=amd64&distro={release}" in urls
    assert document["metadata"]["component"]["hashes"][0]["content"] == built["sha256"]


def test_a_signature_is_good_until_a_byte_changes(
    testbed: Testbed, shared: Recipes, built: dict[str, Any]
) -> None:
    copy, key = f"{shared.folder}/copy.sqsh", f"{shared.folder}/key"
    testbed.run("cp", built["image"], copy, check=True)
    testbed.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, check=True)
    done = shared.run("verify", "--signature", copy, "--key", f"{key}.pub")
    assert done.returncode == 1
    assert "not signed" in done.stdout
    assert shared.run("sign", copy, "--key", key).returncode == 0
    good = shared.run("verify", "--signature", copy, "--key", f"{key}.pub")
    assert good.returncode == 0
    assert "Good" in good.stdout
    testbed.bash('printf X | dd of="$1" bs=1 seek=4096 conv=notrunc status=none', copy)
    bad = shared.run("verify", "--signature", copy, "--key", f"{key}.pub")
    assert bad.returncode == 1, bad.stdout


def test_inspect_and_images(shared: Recipes, built: dict[str, Any]) -> None:
    about = json.loads(shared.run("inspect", "demo-1", "--json").stdout)
    assert (about["key"], about["published"], about["signed"]) == (built["key"], [], False)
    of_file = json.loads(shared.run("inspect", built["image"], "--json").stdout)
    assert of_file["stack"] == "demo-1"
    assert of_file["base"].endswith("debian-python:12")
    assert [one["key"] for one in json.loads(shared.run("images", "--all", "--json").stdout)] == [
        built["key"]
    ]
    assert shared.run("verify", "demo-1").returncode == 0


def test_a_bundle_builds_where_there_is_no_network(
    testbed: Testbed, shared: Recipes, built: dict[str, Any]
) -> None:
    file, away = f"{shared.folder}/demo.bundle.tar", f"{shared.folder}/away"
    done = shared.run("bundle", "create", "demo-1", "-o", file)
    assert done.returncode == 0, done.stderr
    testbed.bash(
        'mkdir -p "$1" && sed "s#$2/#$1/#" "$2/site.yaml" >"$1/site.yaml"', away, str(shared.folder)
    )
    site = ("hpcstack", "--site", f"{away}/site.yaml")
    missing = testbed.run(*site, "bundle", "apply", file)
    assert missing.returncode == 2
    assert "--recipes-to" in missing.stderr
    early = testbed.run(
        *site, "--recipes", f"{shared.folder}/recipes", "build", "--offline", "demo-1"
    )
    assert early.returncode == 2 and "hpcstack bundle apply here" in early.stderr, early.stderr
    testbed.run(*site, "bundle", "apply", file, "--recipes-to", f"{away}/recipes", check=True)
    apart = ("unshare", "--user", "--map-current-user", "--net", "--keep-caps")
    done = testbed.run(
        *apart,
        *site,
        "--recipes",
        f"{away}/recipes",
        "build",
        "--offline",
        "--locked",
        "demo-1",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    artifact = json.loads(done.stdout)
    assert artifact["image"].startswith(away)
    assert artifact["key"] == built["key"]
    assert artifact["sha256"] == built["sha256"], "the same bytes, with a network and without"
    light = f"{shared.folder}/light.bundle.tar"
    assert shared.run("bundle", "create", "demo-1", "--without-base", "-o", light).returncode == 0
    assert Path(light).stat().st_size < Path(file).stat().st_size / 2
    own = testbed.run(*site, "--recipes", f"{away}/recipes", "bundle", "apply", light, check=True)
    assert f"recipe: {away}/recipes/demo-1.yaml" in own.stdout
    assert "next: hpcstack build --offline demo-1" in own.stdout
    done = testbed.run(
        *site, "--recipes", f"{away}/recipes", "build", "--offline", "--locked", "demo-1"
    )
    assert done.returncode == 0, done.stderr
    elsewhere = f"{away}/elsewhere"
    testbed.bash(
        'mkdir -p "$1" && sed "s#$2/#$1/#" "$2/site.yaml" >"$1/site.yaml"', elsewhere, away
    )
    refused = testbed.run("hpcstack", "--site", f"{elsewhere}/site.yaml", "bundle", "apply", light,
                          "--recipes-to", f"{elsewhere}/recipes")  # fmt: skip
    assert refused.returncode == 2 and "without its base" in refused.stderr, refused.stderr
    assert not Path(f"{elsewhere}/recipes").exists()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ('head -c 200000 "$1" >"$2"', "not a bundle that can be read"),
        (('cp "$1" "$2"; printf X | dd of="$2" bs=1 seek=9000000 conv=notrunc ' 'status=none'), ("other bytes than its " "manifest")),
        ('cp "$1" "$2"; cd /tmp; echo x >extra-file; tar -rf "$2" extra-file', "does not name"),
        (('cp "$1" "$2"; tar -rf "$2" --absolute-names --transform "s#.*#../../evil#" ' '/etc/hostname'), "does not name"),
        ('echo no tar >"$2"', "not a bundle that can be read"),
    ],
)  # fmt: skip
def test_a_damaged_bundle_is_refused(
    testbed: Testbed, shared: Recipes, how: str, says: str
) -> None:
    good, bad = f"{shared.folder}/demo.bundle.tar", f"{shared.folder}/bad.tar"
    if not Path(good).exists():
        assert shared.run("bundle", "create", "demo-1", "-o", good).returncode == 0
    testbed.bash(how, good, bad, check=True)
    done = shared.run("bundle", "apply", bad, "--recipes-to", f"{shared.folder}/elsewhere")
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert not Path(f"{shared.folder}/elsewhere").exists()


def test_what_nobody_needs_is_collected(
    testbed: Testbed, recipes: Recipes, shared: Recipes
) -> None:
    recipes.site(shared.render_site_text.replace(str(shared.folder), str(recipes.folder)))
    keys = []
    for number in (1, 2, 3):
        recipes.write("1", run=f"[{{name: one, command: 'echo {number} >/opt/one'}}]")
        assert recipes.run("lock", "demo-1").returncode == 0
        keys.append(json.loads(recipes.run("build", "demo-1", "--json").stdout)["key"])
        if number == 1:
            done = recipes.run("publish", "demo-1")
            assert done.returncode == 0, done.stderr
    young = json.loads(recipes.run("gc", "--json").stdout)
    assert young["removed"] == [], "all is younger than the limit"
    dry = json.loads(recipes.run("gc", "--older-than", "0", "--dry-run", "--json").stdout)
    gone = {Path(item["path"]).name for item in dry["would_remove"] if item["kind"] == "image"}
    kept = {
        Path(item["path"]).name: item["keep"] for item in dry["kept"] if item["kind"] == "image"
    }
    assert gone == {keys[1]}
    assert kept[keys[0]].startswith("published as")
    assert "newest" in kept[keys[2]]
    assert len(json.loads(recipes.run("images", "--all", "--json").stdout)) == 3, (
        "--dry-run removes nothing"
    )
    script = f"#!/bin/sh\n#SBATCH --hold\n# {recipes.folder}/store/images/{keys[1]}/image.sqsh\n"
    testbed.give("tests/held.sh", script)
    job = testbed.run(
        "sbatch", "--parsable", "--hold", f"{testbed.home}/tests/held.sh", check=True
    ).stdout.strip()
    try:
        held = json.loads(recipes.run("gc", "--older-than", "0", "--json").stdout)
        assert not [item for item in held["removed"] if item["kind"] == "image"], (
            "a job waits for it"
        )
    finally:
        testbed.run("scancel", job, check=True)
    done = recipes.run("gc", "--older-than", "0", "--json", PATH="")
    assert recipes.run("gc", "--older-than", "0").returncode == 0
    assert [one["key"] for one in json.loads(recipes.run("images", "--all", "--json").stdout)] == [
        keys[0],
        keys[2],
    ]
    assert recipes.run("build", "demo-1").returncode == 0


@pytest.mark.slurm
def test_builds_as_an_array_of_jobs_and_one_failure_does_not_stop_the_rest(
    shared: Recipes, recipes: Recipes
) -> None:
    recipes.site(shared.render_site_text.replace(str(shared.folder), str(recipes.folder)))
    recipes.write("1", run="[{name: one, command: 'hostname >/opt/one'}]")
    recipes.write("2", run="[{name: two, command: 'echo said; false'}]")
    recipes.write("3", run="[{name: three, command: 'echo 3 >/opt/three'}]")
    for name in (
        "demo-1",
        "demo-2",
        "demo-3",
    ):  # the testbed's registry is on a loopback that its nodes do not share
        assert recipes.run("lock", name).returncode == 0
    recipes.run("build", "demo-3")
    done = recipes.run(
        "build", "--on", "slurm", "--limit", "2", "demo-1", "demo-2", "demo-3", "--json"
    )
    outcomes = {one["stack"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 4 and "1 of 3 builds failed: demo-2" in done.stderr, done.stderr
    assert [outcomes[f"demo-{n}"]["status"] for n in (1, 2, 3)] == [0, 4, 0]
    assert Path(outcomes["demo-1"]["artifact"]["image"]).exists()
    assert "said" in outcomes["demo-2"]["said"]
    assert "demo-1: step 1/2 run: one" in done.stderr, "the log is followed"
    here = recipes.run("build", "demo-1", "demo-2", "demo-3")
    assert here.returncode == 4
    assert "demo-2 FAILED" in here.stderr
