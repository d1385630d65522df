"""The files of packages that a user's own lists allow, by their hashes.

Tested in tests/unit/requirements/test_pip_file.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class AllowedFiles:
    """The HASHES, as `sha256:0f3c`, of which a file of the package NAME must have one.

    They hold for the one `version` that a lock pins, else for all `versions` that a line allows. A
    line may name an archive by its URL alone.
    """

    name: str
    hashes: frozenset[str]
    version: str = ""
    versions: SpecifierSet = field(default_factory=SpecifierSet)
    url: str = ""

    @property
    def pinned(self) -> str:
        """The one version that is meant; empty where several are."""
        exact = [one for one in self.versions if one.operator in ("==", "===")]
        is_pinned = len(exact) == 1 and not exact[0].version.endswith(".*")
        return self.version or (exact[0].version if is_pinned else "")

    def holds_for(self, name: str, version: str, url: str = "") -> bool:
        """Return whether this is said of VERSION of the package NAME, or of the archive at URL."""
        if self.url and self.url == url:
            return True
        if not self.name or canonicalize_name(name) != canonicalize_name(self.name):
            return False
        if self.version:
            return canonicalize_version(version) == canonicalize_version(self.version)
        try:
            return self.versions.contains(Version(version), prereleases=True)
        except InvalidVersion:
            return True  # no version that could be excluded


def list_allowed_hashes(
    allowed: Iterable[AllowedFiles], name: str, version: str, url: str = ""
) -> frozenset[str] | None:
    """Return the hashes that ALLOWED has for VERSION of the package NAME; None where it says nothing."""
    found = [one.hashes for one in allowed if one.holds_for(name, version, url)]
    return frozenset().union(*found) if found else None
