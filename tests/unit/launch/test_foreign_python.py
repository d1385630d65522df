"""Packages of another Python in PYTHONPATH are told of, with the module that brought them."""

from __future__ import annotations

from hpcstack.launch.foreign_python import describe_foreign_packages

ROOT = "/apps/software/PyTorch/2.1.2"
# what EasyBuild 5.4.1's module of a bundle of that name sets
EASYBUILD = {
    "PYTHONPATH": f"{ROOT}/lib/python3.11/site-packages",
    "LD_LIBRARY_PATH": f"{ROOT}/lib",
    "EBROOTPYTORCH": ROOT,
    "EBVERSIONPYTORCH": "2.1.2",
    "EBROOTGCC": "/apps/software/GCC/13",
    "EBVERSIONGCC": "13",
}


def test_a_module_of_easybuilds_is_named() -> None:
    [said] = describe_foreign_packages(EASYBUILD)
    assert "packages of the loaded module PyTorch/2.1.2" in said
    assert said.endswith("module unload PyTorch/2.1.2")


def test_what_nobody_names_is_told_of_too() -> None:
    [said] = describe_foreign_packages({"PYTHONPATH": "/opt/x/lib/python3/dist-packages:"})
    assert "packages of another Python (/opt/x/lib/python3/dist-packages)" in said
    assert said.endswith("unset PYTHONPATH")


def test_ones_own_code_is_no_matter() -> None:
    assert describe_foreign_packages({"PYTHONPATH": "/home/me/project/src:/home/me/site"}) == []
    assert describe_foreign_packages({}) == []
