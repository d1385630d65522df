"""Logins of registries, where their tools keep them. A key is read when it is needed, and is written nowhere."""

from __future__ import annotations

import os
from pathlib import Path

from hpcstack.core.dirs import config_home
from hpcstack.core.errors import InputError

DOCKER_HUB_KEY = "https://index.docker.io/v1/"
HUB = ("registry-1.docker.io", "auth.docker.io", "docker.io")  # as Enroot's manuals name Docker Hub, old and new


def credentials(host: str, named: str = "", wanted: str = "") -> tuple[str, str]:
    """(user, password) for HOST, or two empty texts; of several logins that of the user WANTED.

    NAMED is a file that the site names: docker's config.json or Enroot's .credentials. Without it the user's own are
    asked: docker's with its credential helpers, then Apptainer's, then Enroot's.
    """
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise InputError(f"{path} does not exist, named by registries.{host}.credentials in site.yaml")
        return _of_file(path, host, wanted)
    apptainer = Path.home() / ".apptainer/docker-config.json"
    for found in (_docker(host, None), _docker(host, apptainer) if apptainer.is_file() else None):
        if found and found[0] == (wanted or found[0]):
            return found
    return _netrc(enroot_file(), host, wanted) or ("", "")


def docker_knows(host: str) -> bool:
    """Whether docker's own files or helpers have a login for HOST."""
    return _docker(host, None) is not None


def enroot_file() -> Path:
    """Enroot's own file of logins."""
    return Path(os.environ.get("ENROOT_CONFIG_PATH") or config_home() / "enroot") / ".credentials"


def _of_file(path: Path, host: str, wanted: str) -> tuple[str, str]:
    text = _text(path)
    found = _docker(host, path) if text.lstrip().startswith("{") else _netrc(path, host, wanted)
    if found and wanted and found[0] != wanted:
        found = None
    return found or ("", "")


def _docker(host: str, path: Path | None) -> tuple[str, str] | None:
    from docker.auth import load_config, resolve_authconfig
    from docker.errors import DockerException

    try:
        found: dict[str, str] = resolve_authconfig(load_config(str(path) if path else None), _docker_key(host)) or {}
    except DockerException:  # a credential helper that is not installed
        return None
    user = found.get("username") or found.get("Username", "")
    return (user, found.get("password") or found.get("Password", "")) if user else None


def _docker_key(host: str) -> str | None:
    return None if host in ("docker.io", "registry-1.docker.io", DOCKER_HUB_KEY) else host


def _netrc(path: Path, host: str, wanted: str) -> tuple[str, str] | None:
    """The login of HOST in a netrc, as Enroot reads it: the host without its port, a password that begins with `$` is a
    variable. `$(command)`, which Enroot would run, is refused: nothing of ours runs a shell for a secret.
    """
    names = HUB if _docker_key(host) is None else (host.partition(":")[0],)
    for name in names:
        for words in _machines(_text(path)):
            login = words.get("login", "")
            if words.get("machine") == name and "password" in words and login == (wanted or login):
                return login, _password(words["password"], path)
    return None


def _machines(text: str) -> list[dict[str, str]]:
    out: list[dict[str, str]] = []
    words = iter([word for line in text.splitlines() if not line.lstrip().startswith("#") for word in line.split()])
    for key in words:
        if key == "machine":
            out.append({"machine": next(words, "")})
        elif key in ("login", "password") and out:
            out[-1].setdefault(key, next(words, ""))
    return out


def _password(text: str, path: Path) -> str:
    if text.startswith("$("):
        raise InputError(f"{path} has a password that is a command", "write a variable: password $NGC_API_KEY")
    if text.startswith("$"):
        return os.environ.get(text.lstrip("$").strip("{}"), "")
    return text


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
