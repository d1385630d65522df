"""A site that runs only what is signed: publish signs, launch and the importer refuse what no
trusted key signed.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcstack.cli import sign_, verify_
from hpcstack.cli.session import Session
from hpcstack.core.errors import InputError, ProblemsError, StoreError
from hpcstack.core.process import Runner
from hpcstack.launch.plan_launch import require_signed
from hpcstack.naming.names import Names
from hpcstack.releases.seal import name_image_seal
from hpcstack.render.launchers import render_importer
from hpcstack.site.load import load_site
from hpcstack.store import signing
from hpcstack.store.artifact import Artifact
from support.modules import Place


def key(folder: Path, name: str) -> tuple[Path, str]:
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path, path.with_suffix(".pub").read_text().strip()


def test_what_a_trusted_key_signed_counts_and_nothing_else(tmp_path: Path) -> None:
    own, public = key(tmp_path, "own")
    _, other = key(tmp_path, "other")
    place = Place(tmp_path / "site", signatures={"keys": [public], "required": True})
    stack = place.stack()
    artifact = place.artifact(stack)
    assert signing.explain_distrust(artifact, (public,), Runner()) == "it is not signed"
    what = signing.Statement(artifact.sha256, artifact.stack, artifact.lock_sha256)
    signing.sign_image(artifact.image, str(own), Runner(), what)
    assert signing.explain_distrust(artifact, (other, public), Runner()) == ""
    assert signing.explain_distrust(artifact, (other,), Runner()) != ""
    another = place.artifact(stack, b"another image")
    for suffix in (".sig", ".signed.json"):
        another.image.with_name(another.image.name + suffix).write_bytes(
            artifact.image.with_name(artifact.image.name + suffix).read_bytes()
        )
    assert "sha256" in signing.explain_distrust(another, (public,), Runner()), (
        "a signature of another image"
    )


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_importer_refuses_what_is_not_signed(tmp_path: Path, shell: str) -> None:
    own, public = key(tmp_path, "own")
    stranger, _ = key(tmp_path, "stranger")
    place = Place(tmp_path / "site", signatures={"keys": [public], "required": True})
    place.publish()
    artifact = place.store.newest("pytorch-24.11")
    assert artifact
    script = tmp_path / "importer.sh"
    script.write_text(render_importer(place.site, "full"))
    env = {"PATH": os.environ["PATH"], "PYXIS_RUNTIME_PATH": str(tmp_path), "SLURM_JOB_UID": "run", "SLURM_JOB_ID": "1",
           "SLURM_STEP_ID": "0"}  # fmt: skip

    def get() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shell, str(script), "get", "hpcstack/pytorch-24.11"],
            env=env,
            capture_output=True,
            text=True,
        )

    def sign(by: Path, what: signing.Statement) -> None:
        signing.sign_image(artifact.image, str(by), Runner(), what)

    good = signing.Statement(artifact.sha256, artifact.stack, artifact.lock_sha256)
    assert get().returncode == 1
    assert "is not signed by a key of this site's" in get().stderr
    sign(stranger, good)
    assert get().returncode == 1
    sign(own, signing.Statement("0" * 64, artifact.stack))
    assert get().returncode == 1, "its key, of another image"
    sign(own, good)
    assert get().stdout.strip() == str(artifact.image), get().stderr
    assert (
        subprocess.run(
            ["shellcheck", "--shell=sh", "--exclude=SC3067", str(script)],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )


def test_a_launch_of_what_is_not_signed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, public = key(tmp_path, "own")
    (tmp_path / "site.yaml").write_text(
        f"signatures: {{required: true, keys: ['{public}']}}\nstore: {tmp_path}/site/store\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    place = Place(tmp_path / "site")
    artifact = place.artifact(place.stack())
    session = Session(str(tmp_path / "site.yaml"), ())
    with pytest.raises(InputError, match="it is not signed"):
        require_signed(artifact, "", session.site, session.runner)
    what = signing.Statement(artifact.sha256, artifact.stack, artifact.lock_sha256)
    signing.sign_image(artifact.image, str(own), Runner(), what)
    require_signed(artifact, "pytorch/24.11-r1", session.site, session.runner)


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Session, Artifact]:
    """An image that is in no release, on a site that runs only what is signed, as `sign` leaves it."""
    own, public = key(tmp_path, "own")
    (tmp_path / "site.yaml").write_text(
        f"signatures: {{required: true, keys: ['{public}']}}\nstore: {tmp_path}/site/store\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    place = Place(tmp_path / "site")
    artifact = place.artifact(place.stack())
    session = Session(str(tmp_path / "site.yaml"), ())
    done = CliRunner().invoke(sign_.command, [artifact.key, "--key", str(own)], obj=session)
    assert done.exit_code == 0, done.output
    return session, artifact


def test_g1_what_is_signed_is_run_as_long_as_it_is_the_file_that_was_read(
    signed: tuple[Session, Artifact],
) -> None:
    session, artifact = signed
    require_signed(artifact, "", session.site, session.runner)


def test_g1_the_seal_is_the_stored_files_by_whatever_name_it_is_verified(
    signed: tuple[Session, Artifact], tmp_path: Path
) -> None:
    session, artifact = signed
    other = artifact.image.with_name("other.sqsh")
    other.hardlink_to(artifact.image)  # which changes the file's ctime
    with pytest.raises(InputError):
        require_signed(artifact, "", session.site, session.runner)
    for suffix in (".sig", ".signed.json"):
        beside = artifact.image.with_name(artifact.image.name + suffix)
        other.with_name(other.name + suffix).write_bytes(beside.read_bytes())
    done = CliRunner().invoke(verify_.command, ["--signature", str(other)], obj=session)
    assert done.exit_code == 0, done.output
    require_signed(artifact, "", session.site, session.runner)


@pytest.mark.parametrize("release", ["x", "no/such-r1"])
def test_g1_a_release_that_only_a_variable_names_is_no_way_past_the_seal(
    signed: tuple[Session, Artifact], release: str
) -> None:
    session, artifact = signed
    name_image_seal(artifact.image).unlink()
    environ = {
        "HPCSTACK_STACK": artifact.stack,
        "HPCSTACK_RELEASE": release,
        "HPCSTACK_IMAGE": str(artifact.image),
    }
    with pytest.raises((InputError, StoreError), match="has no seal"):
        names = Names(session.site, environ, lambda: session.catalog)
        chosen = names.find_image(artifact.stack)
        require_signed(chosen.artifact, chosen.release, session.site, session.runner)


@pytest.mark.parametrize("how", ["written", "replaced", "touched", "no seal", "a seal of another"])
def test_g1_the_signature_of_an_image_is_not_that_of_what_took_its_place(
    signed: tuple[Session, Artifact], how: str
) -> None:
    """Its bytes are another's, whatever its record and its signature say."""
    session, artifact = signed
    image, seal = artifact.image, name_image_seal(artifact.image)
    before = image.stat()
    if how == "written":
        image.write_bytes(b"evil".ljust(before.st_size))
        os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif how == "replaced":
        image.unlink()
        image.write_bytes(b"evil")
    elif how == "touched":
        image.touch()
    elif how == "no seal":
        seal.unlink()
    else:
        seal.write_text(seal.read_text().replace(artifact.sha256, "0" * 64))
    with pytest.raises(InputError, match="this site runs only signed images") as caught:
        require_signed(artifact, "", session.site, session.runner)
    assert "verify --signature" in caught.value.hint

    # What only its file has changed in is read again, and runs; what is another does not.
    words = ["--signature", artifact.key]
    CliRunner().invoke(verify_.command, words, obj=session)
    if how in ("written", "replaced"):
        with pytest.raises(InputError):
            require_signed(artifact, "", session.site, session.runner)
    else:
        require_signed(artifact, "", session.site, session.runner)


@pytest.mark.parametrize(
    "said", ["{required: true}", "{keys: ['-----BEGIN OPENSSH PRIVATE KEY-----']}", "{keys: ['x']}"]
)
def test_a_site_that_says_nothing_sensible(tmp_path: Path, said: str) -> None:
    (tmp_path / "site.yaml").write_text(f"signatures: {said}\n")
    with pytest.raises(ProblemsError):
        load_site(str(tmp_path / "site.yaml"), {"HOME": str(tmp_path)})


def test_a_wrong_key_takes_no_good_signature_away(tmp_path: Path) -> None:
    """Neither `publish` with a key that site.yaml does not name, nor `sign`; `status --check` says
    what is unsigned.
    """
    import json
    import sys

    own, public = key(tmp_path, "own")
    stranger, _ = key(tmp_path, "stranger")
    place = Place(tmp_path)
    artifact = place.artifact(place.stack("jax-26.06"))
    what = signing.Statement(artifact.sha256, artifact.stack, artifact.lock_sha256)
    signing.sign_image(artifact.image, str(own), Runner(), what)

    def typed(sign_with: Path, *words: str) -> tuple[int, str]:
        site = {"store": str(tmp_path / "store"), "lock_dir": str(tmp_path / "locks"), "module_root": str(tmp_path / "modules"),
                "signatures": {"keys": [public], "required": True, "sign_with": str(sign_with)}}  # fmt: skip
        (tmp_path / "site.yaml").write_text(json.dumps(site))
        argv = [sys.executable, "-m", "hpcstack", "--site", str(tmp_path / "site.yaml"), *words]
        done = subprocess.run(argv, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    before = signing.name_signature(artifact.image).read_bytes()
    code, said = typed(stranger, "sign", "jax-26.06")
    assert code == 1 and "it does not trust this key" in said, said
    assert typed(stranger, "publish", "jax-26.06")[0] == 0, (
        "it is signed already, by a key that counts"
    )
    assert signing.name_signature(artifact.image).read_bytes() == before
    assert (
        typed(own, "verify", "--signature", "jax-26.06")[0]
        == typed(own, "status", "--check")[0]
        == 0
    )
    signing.name_signature(artifact.image).unlink()
    code, said = typed(own, "status", "--check")
    assert (
        code == 1
        and f"hpcstack launch refuses it: it is not signed: hpcstack sign {artifact.key[:12]}"
        in said
    ), said
    code, said = typed(stranger, "publish", "jax-26.06")
    assert code == 2
    assert "belongs to none of signatures.keys" in said
    assert not signing.name_signature(artifact.image).exists()
    assert typed(own, "sign", artifact.key[:12])[0] == typed(own, "status", "--check")[0] == 0
