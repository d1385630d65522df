"""All that is rendered for one stack: what `hpcstack render` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.quote import join_lines
from hpcstack.lock.known import list_lacking
from hpcstack.publish.modulefile import (
    Network,
    Release,
    describe_fits,
    modulefile_tcl,
    render_modulefile,
    render_wrappers,
)
from hpcstack.recipe.adopted import describe_adopted
from hpcstack.releases.layout import dates_file
from hpcstack.render import readback
from hpcstack.render.image import image_files
from hpcstack.render.launchers import launcher_files

if TYPE_CHECKING:
    from hpcstack.lock.model import Lock
    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site


def render_stack(
    stack: Stack, lock: Lock, site: Site, platform: str
) -> tuple[dict[str, str], list[str]]:
    """({path: text}, what nobody has looked up), the definition read back: what it says is what was
    meant.
    """
    files = stack_files(stack, lock, site, platform)
    if not stack.adopted:
        readback.check_definition(stack, lock, platform, files["apptainer.def"])
    return files, list_lacking(stack, platform) if lock.not_looked_up else []


def stack_files(stack: Stack, lock: Lock, site: Site, platform: str) -> dict[str, str]:
    """{path: text}: the definitions, the context, modulefiles as release r1 would have them, and
    the launchers.
    """
    release = preview_release(stack, lock, site, platform)
    files = {
        **image_files(stack, lock, platform),
        "modulefile.lua": render_modulefile(release),
        "modulefile.tcl": modulefile_tcl(release),
        **render_wrappers(release),
        **launcher_files(stack, site, release.environment),
    }
    return add_note(files, list_lacking(stack, platform)) if lock.not_looked_up else files


def add_note(files: dict[str, str], lines: list[str]) -> dict[str, str]:
    """FILES of a stack that nobody has looked up: each definition, modulefile and script says so at
    its top.
    """
    out = {}
    for path, text in files.items():
        if path.startswith("context/"):
            out[path] = text
            continue
        sign = "--" if path.endswith(".lua") else "#"
        note = "".join(f"{sign} {join_lines(said)}\n" for said in lines)
        first, end, rest = text.partition("\n") if text.startswith("#") else ("", "", text)
        out[path] = f"{first}{end}{note}{rest}"
    return out


def preview_release(stack: Stack, lock: Lock, site: Site, platform: str) -> Release:
    """The release that a first publish would make, before an image exists."""
    base = lock.platform(platform).environment
    return Release(
        stack=stack,
        number=1,
        image=f"{site.store}/images/KEY/image.sqsh",
        sha256="of the image, once it is built",
        folder=f"{site.store}/releases/{stack.name}/{stack.release_version}-r1",
        dates=str(dates_file(site.module_tree, stack.name, stack.release_version)),
        base=lock.base_name(),
        stand_in=lock.stand_in(),
        adopted=describe_adopted(stack),
        holds=tuple(lock.facts(platform).items()),
        fits=describe_fits(site, platform, base),
        environment={**base, **stack.variables(base)},
        mounts=(*site.mounts, *stack.launch.mounts),
        network=Network.of(site, {**base, **stack.variables(base)}),
        runtime=site.runtime,
        without_gpus=site.without_gpus,
    )
