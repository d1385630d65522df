"""What the image's own Python has, for uv: FOLDER [EXPORTED].

uv must neither replace a package of the image nor ask an index about it. So each becomes a wheel
without files in FOLDER/shims, and its version a constraint in FOLDER/base.txt. FOLDER/names.txt has
all of them: Debian gives some packages versions that uv does not read.

What a package requires is in the image already, and is left out. What its extras require may not
be, and stays.

EXPORTED are pins of the user's own lock. Those of packages that the image lacks go into
FOLDER/pins.txt.

Runs inside an image, whose Python may be old.
"""

import os
import re
import sys
import zipfile

try:
    from importlib import metadata
except ImportError:  # Python 3.7
    import importlib_metadata as metadata


def normalize(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def find_packages():
    """{name: its distribution}: of several of one name, the one that is imported."""
    found = {}
    for one in metadata.distributions():
        name = one.metadata["Name"]
        version = one.metadata["Version"]
        if name and version and normalize(name) not in found:
            found[normalize(name)] = one
    return found


def is_version(text):
    """Whether uv reads it: https://packaging.python.org/en/latest/specifications/version-specifiers/"""
    return re.match(
        r"(?i)v?(\d+!)?\d+(\.\d+)*([-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?"
        r"(-\d+|[-_.]?(post|rev|r)[-_.]?\d*)?([-_.]?dev[-_.]?\d*)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?$",
        text,
    )


def is_of_an_extra(requirement):
    return re.search(r";.*\bextra\s*==", requirement)


def write_shim(folder, name, one):
    version = one.metadata["Version"]
    stem = "%s-%s" % (name.replace("-", "_"), version)
    lines = ["Metadata-Version: 2.1", "Name: " + name, "Version: " + version]
    for extra in one.metadata.get_all("Provides-Extra") or []:
        lines.append("Provides-Extra: " + extra)
    for requirement in one.metadata.get_all("Requires-Dist") or []:
        if is_of_an_extra(requirement):
            lines.append("Requires-Dist: " + requirement)
    wheel = "Wheel-Version: 1.0\nGenerator: hpcstack\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    path = os.path.join(folder, "shims", stem + "-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(stem + ".dist-info/METADATA", "\n".join(lines) + "\n")
        archive.writestr(stem + ".dist-info/WHEEL", wheel)
        archive.writestr(stem + ".dist-info/RECORD", "")


def write_pins(folder, exported, names):
    """Hashes are left out: uv does not take them in constraints."""
    with open(exported, encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    pins = []
    for line in text.splitlines():
        found = re.match(r"([A-Za-z0-9._-]+)\s*==\s*([^\s;]+)\s*(;[^#]*?)?\s*(--hash|#|$)", line)
        if found and normalize(found.group(1)) not in names:
            pins.append("%s==%s %s" % (found.group(1), found.group(2), found.group(3) or ""))
    with open(os.path.join(folder, "pins.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(pins) + "\n")


def main():
    folder = sys.argv[1]
    os.makedirs(os.path.join(folder, "shims"), exist_ok=True)
    found = find_packages()
    names = []
    constraints = []
    for name, one in sorted(found.items()):
        line = "%s==%s" % (name, one.metadata["Version"])
        names.append(line)
        if is_version(one.metadata["Version"]):
            write_shim(folder, name, one)
            constraints.append(line)
    for path, lines in (("names.txt", names), ("base.txt", constraints)):
        with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    if sys.argv[2:]:
        write_pins(folder, sys.argv[2], set(found))
    with open(os.path.join(folder, "python.txt"), "w", encoding="utf-8") as file:
        where = sys.executable, os.path.realpath(sys.executable)
        file.write("%d.%d\n%s\n" % (sys.version_info[0], sys.version_info[1], ":".join(where)))


main()
