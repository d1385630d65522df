"""Folders of the user's own, by the XDG base directories:
https://specifications.freedesktop.org/basedir-spec/

Not by platformdirs, which gives other folders on macOS: these are on clusters, and docs name them.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping


def _home(variable: str, default: str, environ: Mapping[str, str] | None) -> Path:
    """What VARIABLE says, else DEFAULT below the home directory. InputError where there is none."""
    environ = os.environ if environ is None else environ
    if said := environ.get(variable):
        return Path(said)
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


def config_home(environ: Mapping[str, str] | None = None) -> Path:
    return _home("XDG_CONFIG_HOME", ".config", environ)


def data_home(environ: Mapping[str, str] | None = None) -> Path:
    return _home("XDG_DATA_HOME", ".local/share", environ)


def cache_home(environ: Mapping[str, str] | None = None) -> Path:
    return _home("XDG_CACHE_HOME", ".cache", environ)


def state_folder() -> Path:
    """Where launches and test runs are kept: below the user's home, which the nodes see."""
    return _home("XDG_STATE_HOME", ".local/state", None) / "hpcstack"


def own_user_name() -> str:
    """The name of the user who runs this; his number on a machine that does not know him."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
