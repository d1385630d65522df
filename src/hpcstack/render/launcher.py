"""The srun and sbatch scripts that users copy."""

from __future__ import annotations

from hpcstack.render.template import fill, plain
from hpcstack.site import NodeType, Site
from hpcstack.spec.model import Stack


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
        "runtime": site.runtime,
        "mounts": "".join(f"{mount}," for mount in site.mounts),
    }
    return {name: fill("launchers", f"{name}.j2", **values) for name in ("srun.sh", "sbatch.sh")}
