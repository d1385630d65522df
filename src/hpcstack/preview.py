"""Everything that is rendered for one stack: what `hpcstack render` writes.

Tested in tests/unit/lock/test_known.py and tests/unit/render/test_render.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hpcstack.core.errors import InputError
from hpcstack.core.quote import join_lines
from hpcstack.lock.known import list_lacking
from hpcstack.publish.modulefile import (
    Network,
    Release,
    describe_fits,
    render_modulefile,
    render_modulefile_tcl,
    render_wrappers,
)
from hpcstack.recipe.adopted import describe_adopted
from hpcstack.releases.layout import name_dates_file
from hpcstack.render import readback
from hpcstack.render.edf import render_edf
from hpcstack.render.image import render_image_files
from hpcstack.render.kubernetes import ClusterJob, render_job_set, render_train_job
from hpcstack.render.launchers import render_launcher_files
from hpcstack.render.reframe import render_reframe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.lock.model import Lock
    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site

FrontEnd = Literal["edf", "kubernetes", "jobset", "reframe"]


def render_for_front_end(
    kind: FrontEnd,
    stack: Stack,
    site: Site,
    *,
    image: str,
    command: Sequence[str],
    nodes: int,
    gpus: int | None,
    own: Sequence[str],
) -> str:
    """Return the file by which another front end runs STACK.

    IMAGE is a registry's, or the path of a squashfs. COMMAND runs in it, on NODES nodes with GPUS
    GPUs each: by default as many as SITE's default partition has. OWN are the words that start this
    hpcstack. InputError where the front end needs something that is not said.
    """
    if kind == "edf":
        return render_edf(stack, site, image)
    if kind == "reframe":
        return render_reframe(stack, own, nodes, site.modules.tier)

    if gpus is None:
        gpus = _count_gpus_of_site(site)
    job = ClusterJob(image, tuple(command), nodes, gpus)
    if kind == "kubernetes":
        return render_train_job(stack, job)
    return render_job_set(stack, job)


def _count_gpus_of_site(site: Site) -> int:
    """Return the real GPUs of a node of SITE's default partition. InputError where it has none."""
    node = site.node_type()
    if node and node.real_gpus:
        return node.real_gpus
    raise InputError(
        "how many GPUs does each node have?",
        "--gpus-per-node N, or 0",
        page="other-front-ends",
    )


def render_stack(
    stack: Stack, lock: Lock, site: Site, platform: str
) -> tuple[dict[str, str], list[str]]:
    """Return {path: text}, and a line for each fact of the base that was not looked up.

    The Apptainer definition is read back, to be sure that it says what the stack and its lock mean.
    """
    files = render_stack_files(stack, lock, site, platform)
    if not stack.adopted:
        readback.check_definition(stack, lock, platform, files["apptainer.def"])
    missing = list_lacking(stack, platform) if lock.not_looked_up else []
    return files, missing


def render_stack_files(stack: Stack, lock: Lock, site: Site, platform: str) -> dict[str, str]:
    """Return {path: text} of the definitions, their context, the modulefiles and the launchers.

    The modulefiles are those that the first release, r1, would have.
    """
    release = preview_release(stack, lock, site, platform)
    files = {
        **render_image_files(stack, lock, platform),
        "modulefile.lua": render_modulefile(release),
        "modulefile.tcl": render_modulefile_tcl(release),
        **render_wrappers(release),
        **render_launcher_files(stack, site, release.environment),
    }
    if lock.not_looked_up:
        return add_note(files, list_lacking(stack, platform))
    return files


def add_note(files: dict[str, str], lines: list[str]) -> dict[str, str]:
    """Return FILES with LINES as comments at the top of each definition, modulefile and script.

    They say which facts of the base were not looked up. A first line that is a comment or `#!`
    stays the first.
    """
    out = {}
    for path, text in files.items():
        if path.startswith("context/"):
            out[path] = text
            continue

        sign = "--" if path.endswith(".lua") else "#"
        note = "".join(f"{sign} {join_lines(line)}\n" for line in lines)
        first, end, rest = "", "", text
        if text.startswith("#"):
            first, end, rest = text.partition("\n")
        out[path] = f"{first}{end}{note}{rest}"
    return out


def preview_release(stack: Stack, lock: Lock, site: Site, platform: str) -> Release:
    """Return the release that a first publish would make, before there is an image.

    What only an image has, its key and its sha256, is a placeholder.
    """
    base = lock.platform(platform).environment
    return Release(
        stack=stack,
        number=1,
        image=f"{site.store}/images/KEY/image.sqsh",
        sha256="of the image, once it is built",
        folder=f"{site.store}/releases/{stack.name}/{stack.release_version}-r1",
        dates=str(name_dates_file(site.module_tree, stack.name, stack.release_version)),
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
