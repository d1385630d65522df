"""The user's own folders, by the XDG Base Directory Specification:
https://specifications.freedesktop.org/basedir-spec/

platformdirs is not used: it names other folders on macOS. These lie on clusters, and the docs
name them.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping


def _find_home(variable: str, default: str, environ: Mapping[str, str] | None) -> Path:
    """Return the folder that VARIABLE names, else DEFAULT below the home directory.

    Raise InputError where there is no home directory either.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(variable):
        return Path(named)

    home = environ.get("HOME")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise InputError(
                "HOME is not set, and this user has no home directory",
                f"export HOME, or {variable}",
            ) from None
    return Path(home) / default


def find_config_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the user's settings, ~/.config by default."""
    return _find_home("XDG_CONFIG_HOME", ".config", environ)


def find_data_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the user's data, ~/.local/share by default."""
    return _find_home("XDG_DATA_HOME", ".local/share", environ)


def find_cache_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of what can be made again, ~/.cache by default."""
    return _find_home("XDG_CACHE_HOME", ".cache", environ)


def find_state_folder() -> Path:
    """Return where launches and test runs are kept: below the home directory, which nodes see."""
    return _find_home("XDG_STATE_HOME", ".local/state", None) / "hpcstack"


def find_own_user_name() -> str:
    """Return the name of the user who runs this; the user id where that has no name here."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
