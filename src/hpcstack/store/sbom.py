"""The SBOM of an image, as CycloneDX: its dpkg, pip and conda packages.

They were read out of the image when it was built, so they are what is really in it.
https://cyclonedx.org/docs/1.6/json/; package URLs: https://github.com/package-url/purl-spec. The
document holds no time and no random number, so the same image gives the same bytes.
"""

from __future__ import annotations

import json
import uuid
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hpcstack.store.contents import Distribution, read_distribution
from hpcstack.store.licences import read_licences
from hpcstack.store.package import list_packages_elsewhere

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cyclonedx.model.component import Component
    from cyclonedx.model.license import DisjunctiveLicense
    from packageurl import PackageURL

    from hpcstack.store.artifact import Artifact

SPACE = uuid.UUID("6f1c3a52-7f0e-4c0a-9f63-3a0a0f2f6f50")  # of hpcstack's serial numbers
OF_APK = ("alpine", "wolfi", "chainguard", "postmarketos")  # distributions, by their os-release


def make_image_sbom(artifact: Artifact) -> str:
    """Return the SBOM of ARTIFACT, with the distribution and the licences that its image states."""
    distribution = read_distribution(artifact.image)
    return make_sbom(artifact, distribution, read_licences(artifact.image, artifact))


def make_sbom(
    artifact: Artifact,
    distribution: Distribution,
    licences: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> str:
    """Return the SBOM of ARTIFACT as CycloneDX 1.6 JSON.

    LICENCES are what its packages state, as `read_licences` returns them. Scanners match dpkg's
    packages by the release of the DISTRIBUTION. So that is a component of its own, and stands in
    each package's URL: https://github.com/package-url/purl-spec, type deb, `distro`.
    """
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    properties = [
        Property(name=f"hpcstack:{name}", value=value)
        for name, value in _list_properties(artifact).items()
    ]
    image = Component(
        name=artifact.stack,
        type=ComponentType.CONTAINER,
        bom_ref=f"image:{artifact.sha256}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=artifact.sha256)],
        properties=properties,
    )
    bom = Bom(
        serial_number=uuid.uuid5(SPACE, artifact.sha256),
        components=_list_components(artifact, distribution, licences),
    )
    bom.metadata.component = image
    bom.register_dependency(image, bom.components)

    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    out: dict[str, Any] = json.loads(text)
    out["metadata"].pop("timestamp", None)
    return json.dumps(out, indent=1, sort_keys=True) + "\n"


def _list_properties(artifact: Artifact) -> dict[str, str]:
    """Return {name: value} of what the SBOM says of the image itself."""
    out = {
        "base": artifact.base,
        "platform": artifact.platform,
        "engine": artifact.engine,
        "lock": artifact.lock_sha256,
    }
    if artifact.stand_in:
        out["stand-in"] = artifact.stand_in
    doubt = list_packages_elsewhere(artifact).doubt
    unlisted = [*artifact.unlisted, *([doubt] if doubt else [])]
    if unlisted:
        out["unlisted"] = f"UNKNOWN: {'; '.join(unlisted)}"
    if artifact.adopted:
        out["adopted"] = f"ADOPTED, not built by hpcstack: {artifact.adopted}"
    return out


def _list_components(
    artifact: Artifact, distribution: Distribution, licences: Mapping[str, tuple[str, ...]]
) -> list[Component]:
    """Return the distribution and then all packages, sorted by their URLs."""
    from packageurl import PackageURL
    from packaging.utils import canonicalize_name

    qualifiers = {"arch": artifact.platform.partition("/")[2]}
    if distribution.version:
        qualifiers["distro"] = f"{distribution.name}-{distribution.version}"
    urls: dict[PackageURL, tuple[str, ...]] = {}  # {a package: what it states of its licences}
    for name, version in artifact.apt.items():
        url = PackageURL("deb", distribution.name, name, version, qualifiers)
        urls[url] = licences.get(f"deb:{name}", ())
    for name, version in artifact.pip.items():
        url = PackageURL("pypi", None, canonicalize_name(name), version)
        urls[url] = licences.get(f"pypi:{name}", ())
    # A doubt is a property of the image.
    for one in list_packages_elsewhere(artifact).packages:
        urls.setdefault(PackageURL("pypi", None, canonicalize_name(one.name), one.version), ())
    kind = "apk" if distribution.name in OF_APK else "rpm"
    for name, version in artifact.other.items():
        urls[PackageURL(kind, distribution.name, name, version, qualifiers)] = ()
    for name, text in artifact.conda.items():
        version, _, build = text.partition("=")
        urls[PackageURL("conda", None, name, version, {"build": build})] = ()

    in_order = sorted(urls.items(), key=lambda pair: pair[0].to_string())
    packages = [_make_package(url, stated) for url, stated in in_order]
    return [_make_system(distribution), *packages]


def _make_system(distribution: Distribution) -> Component:
    """Return the component of the distribution, as Trivy and Grype look for it."""
    from cyclonedx.model.component import Component, ComponentType

    name, version = distribution.name, distribution.version or None
    reference = f"os:{name}-{version}" if version else f"os:{name}"
    return Component(
        name=name, version=version, type=ComponentType.OPERATING_SYSTEM, bom_ref=reference
    )


def _make_package(url: PackageURL, licences: tuple[str, ...]) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    text = url.to_string()
    return Component(
        name=url.name,
        version=url.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=text,
        licenses=[_make_licence(one) for one in licences],
    )


def _make_licence(stated: str) -> DisjunctiveLicense:
    """Return a licence: by its SPDX id where STATED is one, else by the name that was stated.

    An expression, such as `MIT AND Zlib`, is a name, too: the format takes one expression or many
    licences, and a package of Debian's has many.
    """
    from cyclonedx.model.license import DisjunctiveLicense
    from cyclonedx.spdx import fixup_id

    known = fixup_id(stated)
    return DisjunctiveLicense(id=known) if known else DisjunctiveLicense(name=stated)
