"""Conda packages inside an image, by rattler (the library of pixi), which a build brings along and
takes away again.

    python3 conda.py solve SPECS.json OUT.json          what the specs mean now
    python3 conda.py install LOCKED.json PREFIX         exactly these files

SPECS.json is {"channels": [...], "packages": [...]}. URLs in OUT.json name the channel's own host;
a site's mirror (HPCSTACK_CONDA_ALIAS) takes its place only while something is fetched.
"""

import asyncio
import glob
import json
import os
import re
import sys
from urllib.parse import urlsplit

import rattler

HOME = "https://conda.anaconda.org"
KEYS = ("name", "version", "build", "build_number", "subdir", "noarch")


def alias():
    return (os.environ.get("HPCSTACK_CONDA_ALIAS") or HOME).rstrip("/")


def near(url):
    """URL at the site's mirror."""
    return alias() + url[len(HOME) :] if url.startswith(HOME + "/") else url


def far(url):
    """URL at the channel's own host: a mirror's address, which may hold a password, is for this
    site alone.
    """
    mine, given = urlsplit(alias()), urlsplit(url)
    if alias() != HOME and (given.hostname, given.port or 443) == (mine.hostname, mine.port or 443):
        if not given.path.startswith(f"{mine.path}/"):
            sys.exit(f"a package comes from another place of the mirror: {given.path}")
        return HOME + given.path[len(mine.path) :]
    if "@" in given.netloc:
        sys.exit("a channel's URL may not hold a login")
    return url


def channel(name):
    return rattler.Channel(near(name) if "://" in name else f"{alias()}/{name}")


def virtual_packages():
    """What this machine and the image promise: no driver is here, but the image's CUDA says what it
    will get.
    """
    found = [package.into_generic() for package in rattler.VirtualPackage.detect()]
    # The processor of the machine that asks is not that of the machines that run.
    found = [package for package in found if package.name.normalized != "__archspec"]
    cuda = re.match(r"\d+\.\d+", os.environ.get("CUDA_VERSION", ""))
    if cuda and not any(package.name.normalized == "__cuda" for package in found):
        version = rattler.Version(cuda[0])
        found.append(
            rattler.GenericVirtualPackage(
                rattler.PackageName("__cuda"), version, rattler.BuildString("0")
            )
        )
    return found


def described(record):
    full = json.loads(record.to_json())
    out = {key: full[key] for key in KEYS if full.get(key) is not None}
    digest = full.get("sha256")
    if not digest:
        sys.exit(f"{record.url} has no sha256 in its channel")
    return {**out, "url": far(str(record.url)), "sha256": digest}


async def solve(specs_file, out_file):
    with open(specs_file) as file:
        wanted = json.load(file)
    records = await rattler.solve(
        [channel(name) for name in wanted["channels"]],
        wanted["packages"],
        platforms=[str(rattler.Subdir.current()), "noarch"],
        virtual_packages=virtual_packages(),
    )
    rows = sorted((described(record) for record in records), key=lambda row: row["name"])
    with open(out_file, "w") as file:
        json.dump(rows, file, indent=1, sort_keys=True)


def record(row):
    package = rattler.PackageRecord(
        row["name"],
        row["version"],
        rattler.BuildString(row["build"]),
        int(row.get("build_number", 0)),
        row["subdir"],
        noarch=row.get("noarch"),
        sha256=bytes.fromhex(row["sha256"]),
    )
    url = near(row["url"])
    place, _, name = url.rpartition("/")
    return rattler.RepoDataRecord(package, name, url, place.rpartition("/")[0])


async def install(locked_file, prefix):
    if os.path.isdir(os.path.join(prefix, "conda-meta")):
        sys.exit(
            f"{prefix} is an environment of the base already: name another `prefix`, e.g. "
            f"/opt/conda/envs/stack"
        )
    with open(locked_file) as file:
        rows = json.load(file)
    await rattler.install(
        [record(row) for row in rows],
        prefix,
        cache_dir=os.path.join(os.environ["TMPDIR"], "conda"),
        show_progress=False,
        execute_link_scripts=False,
    )
    for path in glob.glob(os.path.join(glob.escape(prefix), "conda-meta", "*.json")):
        remember(path)
    print(f"{len(rows)} conda package(s) in {prefix}")


def remember(path):
    """What conda writes down of a package names where it is from, not the site's mirror of that."""
    with open(path) as file:
        said = json.load(file)
    for key in ("url", "channel"):
        if isinstance(said.get(key), str):
            said[key] = far(said[key] + "/").rstrip("/")
    with open(path, "w") as file:
        json.dump(said, file, indent=2)
        file.write("\n")
    os.chmod(path, 0o644)  # rattler lets its owner alone read it, and users of the image are others


if __name__ == "__main__":
    try:
        asyncio.run({"solve": solve, "install": install}[sys.argv[1]](*sys.argv[2:]))
    except Exception as error:  # rattler's own say what is wrong; where in Python does not matter
        sys.exit(f"conda: {type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(0)  # rattler's threads and the end of the interpreter do not always agree
