"""Podman under srun, rootless: the image is mounted by squashfuse on the node and run as a root filesystem.

Storage lies in a folder of the task's own on the node's disk: podman's usual place, the home directory, is often on a
filesystem that it cannot use. Its containers are no children of the task's: where Slurm does not keep a step's
processes in a cgroup (ProctrackType), one that is killed may leave some behind.
https://docs.podman.io/en/v4.3/markdown/podman-run.1.html (--rootfs, :O)
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.runtimes.base import SRUN, Part, Step, forced, mounted
from hpcstack.runtimes.handed import LEFT, NAMES, kept

START = (
    """\
image=$1
shift
"""
    + LEFT
    + NAMES
    + """\
work=$(mktemp -d "${TMPDIR:-/tmp}/hpcstack-podman-XXXXXX") || exit 125
mkdir "$work/image"
# the mount must outlive the signals that the ranks get
(trap '' TERM INT HUP USR1 USR2 && exec squashfuse -o "uid=$(id -u),gid=$(id -g)" "$image" "$work/image") || exit 125
export XDG_RUNTIME_DIR="$work"
# the marker among the arguments becomes the mounted image; what stands before it are podman's options
count=$#
while [ "$count" -gt 0 ]; do
    word=$1 count=$((count - 1))
    shift
    if [ "$word" = @image ] && [ -z "${found:-}" ]; then
        found=yes
        set -- "$@" --rootfs "$work/image:O"
    else
        set -- "$@" "$word"
    fi
done
for device in /dev/infiniband/* /dev/gdrdrv; do [ ! -e "$device" ] || set -- --device "$device" "$@"; done
oci=
if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && command -v runc >/dev/null; then oci=--runtime=runc; fi
trap 'told=143' TERM # podman has it, too, and hands it on; what is mounted goes after it
trap 'told=130' INT
trap : USR1 USR2
podman $oci --log-level=error --root "$work/root" --runroot "$work/run" --cgroup-manager=cgroupfs \\
    --events-backend=none run --rm -i --network=host --pid=host --userns=keep-id --ulimit=host \\
    --security-opt label=disable --security-opt seccomp=unconfined -v /dev/shm:/dev/shm -v /tmp:/tmp "$@"
status=$?
[ "$status" != 0 ] || status=${told:-0}
fusermount -u "$work/image"
podman $oci --log-level=error --root "$work/root" --runroot "$work/run" unshare rm -rf "$work/root" "$work/run"
rm -rf --one-file-system "$work"
exit "$status"
"""
)


@dataclass(frozen=True)
class Podman:
    name: str = "podman"

    def parts(self, step: Step) -> list[Part]:
        own = kept(step)
        out = [SRUN, *step.slurm]
        head = ("/bin/sh", "-c", START, "podman", str(step.image), *own, "--")
        out.append(Part(head, "the image, mounted; the task's variables go in"))
        out += [Part(("--env", f"{name}={value}"), "the image's own") for name, value in own.items()]
        if step.gpus:
            out.append(Part(("--device", "nvidia.com/gpu=all"), "the nodes have GPUs: NVIDIA's CDI describes them"))
        out += [Part(("-v", mount), why) for mount, why in mounted(step)]
        out.append(Part((f"--workdir={step.workdir}",), "where it was started"))
        out.append(Part(("@image",), "nothing is unpacked, nothing is written to it"))
        return [*out, Part(step.command, "what each task runs")]

    def environment(self, step: Step) -> dict[str, str]:
        return forced(step)


RUNTIME = Podman()
