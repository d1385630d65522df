"""All that is rendered for one stack: what `hpcstack render` writes."""

from __future__ import annotations

from hpcstack.lock.model import Lock
from hpcstack.render.image import image_files
from hpcstack.render.launcher import launcher_files
from hpcstack.render.module import Release, fits, modulefile, modulefile_tcl, wrappers
from hpcstack.site import Site
from hpcstack.spec.model import Stack


def stack_files(stack: Stack, lock: Lock, site: Site, platform: str) -> dict[str, str]:
    """{path: text}: the definitions, the context, modulefiles as release r1 would have them, and the launchers."""
    release = preview(stack, lock, site, platform)
    return {
        **image_files(stack, lock, platform),
        "modulefile.lua": modulefile(release),
        "modulefile.tcl": modulefile_tcl(release),
        **{f"bin/{name}": text for name, text in wrappers(release).items()},
        **launcher_files(stack, site),
    }


def preview(stack: Stack, lock: Lock, site: Site, platform: str) -> Release:
    """The release that a first publish would make, before an image exists."""
    return Release(
        stack=stack,
        number=1,
        image=f"{site.store}/images/KEY/image.sqsh",
        sha256="of the image, once it is built",
        bin=f"{site.store}/releases/{stack.name}/{stack.release_version}-r1/bin",
        base=f"{lock.base.registry}/{lock.base.repository}:{lock.base.tag}",
        stand_in=lock.stand_in(),
        holds=tuple(lock.facts(platform).items()),
        fits=fits(site, platform, lock.platform(platform).environment),
    )
