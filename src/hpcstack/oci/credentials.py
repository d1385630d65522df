"""Find the user's logins for registries in the files where other tools keep them.

A key is read when it is needed, and is never written anywhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hpcstack.core.dirs import find_config_home
from hpcstack.core.errors import InputError

DOCKER_HUB_KEY = "https://index.docker.io/v1/"
IDENTITY = "<token>"  # the user name that docker's helpers give with an identity token
# The hosts under which Enroot's documentation, old and new, keeps logins of Docker Hub.
HUB = ("registry-1.docker.io", "auth.docker.io", "docker.io")


class Login(NamedTuple):
    """A user with a password or key, and the file that it is from."""

    user: str
    password: str
    source: str


def find_login(host: str, named: str = "", wanted: str = "") -> Login | None:
    """Return the login for HOST, or None if there is none; with WANTED, only that user's.

    NAMED is the file that site.yaml names: docker's config.json or Enroot's .credentials. Without
    it the user's own files are read: docker's with its credential helpers, then podman's,
    Apptainer's and Enroot's. Raise InputError if NAMED does not exist.
    """
    if named:
        site_file = Path(named).expanduser()
        if not site_file.is_file():
            raise InputError(
                f"{site_file} does not exist, named by registries.{host}.credentials in site.yaml",
                page="mirror-a-registry",
            )
        return _read_login(site_file, host, wanted)

    apptainer = Path.home() / ".apptainer/docker-config.json"
    files: list[Path | None] = [None, *_podman_files(), apptainer]  # None is docker's own
    for path in files:
        # Not Path.is_file, which raises PermissionError where a folder is closed to us.
        if path is not None and not os.path.isfile(path):  # noqa: PTH113
            continue
        found = _read_docker_login(host, path)
        if found and found.user == (wanted or found.user):
            return found
    return _read_netrc_login(find_enroot_file(), host, wanted)


def _podman_files() -> list[Path]:
    """Return where podman, skopeo and buildah look for logins, in their order.

    See containers-auth.json(5).
    """
    named = os.environ.get("REGISTRY_AUTH_FILE")
    if named:
        return [Path(named)]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return [Path(runtime) / "containers/auth.json", find_config_home() / "containers/auth.json"]


def find_enroot_file() -> Path:
    """Return the path of Enroot's own file of logins."""
    return (
        Path(os.environ.get("ENROOT_CONFIG_PATH") or find_config_home() / "enroot") / ".credentials"
    )


def _read_login(path: Path, host: str, wanted: str) -> Login | None:
    """Return the login for HOST in PATH, which is either docker's JSON or Enroot's netrc."""
    if _read_text(path).lstrip().startswith("{"):
        found = _read_docker_login(host, path)
    else:
        found = _read_netrc_login(path, host, wanted)
    if found and wanted and found.user != wanted:
        return None
    return found


def _read_docker_login(host: str, path: Path | None) -> Login | None:
    """Return the login for HOST in PATH, a file like docker's config.json.

    Without PATH, docker's own file is read and its credential helpers are asked. Raise InputError
    for a login that cannot be decoded.
    """
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
            f"{source} holds a login that cannot be read",
            "log in again: that writes it anew",
            page="mirror-a-registry",
        ) from None

    # The library's names of the fields depend on whether a file or a helper had the login.
    user = found.get("username") or found.get("Username", "")
    if user:
        return Login(user, found.get("password") or found.get("Password", ""), source)
    identity = found.get("identitytoken") or found.get("IdentityToken", "")
    return Login(IDENTITY, identity, source) if identity else None


def _docker_source() -> str:
    """Return the path of docker's own config.json."""
    folder = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
    return f"{folder}/config.json"


def _docker_key(host: str) -> str | None:
    """Return the key of HOST in docker's config; None is Docker Hub to docker's library."""
    return None if host in ("docker.io", "registry-1.docker.io", DOCKER_HUB_KEY) else host


def _read_netrc_login(path: Path, host: str, wanted: str) -> Login | None:
    """Return the login for HOST in the netrc PATH, read as Enroot reads it.

    The host is written without its port, and a password that begins with `$` is a variable. Raise
    InputError for `$(command)`, which Enroot would run: hpcstack runs no shell for a secret.
    """
    names: tuple[str, ...] = (host.partition(":")[0],)
    if _docker_key(host) is None:
        names = HUB
    for name in names:
        for words in _parse_netrc(_read_text(path)):
            login = words.get("login", "")
            if words.get("machine") == name and "password" in words and login == (wanted or login):
                return Login(login, _expand_password(words["password"], path), str(path))
    return None


def _parse_netrc(text: str) -> list[dict[str, str]]:
    """Return the entries of a netrc: {machine, login, password} each, as far as they are there."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    words = iter(" ".join(lines).split())
    out: list[dict[str, str]] = []
    for key in words:
        if key == "machine":
            out.append({"machine": next(words, "")})
        elif key in ("login", "password") and out:
            out[-1].setdefault(key, next(words, ""))
    return out


def _expand_password(text: str, path: Path) -> str:
    """Return TEXT, or the value of the variable that it names. PATH is where it was read."""
    if text.startswith("$("):
        raise InputError(
            f"{path} has a password that is a command, which hpcstack does not run",
            "write a variable instead: password $NGC_API_KEY",
            page="mirror-a-registry",
        )
    if text.startswith("$"):
        return os.environ.get(text.lstrip("$").strip("{}"), "")
    return text


def _read_text(path: Path) -> str:
    """Return the text of PATH; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
