"""Podman under srun, rootless: the image is mounted by squashfuse on the node and run as a root
filesystem.

Storage lies in a folder of the task's own on the node's disk: podman's usual place, the home
directory, is often on a filesystem that it cannot use. Its containers are no children of the
task's, so that Slurm kills them with a step only where it keeps the step in a cgroup
(ProctrackType). Elsewhere a keeper, which is no child of the task either, sees the task's end and
takes away what it left; and each task first takes away what the user's killed tasks left on the
node. https://docs.podman.io/en/v4.3/markdown/podman-run.1.html (--rootfs, :O)
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.core import data
from hpcstack.runtimes.base import (
    SRUN,
    Part,
    Runtime,
    Step,
    explain_binds,
    list_forced_variables,
    list_kept_variables,
    make_option,
)


@dataclass(frozen=True)
class Podman(Runtime):
    name: str = "podman"
    tool: str = "podman"
    brings: tuple[str, ...] = ("tmp",)
    needs_subuid: bool = True

    def parts(self, step: Step) -> list[Part]:
        own = list_kept_variables(step)
        out = [SRUN, *step.slurm]
        head = (
            "/bin/sh",
            "-c",
            data.read_script("on-node/podman.sh"),
            "podman",
            str(step.image),
            *own,
            "--",
        )
        out.append(Part(head, "the image, mounted; the task's variables go in"))
        out += [
            Part(("--env", f"{name}={value}"), "the image's own") for name, value in own.items()
        ]
        if step.gpus:
            out.append(
                Part(
                    ("--device", "nvidia.com/gpu=all"),
                    "the nodes have GPUs: NVIDIA's CDI describes them",
                )
            )
        out += [Part(("-v", mount), why) for mount, why in explain_binds(step)]
        out.append(make_option("--workdir", step.workdir, "where it was started"))
        out.append(Part(("@image",), "nothing is unpacked, nothing is written to it"))
        return [*out, Part(step.command, "what each task runs")]

    def environment(self, step: Step) -> dict[str, str]:
        return list_forced_variables(step)


RUNTIME = Podman()
