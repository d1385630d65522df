"""The parts list of an image, as scanners read it."""

from __future__ import annotations

import json

import pytest
from packageurl import PackageURL

from hpcstack.store import sbom
from hpcstack.store.artifact import Artifact
from hpcstack.store.contents import Distribution

ARTIFACT = Artifact(
    stack="pytorch-24.11", key="k", sha256="0" * 64, size=1, platform="linux/amd64", engine="apptainer",
    lock_sha256="0" * 64, base="b:1", stand_in="", suite="0", facts={}, apt={"libc6": "2.35-0ubuntu3.8"},
    pip={"torch": "2.6.0a0"}, folder="/store/images/k",
)  # fmt: skip


@pytest.mark.parametrize(
    ("distribution", "qualifier"),
    [(Distribution("ubuntu", "22.04"), "ubuntu-22.04"), (Distribution("debian", "12"), "debian-12"),
     (Distribution("debian"), None)],
)  # fmt: skip
def test_scanners_know_whose_packages_they_are(
    distribution: Distribution, qualifier: str | None
) -> None:
    """admin 8: without `distro` and a component of the operating system, Trivy and Grype matched no
    package.
    """
    found = json.loads(sbom.make_sbom(ARTIFACT, distribution))["components"]
    (system,) = [one for one in found if one["type"] == "operating-system"]
    assert (system["name"], system.get("version", "")) == (distribution.name, distribution.version)
    (libc,) = [PackageURL.from_string(one["purl"]) for one in found if one["name"] == "libc6"]
    assert (libc.namespace, libc.qualifiers.get("distro")) == (distribution.name, qualifier)


def test_the_same_image_gives_the_same_bytes() -> None:
    texts = {sbom.make_sbom(ARTIFACT, Distribution("ubuntu", "22.04")) for _ in range(2)}
    assert len(texts) == 1
