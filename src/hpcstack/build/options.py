"""How a stack is to be built. Engines get these options as they were said.

Tested in tests/unit/build/test_request.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BuildOptions:
    """How a stack is to be built, as the command line says it; empty: as the recipe and the site do."""

    platform: str = ""
    engine: str = ""
    fresh: bool = False  # ignore all earlier builds
    offline: bool = False  # without any network
    locked: bool = False
    sif: str = ""
    squash: bool = False  # pack the whole image anew, whatever the site's build.splice says

    def words(self) -> list[str]:
        """Return these options as words of a command line, without --sif."""
        flags = {
            "--no-cache": self.fresh,
            "--offline": self.offline,
            "--locked": self.locked,
            "--squash": self.squash,
        }
        valued = {"--platform": self.platform, "--engine": self.engine}
        words = [name for name, is_set in flags.items() if is_set]
        for name, value in valued.items():
            if value:
                words += [name, value]
        return words


NO_BUILD_OPTIONS = BuildOptions()
