"""The srun and sbatch scripts that users copy."""

from __future__ import annotations

from hpcstack.render.template import fill, plain
from hpcstack.site import NodeType, Site
from hpcstack.spec.model import Stack

COMPAT = 'if [ -r /opt/hpcstack/compat.sh ]; then . /opt/hpcstack/compat.sh; fi; exec "$@"'


def with_compat(command: tuple[str, ...]) -> tuple[str, ...]:
    """COMMAND behind the image's own look at the node's driver (images/compat.sh): Pyxis runs no entrypoint."""
    return ("/bin/sh", "-c", COMPAT, "compat", *command)


def inner(mode: str) -> str:
    """What each task runs inside the image, as a POSIX shell script; empty where it runs the command itself."""
    return plain("launchers", "torchrun.sh") if mode == "torchrun" else ""


def launcher_files(stack: Stack, site: Site) -> dict[str, str]:
    """`srun.sh` and `sbatch.sh` for STACK at SITE."""
    node = site.node_type() or NodeType()
    values = {
        "stack": stack.full_name,
        "name": stack.name,
        "version": stack.release_version,
        "mode": stack.launch.mode,
        "inner": inner(stack.launch.mode),
        "ranks": max(node.real_gpus, 1),
        "gpus": node.gpus.count if node.gpus else 0,
        "cpus": node.cpus,
        "real_gpus": bool(node.real_gpus),
        "compat": COMPAT,
        "fabric": site.fabric.settings,
        "forced": [*([] if node.real_gpus else ["NVIDIA_VISIBLE_DEVICES"]), *site.fabric.settings],
        "runtime": site.runtime,
        "mounts": "".join(f"{mount}," for mount in site.mounts),
    }
    return {name: fill("launchers", f"{name}.j2", **values) for name in ("srun.sh", "sbatch.sh")}
