"""Modulefiles and wrappers of a release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hpcstack.fit import fit
from hpcstack.render.template import fill
from hpcstack.site import Site
from hpcstack.spec.model import Stack

SHOWN = re.compile(
    r"^(torch|deepspeed|numpy|transformer[-_]engine|flash[-_]attn|lightning|transformers)$", re.IGNORECASE
)
PLAIN = re.compile(r"^[A-Za-z0-9._+-]+$")


@dataclass(frozen=True)
class Release:
    """What a published image is to its users: `pytorch/24.11-r1`, absolute paths, and the evidence."""

    stack: Stack
    number: int
    image: str
    sha256: str
    bin: str
    base: str
    stand_in: str = ""
    holds: tuple[tuple[str, str], ...] = ()
    pip: tuple[tuple[str, str], ...] = ()
    fits: tuple[tuple[str, str], ...] = ()  # ((node type, how its driver runs the image), ...) when it was published

    @property
    def version(self) -> str:
        return f"{self.stack.release_version}-r{self.number}"

    @property
    def name(self) -> str:
        return f"{self.stack.name}/{self.version}"


def modulefile(release: Release) -> str:
    """The Lua modulefile. It names absolute paths of the release only, so what is loaded can be unloaded."""
    return fill(
        "modules",
        "modulefile.lua.j2",
        help=help_text(release),
        extensions=", ".join(extensions(release)),
        **_values(release),
    )


def modulefile_tcl(release: Release) -> str:
    """The same in Tcl, for Environment Modules."""
    return fill("modules", "modulefile.tcl.j2", help=help_text(release).rstrip("\n").split("\n"), **_values(release))


def _values(release: Release) -> dict[str, str]:
    return {
        "release": release.name,
        "name": release.stack.name,
        "version": release.version,
        "stack": release.stack.full_name,
        "summary": release.stack.summary,
        "base": release.base,
        "stand_in": release.stand_in,
        "image": release.image,
        "sha256": release.sha256,
        "bin": release.bin,
    }


def fits(site: Site, platform: str, environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """((node type, how its driver and GPU run an image of PLATFORM with ENVIRONMENT), ...)."""
    return tuple(
        (name, str(fit(node.driver, node.gpus.model, environment)))
        for name, node in site.node_types.items()
        if node.gpus and node.real_gpus and node.driver and node.platform == platform
    )


def help_text(release: Release) -> str:
    """What `module help` shows: what is inside, and three lines to copy."""
    stack = release.stack
    lines = [stack.summary, ""]
    lines += [f"  {name}: {value}" for name, value in release.holds]
    lines += [f"  on {node}: {said}" for node, said in release.fits]
    if release.stand_in:
        lines += ["", f"STAND-IN, not NVIDIA's image: {release.stand_in}"]
    lines += [
        "",
        "  hpcstack launch " + stack.full_name + " -N 2 -- train.py",
        '  srun -N 2 --ntasks-per-node=1 --container-image="$HPCSTACK_IMAGE" /opt/hpcstack/compat.sh COMMAND   (Pyxis)',
        '  srun -N 2 --ntasks-per-node=1 apptainer exec --nv "$HPCSTACK_IMAGE" COMMAND',
    ]
    return "\n".join(lines) + "\n"


def extensions(release: Release) -> list[str]:
    """`torch/2.6.0a0+...` for `module spider`: the image's real versions of what users search for."""
    return [f"{name}/{version}" for name, version in release.pip if SHOWN.fullmatch(name) and PLAIN.fullmatch(version)]


def wrappers(release: Release) -> dict[str, str]:
    """{command: script} of the recipe's commands."""
    return {
        command: fill("modules", "wrapper.sh.j2", command=command, release=release.name, image=release.image)
        for command in release.stack.module.commands
    }


def modulerc(aliases: dict[str, str], default: str) -> str:
    """`.modulerc.lua`: {alias: release}, full names as `pytorch/24.11-r2`, and the default release."""
    return fill("modules", "modulerc.lua.j2", aliases=aliases, default=default)
