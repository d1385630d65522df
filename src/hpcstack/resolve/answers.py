"""Write the questions that a base is asked, and read its answers into entries of a lock.

The answers are pip's report, apt's simulation, and what the scripts in images/ write. They come
from programs of the base, and are not trusted.
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
from hpcstack.lock.model import LockedApt, LockedConda, LockedPip, LockedRpm
from hpcstack.recipe.guard import is_guarded_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.recipe.model import Stack

# A line of `apt-get --simulate`: Inst NAME [VERSION IN THE BASE] (VERSION ARCHIVE [ARCHITECTURE])
SIMULATED = re.compile(
    r"^Inst (?P<name>\S+) (?:\[(?P<had>[^\]]+)\] )?"
    r"\((?P<version>\S+) [^\[)]*(?:\[(?P<architecture>[^\]]+)\])?"
)
REMOVED = re.compile(r"^Remv (?P<name>\S+) ")
OTHER_MPI = re.compile(r"(lib)?(openmpi|mpich)[-0-9]|(openmpi|mpich|lam4?)$")
MOST_INDEXES, MOST_SAID = 20, 500  # lines, and characters of a line, that are taken from a base
RECORD = re.compile(r"^(Package|Version|Architecture|Filename|SHA256): (.*)$", re.MULTILINE)


def want_files(
    stack: Stack,
    kept_pip: tuple[str, ...] = (),
    kept_apt: str = "",
    kept_dnf: tuple[str, ...] = (),
) -> dict[str, str]:
    """Return {path: text} of the files that tell the base what to resolve, one package a line.

    KEPT_PIP are further constraints of pip's, KEPT_APT are preferences of apt's, KEPT_DNF are packages
    with their versions.

    pip is asked twice: for packages that it builds in environments of their own, and for those that
    it builds with what the base has (`Packages.built_with_base`).
    """
    packages = stack.packages
    isolated = tuple(text for text in packages.pip if not packages.built_with_base(text))
    of_base = tuple(text for text in packages.pip if packages.built_with_base(text))
    wanted = {
        "want/apt.txt": packages.apt,
        "want/dnf.txt": packages.dnf,
        "want/dnf-kept.txt": kept_dnf,
        "want/pip.txt": isolated,
        "want/pip-of-base.txt": of_base,
        "want/pip-constraints.txt": (*packages.constraints, *kept_pip),
    }
    files = {path: "".join(f"{name}\n" for name in names) for path, names in wanted.items()}
    return {**files, "want/apt-preferences": kept_apt}


def read_pip(*reports: str) -> tuple[LockedPip, ...]:
    """Return the packages in REPORTS of `pip install --dry-run`, sorted by name.

    An empty text stands for a report that was not made. Raise InputError for a package that has no
    hash.
    """
    found = {entry.name: entry for text in reports if text for entry in _read_report(text)}
    return tuple(sorted(found.values(), key=lambda package: package.name))


@dataclass(frozen=True)
class BuildRequirements:
    """What source distributions are built with."""

    packages: tuple[LockedPip, ...]
    unknown: dict[str, str]  # {"NAME VERSION": why it could not be found out}


def read_build_requirements(text: str) -> BuildRequirements:
    """Read what images/build_requirements.py found. Raise InputError for what has no hash."""
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
    """Yield the packages in a report of pip's, whose format pip documents as version 1.

    https://pip.pypa.io/en/stable/reference/installation-report/
    """
    for entry in json.loads(text)["install"]:
        meta = entry["metadata"]
        info = entry["download_info"]
        file = unquote(urlsplit(info["url"]).path.rpartition("/")[2])
        hashes = _hashes(info.get("archive_info") or {})
        if not hashes:
            raise InputError(
                f"{meta['name']} {meta['version']} is not a file with a hash: {file}",
                "take it from a package index, not from git or a folder",
            )
        name = canonicalize_name(meta["name"])
        yield LockedPip(name=name, version=meta["version"], hashes=hashes, file=file)


def _hashes(archive: dict[str, Any]) -> tuple[str, ...]:
    """Return the hashes of ARCHIVE as `sha256:...`. pip used to write `hash`, now `hashes`."""
    found = dict(archive.get("hashes") or {})
    if not found and "=" in archive.get("hash", ""):
        kind, _, value = archive["hash"].partition("=")
        found = {kind: value}
    return tuple(f"{kind}:{value}" for kind, value in sorted(found.items()))


def read_left_out(text: str) -> tuple[str, ...] | None:
    """Return the base's extra indexes that did not answer, as `URL: why`; None if all did.

    Lines that are too long or too many are cut: a program of the base has written them.
    """
    lines = [UNSAFE.sub("?", line)[:MOST_SAID] for line in text.splitlines() if line.strip()]
    return tuple(lines[:MOST_INDEXES]) or None


def read_missing(text: str) -> dict[str, list[str]]:
    """Return {package that the base has: files of it that are missing}.

    TEXT is what images/resolve.sh wrote. NVIDIA's images keep the records of some packages, such as
    libibverbs-dev, without their libraries.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        package, _, path = UNSAFE.sub("?", line)[:MOST_SAID].partition(" ")
        found.setdefault(package, []).append(path)
    return found


def read_own_mpi(environment: Mapping[str, str]) -> str:
    """Return the MPI that NVIDIA put into a base with these variables; empty for none.

    It is no package of the distribution, so apt does not know of it.
    """
    known = (("HPC-X", "HPCX_VERSION"), ("Open MPI", "OPENMPI_VERSION"))
    return " with ".join(
        f"{name} {environment[variable]}" for name, variable in known if environment.get(variable)
    )


def read_apt(
    simulated: str, records: str, allow_replace: tuple[str, ...] = (), mpi: str = ""
) -> tuple[LockedApt, ...]:
    """Return the packages that `apt-get --simulate` would install, sorted by name.

    RECORDS is what `apt-cache show` says of them: files and hashes. Raise InputError if apt would
    replace or remove a package that NVIDIA chose for the base, or install another MPI beside MPI,
    the base's own, unless ALLOW_REPLACE names it.
    """
    known = _parse_records(records)
    for line in simulated.splitlines():
        removed = REMOVED.match(line)
        if removed and is_guarded_package(removed["name"], allow_replace):
            raise InputError(
                f"apt would remove {removed['name']} of the base",
                "leave out the package that conflicts with it, or pin it to a version that fits "
                "the base; to let it be removed, name it in packages.allow_replace",
                page="write-a-recipe",
            )

    out = []
    for match in filter(None, map(SIMULATED.match, simulated.splitlines())):
        _refuse_replacement(match, allow_replace, mpi)
        name, _, foreign = match["name"].partition(":")
        architecture = foreign or match["architecture"] or ""
        record = known.get((name, match["version"], architecture), {})
        file = record.get("Filename", "").rpartition("/")[2]
        digest = record.get("SHA256", "")
        if not digest:
            raise InputError(
                f"apt's archive has no sha256 of {match['name']} {match['version']}",
                "take the package from another apt archive",
            )
        out.append(
            LockedApt(
                name=match["name"], version=match["version"], file=file, hash=f"sha256:{digest}"
            )
        )
    return tuple(sorted(out, key=lambda package: package.name))


def read_dnf(text: str, allow_replace: tuple[str, ...] = ()) -> tuple[LockedRpm, ...]:
    """Return the packages that dnf would install, sorted by name. TEXT: images/dnf_plan.py.

    Raise InputError for packages that no repository has, and if dnf would replace or remove a
    package that NVIDIA chose for the base, unless ALLOW_REPLACE names it.
    """
    plan = json.loads(text)
    lost = [UNSAFE.sub("?", str(name))[:MOST_SAID] for name in plan["lost"]]
    if lost:
        raise InputError(
            f"no repository of the base has {', '.join(lost)}",
            "correct packages.dnf: NAME, or NAME=VERSION-RELEASE; dnf repoquery NAME shows them",
            page="write-a-recipe",
        )
    if plan["gone"]:
        names = [str(one).partition("=")[0] for one in plan["gone"]]
        raise InputError(
            f"no repository of the base has {UNSAFE.sub('?', ', '.join(plan['gone']))} any more",
            f"lock it anew as well: {UNSAFE.sub('?', ' '.join(f'--only {one}' for one in names))}",
            page="new-ngc-month",
        )
    if plan["problem"]:
        said = " ".join(UNSAFE.sub(" ", str(plan["problem"])).split())[:MOST_SAID]
        raise InputError(
            f"dnf finds no way to install them: {said}",
            "leave out or pin what conflicts with a package of the base",
            page="write-a-recipe",
        )
    new = {one["name"]: one["version"] for one in plan["install"]}
    for one in plan["remove"]:
        if is_guarded_package(one["name"], allow_replace):
            named = f"{one['name']} {one['version']} of the base"
            what = f"remove {named}"
            if one["name"] in new:
                what = f"replace {named} by {new[one['name']]}"
            raise InputError(
                f"dnf would {UNSAFE.sub('?', what)}",
                "leave out the package that asks for it, or pin it to a version that fits the base; "
                "to let it be replaced, name it in packages.allow_replace",
                page="write-a-recipe",
            )
    for one in plan["install"]:
        if not str(one["hash"]).startswith("sha256:"):
            raise InputError(
                f"the repository has no sha256 of {UNSAFE.sub('?', str(one['name']))}",
                "take the package from another repository, or tell its admin: createrepo_c "
                "--checksum sha256",
                page="write-a-recipe",
            )
    found = [LockedRpm(**one) for one in plan["install"]]
    return tuple(sorted(found, key=lambda package: package.name))


def _refuse_replacement(
    match: re.Match[str], allow_replace: tuple[str, ...], mpi: str = ""
) -> None:
    """Raise InputError if the package in MATCH, of SIMULATED, would harm what NVIDIA chose."""
    another_mpi = mpi and not match["had"] and OTHER_MPI.match(match["name"])
    if another_mpi and "mpi" not in allow_replace:
        raise InputError(
            f"apt would install {match['name']} {match['version']} beside the base's own {mpi}: "
            "programs would be built with the one and started with the other",
            "leave out the package that asks for it, since the base has mpicc and its headers; to "
            "let it in: packages.allow_replace: [mpi]",
            page="write-a-recipe",
        )
    if match["had"] and is_guarded_package(match["name"], allow_replace):
        raise InputError(
            f"apt would replace {match['name']} {match['had']} of the base by {match['version']}",
            "leave out the package that asks for it, or pin it to a version that fits the base",
            page="write-a-recipe",
        )


def _parse_records(text: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return {(package, version, architecture): fields} of `apt-cache show`.

    Records without a hash are left out: they are of packages that only dpkg knows, and no archive
    has.
    """
    found = {}
    for paragraph in text.split("\n\n"):
        record = dict(RECORD.findall(paragraph))
        if "SHA256" in record:
            key = (
                record.get("Package", ""),
                record.get("Version", ""),
                record.get("Architecture", ""),
            )
            found[key] = record
    return found


def read_conda(text: str) -> tuple[LockedConda, ...]:
    """Read the packages that images/conda.py has solved."""
    return tuple(LockedConda.model_validate(row) for row in json.loads(text))
