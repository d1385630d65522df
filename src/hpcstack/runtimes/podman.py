"""Rootless Podman under srun: squashfuse mounts the image on the node, as a root filesystem.

Podman's storage lies in a folder of the task's own on the node's disk. Its usual place, the home
directory, is often on a filesystem that podman cannot use.

Podman's containers are not children of the task. Slurm therefore kills them with the step only
where it keeps the step in a cgroup (ProctrackType). Elsewhere a keeper process, which is no child
of the task either, notices the task's end and removes what it left. And each task begins by
removing what this user's killed tasks left on the node.
https://docs.podman.io/en/v4.3/markdown/podman-run.1.html (--rootfs, :O)

Tested in tests/unit/launch/test_plan.py and tests/unit/launch/test_host_libraries.py.
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
    start_helper,
)
from hpcstack.runtimes.squashfs_mounts import list_placeholders, list_words


@dataclass(frozen=True)
class Podman(Runtime):
    """srun starts one `podman run` for each task, under a shell script that cleans up."""

    name: str = "podman"
    tool: str = "podman"
    brings: tuple[str, ...] = ("tmp",)
    needs_subuid: bool = True

    def parts(self, step: Step) -> list[Part]:
        out = [SRUN, *step.slurm, *start_helper(step)]

        # The script hands on the task's variables, except those named before `--`.
        own = list_kept_variables(step)
        script = data.read_script("on-node/podman.sh")
        squashfs = (*list_words(step.squashfs), "--")
        head = ("/bin/sh", "-c", script, "podman", str(step.image), *squashfs, *own, "--")
        out.append(Part(head, "the image, mounted; the task's variables go in"))

        for name, value in own.items():
            out.append(Part(("--env", f"{name}={value}"), "the image's own"))
        if step.gpus:
            why = "the nodes have GPUs: NVIDIA's CDI describes them"
            out.append(Part(("--device", "nvidia.com/gpu=all"), why))

        folders = list_placeholders(step.squashfs)
        out += [Part(("-v", mount), why) for mount, why in explain_binds(step, folders)]
        out.append(make_option("--workdir", step.workdir, "where it was started"))

        # The script replaces this word by `--rootfs` and the folder where it has mounted the image.
        out.append(Part(("@image",), "nothing is unpacked, nothing is written to it"))
        out.append(Part(step.command, "what each task runs"))
        return out

    def environment(self, step: Step) -> dict[str, str]:
        return list_forced_variables(step)


RUNTIME = Podman()
