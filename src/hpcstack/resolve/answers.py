"""What is asked inside a base, and what it answers: pip's report and apt's simulation, as entries
of a lock.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from hpcstack.core.errors import InputError
from hpcstack.core.untrusted import UNSAFE
from hpcstack.lock.model import LockedApt, LockedConda, LockedPip
from hpcstack.recipe.guard import is_guarded_apt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.recipe.model import Stack

SIMULATED = re.compile(
    r"^Inst (?P<name>\S+) (?:\[(?P<had>[^\]]+)\] )?\((?P<version>\S+) [^\[)]*(?:\[(?P<architecture>[^\]]+)\])?"
)
REMOVED = re.compile(r"^Remv (?P<name>\S+) ")
OTHER_MPI = re.compile(r"(lib)?(openmpi|mpich)[-0-9]|(openmpi|mpich|lam4?)$")
MOST_INDEXES, MOST_SAID = 20, 500
RECORD = re.compile(r"^(Package|Version|Architecture|Filename|SHA256): (.*)$", re.MULTILINE)


def want_files(stack: Stack) -> dict[str, str]:
    """{path: text}: the names that are to be resolved, one a line."""
    packages = stack.packages
    isolated = tuple(text for text in packages.pip if not packages.built_with_base(text))
    of_base = tuple(text for text in packages.pip if packages.built_with_base(text))
    wanted = {
        "want/apt.txt": packages.apt,
        "want/pip.txt": isolated,
        "want/pip-of-base.txt": of_base,
    }
    return {path: "".join(f"{name}\n" for name in names) for path, names in wanted.items()}


def read_pip(*reports: str) -> tuple[LockedPip, ...]:
    """The sets of REPORTS of `pip install --dry-run`, sorted by name; an empty text is one that was
    not made.

    InputError for what has no hash.
    """
    found = {entry.name: entry for text in reports if text for entry in _read_report(text)}
    return tuple(sorted(found.values(), key=lambda package: package.name))


@dataclass(frozen=True)
class BuildRequirements:
    """What source distributions are built with, and {"NAME VERSION": why it is not known} for the
    others.
    """

    packages: tuple[LockedPip, ...]
    unknown: dict[str, str]


def read_build_requirements(text: str) -> BuildRequirements:
    """What images/build_requirements.py found. InputError for what has no hash."""
    if not text:
        return BuildRequirements((), {})
    # Two projects may be built with the same file, and with two versions of one project.
    found = {(entry.name, entry.version): entry for entry in _read_report(text)}
    unknown = {
        UNSAFE.sub("?", str(name))[:MOST_SAID]: UNSAFE.sub("?", str(why))[:MOST_SAID]
        for name, why in json.loads(text)["open"].items()
    }
    return BuildRequirements(tuple(found[key] for key in sorted(found)), unknown)


def _read_report(text: str) -> Iterator[LockedPip]:
    for entry in json.loads(text)["install"]:
        meta, info = entry["metadata"], entry["download_info"]
        file = unquote(urlsplit(info["url"]).path.rpartition("/")[2])
        hashes = _hashes(info.get("archive_info") or {})
        if not hashes:
            raise InputError(
                f"{meta['name']} {meta['version']} is not a file with a hash: {file}",
                "take it from an index",
            )
        yield LockedPip(
            name=canonicalize_name(meta["name"]), version=meta["version"], hashes=hashes, file=file
        )


def _hashes(archive: dict[str, Any]) -> tuple[str, ...]:
    """`sha256:...`, as newer pips write it (`hashes`) and older ones (`hash`)."""
    found = dict(archive.get("hashes") or {})
    if not found and "=" in archive.get("hash", ""):
        kind, _, value = archive["hash"].partition("=")
        found = {kind: value}
    return tuple(f"{kind}:{value}" for kind, value in sorted(found.items()))


def read_left_out(text: str) -> tuple[str, ...] | None:
    """The base's extra indexes that did not answer, `URL: why`; None for none.

    What a base says of them is cut.
    """
    lines = [UNSAFE.sub("?", line)[:MOST_SAID] for line in text.splitlines() if line.strip()]
    return tuple(lines[:MOST_INDEXES]) or None


def read_missing(text: str) -> dict[str, list[str]]:
    """{package that is in the base already: files of it that are not}, as images/resolve.sh writes
    them.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        package, _, path = UNSAFE.sub("?", line)[:MOST_SAID].partition(" ")
        found.setdefault(package, []).append(path)
    return found


def own_mpi(environment: Mapping[str, str]) -> str:
    """The MPI that a base of these variables brings, which no package of the distribution is; empty
    for none.
    """
    known = (("HPC-X", "HPCX_VERSION"), ("Open MPI", "OPENMPI_VERSION"))
    return " with ".join(
        f"{name} {environment[variable]}" for name, variable in known if environment.get(variable)
    )


def read_apt(
    simulated: str, records: str, allow_replace: tuple[str, ...] = (), mpi: str = ""
) -> tuple[LockedApt, ...]:
    """The set of `apt-get --simulate`, with file and hash out of `apt-cache show`, sorted by name.

    InputError where apt would replace a package that NVIDIA chose for the base, or put another MPI
    beside MPI, the base's own; but for what ALLOW_REPLACE names.
    """
    known = _records(records)
    out = []
    for line in simulated.splitlines():
        removed = REMOVED.match(line)
        if removed and is_guarded_apt(removed["name"], allow_replace):
            raise InputError(
                f"apt would remove {removed['name']} of the base",
                "leave out the package that conflicts with it, or pin it to a version that fits "
                "the base; "
                "packages.allow_replace lets it go",
            )
    for match in filter(None, map(SIMULATED.match, simulated.splitlines())):
        if (
            mpi
            and not match["had"]
            and OTHER_MPI.match(match["name"])
            and "mpi" not in allow_replace
        ):
            raise InputError(
                f"apt would install {match['name']} {match['version']} beside the base's own "
                f"{mpi}: programs would be "
                "built with the one and started with the other",
                "leave out the package that asks for it: the base has mpicc and its headers; "
                "packages.allow_replace: "
                "[mpi] lets it in",
            )
        if match["had"] and is_guarded_apt(match["name"], allow_replace):
            raise InputError(
                (
                    f"apt would replace {match['name']} {match['had']} of the base by "
                    f"{match['version']}"
                ),
                "leave out the package that asks for it, or pin it to a version that fits the base",
            )
        name, _, foreign = match["name"].partition(":")
        record = known.get((name, match["version"], foreign or match["architecture"] or ""), {})
        file, digest = record.get("Filename", "").rpartition("/")[2], record.get("SHA256", "")
        if not digest:
            raise InputError(
                f"apt's archive has no sha256 of {match['name']} {match['version']}",
                "name another archive",
            )
        out.append(
            LockedApt(
                name=match["name"], version=match["version"], file=file, hash=f"sha256:{digest}"
            )
        )
    return tuple(sorted(out, key=lambda package: package.name))


def _records(text: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """{(package, version, architecture): fields} of `apt-cache show`; what dpkg alone knows has no
    file.
    """
    records = [dict(RECORD.findall(paragraph)) for paragraph in text.split("\n\n")]
    keys = ("Package", "Version", "Architecture")
    found = {
        tuple(record.get(key, "") for key in keys): record
        for record in records
        if "SHA256" in record
    }
    return {
        (name, version, architecture): record
        for (name, version, architecture), record in found.items()
    }


def read_conda(text: str) -> tuple[LockedConda, ...]:
    """What conda.py solved."""
    return tuple(LockedConda.model_validate(row) for row in json.loads(text))
