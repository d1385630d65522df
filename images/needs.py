"""What a source distribution is built with (PEP 518), a line each. Runs inside a base, whose Python may be old."""

import re
import sys
import tarfile
import zipfile

DEFAULT = ["setuptools>=40.8", "wheel"]


def project(path):
    """The text of its pyproject.toml, or nothing."""
    if path.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if re.match(r"[^/]+/pyproject\.toml$", name)]
            return archive.read(names[0]).decode() if names else ""
    with tarfile.open(path) as archive:
        members = [member for member in archive if re.match(r"(\./)?[^/]+/pyproject\.toml$", member.name)]
        return archive.extractfile(members[0]).read().decode() if members else ""


def requires(text):
    try:
        import tomllib
    except ImportError:  # before Python 3.11
        found = re.search(r"\[build-system\][^\[]*?requires\s*=\s*\[(.*?)\]\s*\n", text, re.DOTALL)
        return re.findall(r"""["']([^"']+)["']""", found.group(1)) if found else []
    return tomllib.loads(text).get("build-system", {}).get("requires", [])


for line in sorted(set(requires(project(sys.argv[1])) + DEFAULT)):
    print(line)
