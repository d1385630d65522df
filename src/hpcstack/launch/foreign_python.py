"""Notes about another Python's packages that would come before the image's own.

Module systems of a site (EasyBuild, Spack, by hand) put folders of packages into PYTHONPATH, which
goes into the container: it is how people bring their own code. Where such a folder can be seen in
the image, its torch or numpy is imported in place of the image's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_A_PYTHON = re.compile(r"/(?:site|dist)-packages(?:/|$)")
# EasyBuild's modules name their folder so: https://docs.easybuild.io/terminology/
ROOT = "EBROOT"
VERSION = "EBVERSION"


def describe_foreign_packages(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each folder of another Python's packages in PYTHONPATH."""
    out = []
    for folder in environ.get("PYTHONPATH", "").split(":"):
        if not OF_A_PYTHON.search(folder):
            continue
        module = _find_module(folder, environ)
        whose = f"the loaded module {module}" if module else "another Python"
        remedy = f"module unload {module}" if module else "unset PYTHONPATH"
        out.append(
            f"PYTHONPATH names packages of {whose} ({folder}): where the image can see them, they "
            f"come before its own; {remedy}"
        )
    return out


def _find_module(folder: str, environ: Mapping[str, str]) -> str:
    """Return NAME/VERSION of the module of EasyBuild's that FOLDER lies in; empty for none."""
    for variable, root in environ.items():
        if not variable.startswith(ROOT) or not root:
            continue
        if folder == root or folder.startswith(f"{root.rstrip('/')}/"):
            # the module's own spelling is that of its folder: .../software/PyTorch/2.1.2
            name = root.rstrip("/").split("/")[-2:]
            version = environ.get(VERSION + variable.removeprefix(ROOT), "")
            if len(name) == 2 and name[1] == version:
                return "/".join(name)
            return variable.removeprefix(ROOT)
    return ""
