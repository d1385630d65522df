"""What conda's packages are called on PyPI: facts/conda-names.yaml.

Tested in tests/unit/requirements/test_environment_yml.py.
"""

from __future__ import annotations

from packaging.utils import canonicalize_name

from hpcstack.core.data import read_facts


def find_name_on_pypi(name: str) -> str:
    """Return what the package NAME of conda's is called on PyPI; empty where that is not known."""
    known = read_facts("conda-names")
    other: str = known["other"].get(name, "")
    return other or (name if name in known["same"] else "")


def is_of_the_image(name: str) -> bool:
    """Return whether an image has the package NAME of conda's in its own way, or needs it not."""
    known = read_facts("conda-names")["of_the_image"]
    return canonicalize_name(name) in {canonicalize_name(one) for one in known}
