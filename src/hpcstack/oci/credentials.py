"""Logins of registries, where their tools keep them.

A key is read when it is needed, and is written nowhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hpcstack.core.dirs import config_home
from hpcstack.core.errors import InputError

DOCKER_HUB_KEY = "https://index.docker.io/v1/"
IDENTITY = "<token>"  # the user of a login that is an identity token, as docker's helpers name it
HUB = (
    "registry-1.docker.io",
    "auth.docker.io",
    "docker.io",
)  # as Enroot's manuals name Docker Hub, old and new


class Login(NamedTuple):
    """A user and a password or key, and the file or helper that has it."""

    user: str
    password: str
    source: str


def find_login(host: str, named: str = "", wanted: str = "") -> Login | None:
    """The login for HOST; of several that of the user WANTED. None where there is none.

    NAMED is a file that the site names: docker's config.json or Enroot's .credentials. Without it
    the user's own are asked: docker's with its credential helpers, then podman's, then Apptainer's,
    then Enroot's.
    """
    if named:
        site_file = Path(named).expanduser()
        if not site_file.is_file():
            raise InputError(
                f"{site_file} does not exist, named by registries.{host}.credentials in site.yaml"
            )
        return _of_file(site_file, host, wanted)
    apptainer = Path.home() / ".apptainer/docker-config.json"
    files: list[Path | None] = [None, *_podman_files(), apptainer]
    for path in files:
        found = _docker(host, path) if path is None or os.path.isfile(path) else None  # noqa: PTH113
        if found and found.user == (wanted or found.user):
            return found
    return _netrc(enroot_file(), host, wanted)


def _podman_files() -> list[Path]:
    """Where podman, skopeo and buildah keep logins, in the order in which they look
    (containers-auth.json(5)).
    """
    named = os.environ.get("REGISTRY_AUTH_FILE")
    if named:
        return [Path(named)]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return [Path(runtime) / "containers/auth.json", config_home() / "containers/auth.json"]


def docker_knows(host: str) -> bool:
    """Whether docker's own files or helpers have a login for HOST."""
    return _docker(host, None) is not None


def enroot_file() -> Path:
    """Enroot's own file of logins."""
    return Path(os.environ.get("ENROOT_CONFIG_PATH") or config_home() / "enroot") / ".credentials"


def _of_file(path: Path, host: str, wanted: str) -> Login | None:
    text = _text(path)
    found = _docker(host, path) if text.lstrip().startswith("{") else _netrc(path, host, wanted)
    return None if found and wanted and found.user != wanted else found


def _docker(host: str, path: Path | None) -> Login | None:
    """The login in a file of docker's form, PATH, or in docker's own and what its helpers have."""
    from docker.auth import load_config, resolve_authconfig
    from docker.errors import DockerException

    source = str(path) if path else _docker_source()
    try:
        config = load_config(str(path) if path else None)
        found: dict[str, str] = resolve_authconfig(config, _docker_key(host)) or {}
    except DockerException:  # a credential helper that is not installed
        return None
    except ValueError:
        raise InputError(
            f"{source} holds a login that cannot be read", "log in again: that writes it anew"
        ) from None
    user = found.get("username") or found.get("Username", "")
    if user:
        return Login(user, found.get("password") or found.get("Password", ""), source)
    identity = found.get("identitytoken") or found.get("IdentityToken", "")
    return Login(IDENTITY, identity, source) if identity else None


def _docker_source() -> str:
    folder = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
    return f"{folder}/config.json"


def _docker_key(host: str) -> str | None:
    return None if host in ("docker.io", "registry-1.docker.io", DOCKER_HUB_KEY) else host


def _netrc(path: Path, host: str, wanted: str) -> Login | None:
    """The login of HOST in a netrc, as Enroot reads it: the host without its port, a password that
    begins with `$` is a variable. `$(command)`, which Enroot would run, is refused: nothing of ours
    runs a shell for a secret.
    """
    names = HUB if _docker_key(host) is None else (host.partition(":")[0],)
    for name in names:
        for words in _machines(_text(path)):
            login = words.get("login", "")
            if words.get("machine") == name and "password" in words and login == (wanted or login):
                return Login(login, _password(words["password"], path), str(path))
    return None


def _machines(text: str) -> list[dict[str, str]]:
    out: list[dict[str, str]] = []
    words = iter(
        [
            word
            for line in text.splitlines()
            if not line.lstrip().startswith("#")
            for word in line.split()
        ]
    )
    for key in words:
        if key == "machine":
            out.append({"machine": next(words, "")})
        elif key in ("login", "password") and out:
            out[-1].setdefault(key, next(words, ""))
    return out


def _password(text: str, path: Path) -> str:
    if text.startswith("$("):
        raise InputError(
            f"{path} has a password that is a command", "write a variable: password $NGC_API_KEY"
        )
    if text.startswith("$"):
        return os.environ.get(text.lstrip("$").strip("{}"), "")
    return text


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
