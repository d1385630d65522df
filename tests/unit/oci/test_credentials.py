"""Logins, from docker's files and helpers, from Enroot's .credentials, and from a file that the
site names.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.oci.credentials import find_login


def credentials(host: str, named: str = "", wanted: str = "") -> tuple[str, str]:
    """(user, password) of the login that is found, or two empty texts."""
    found = find_login(host, named, wanted)
    return (found.user, found.password) if found else ("", "")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("ENROOT_CONFIG_PATH", raising=False)
    return tmp_path


def docker(path: Path, host: str, user: str, key: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"auths": {host: {"auth": base64.b64encode(f"{user}:{key}".encode()).decode()}}})
    )
    return path


def enroot(home: Path, text: str) -> None:
    (home / ".config/enroot").mkdir(parents=True)
    (home / ".config/enroot/.credentials").write_text(text)


def test_nothing_is_known(home: Path) -> None:
    assert credentials("nvcr.io") == ("", "")


def test_dockers_config_comes_before_enroots(home: Path) -> None:
    docker(home / "docker/config.json", "nvcr.io", "$oauthtoken", "d0cker")
    enroot(home, "machine nvcr.io login $oauthtoken password enr00t\n")
    assert credentials("nvcr.io") == ("$oauthtoken", "d0cker")


def test_enroots_file_as_enroot_reads_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# a comment with machine nvcr.io password no\nmachine other login x password y\n"
    text += (
        "machine nvcr.io login $oauthtoken password k#ey\nmachine auth.example login z password "
        "$NGC_KEY\n"
    )
    enroot(home, text)
    monkeypatch.setenv("NGC_KEY", "fr0m-env")
    assert credentials("nvcr.io") == ("$oauthtoken", "k#ey")
    assert credentials("nvcr.io:443") == (
        "$oauthtoken",
        "k#ey",
    )  # Enroot matches the host without its port
    assert credentials("auth.example") == ("z", "fr0m-env")
    assert credentials("docker.io") == ("", "")


def test_a_password_that_is_a_command_is_not_run(home: Path) -> None:
    enroot(home, f"machine nvcr.io login x password $(touch {home}/ran)\n")
    with pytest.raises(InputError, match="is a command"):
        credentials("nvcr.io")
    assert not (home / "ran").exists()


@pytest.mark.parametrize("form", ["docker", "netrc"])
def test_a_file_that_the_site_names(home: Path, form: str) -> None:
    path = home / "logins"
    if form == "docker":
        docker(path, "nvcr.io", "u", "s1te")
    else:
        path.write_text("machine nvcr.io login u password s1te")
    docker(home / "docker/config.json", "nvcr.io", "u", "own")
    assert credentials("nvcr.io", str(path)) == ("u", "s1te")
    assert credentials("docker.io", str(path)) == ("", "")


def test_a_file_that_is_not_there_is_said(home: Path) -> None:
    with pytest.raises(InputError, match="named by registries"):
        credentials("nvcr.io", str(home / "none"))


def test_a_helper_that_is_not_installed_is_no_reason_to_stop(home: Path) -> None:
    (home / "docker").mkdir()
    (home / "docker/config.json").write_text('{"credsStore": "no-such-helper"}')
    enroot(home, "machine nvcr.io login a password b")
    assert credentials("nvcr.io") == ("a", "b")


def test_a_credential_helper_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = home / "docker-credential-made"
    helper.write_text('#!/bin/sh\necho \'{"ServerURL":"nvcr.io","Username":"h","Secret":"s"}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(home), prepend=":")
    (home / "docker").mkdir()
    (home / "docker/config.json").write_text('{"credHelpers": {"nvcr.io": "made"}}')
    assert credentials("nvcr.io") == ("h", "s")


@pytest.mark.parametrize("name", ["registry-1.docker.io", "auth.docker.io", "docker.io"])
def test_docker_hub_has_the_names_that_enroots_manuals_give_it(home: Path, name: str) -> None:
    enroot(
        home, f"machine other login x password y\nmachine {name} login someone password s3cret\n"
    )
    assert credentials("docker.io") == ("someone", "s3cret")


def test_of_two_logins_the_one_that_was_named(home: Path) -> None:
    enroot(home, "machine r.io login one password 1\nmachine r.io login two password 2\n")
    assert credentials("r.io") == ("one", "1")
    assert credentials("r.io", wanted="two") == ("two", "2")
    assert credentials("r.io", wanted="three") == ("", "")


def test_a_login_that_is_none_is_named(home: Path) -> None:
    """docker's library takes it for a wrong value, whatever host is asked for, and the client took
    that for the network.
    """
    path = home / "docker/config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"auths": {"another.example": {"auth": "!!!"}}}))
    with pytest.raises(InputError, match="docker/config.json holds a login that cannot be read"):
        credentials("nvcr.io")
