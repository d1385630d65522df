"""Podman under srun, rootless: the image is mounted by squashfuse on the node and run as a root filesystem.

Storage lies in a folder of the task's own on the node's disk: podman's usual place, the home directory, is often on a
filesystem that it cannot use. Its containers are no children of the task's, so that Slurm kills them with a step only
where it keeps the step in a cgroup (ProctrackType). Elsewhere a keeper, which is no child of the task either, sees the
task's end and takes away what it left; and each task first takes away what the user's killed tasks left on the node.
https://docs.podman.io/en/v4.3/markdown/podman-run.1.html (--rootfs, :O)
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.runtimes.base import SRUN, Part, Step, forced, mounted
from hpcstack.runtimes.environment import LEFT, NAMES, kept

# Takes away what a task has in the folder $1: its processes, which carry its name, its mount, its storage.
TIDY = """\
oci=
if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && command -v runc >/dev/null; then oci=--runtime=runc; fi
tidy() {
    unset HPCSTACK_PODMAN
    # of this job: one that a rank submits has the name, too
    grep -lsxzF "HPCSTACK_PODMAN=$1" /proc/[0-9]*/environ | xargs -r grep -lsxzF "SLURM_JOB_ID=${SLURM_JOB_ID:-}" |
        cut -d/ -f3 | xargs -r kill -KILL 2>/dev/null
    pkill -KILL -u "$(id -u)" -f -- "$1/root " # what clears a container up, and has no environment
    fusermount -u "$1/image" 2>/dev/null || fusermount -uz "$1/image" 2>/dev/null
    rm -rf --one-file-system "$1/root" "$1/run" "$1/image" "$1/libpod" 2>/dev/null || tidy_mapped "$1"
    [ -e "$1/root" ] || rm -rf --one-file-system "$1" # else `task` stays, by which the next one finds it
}
tidy_mapped() { # what belongs to other users of the container
    XDG_RUNTIME_DIR=$1 podman $oci --log-level=error --root "$1/root" --runroot "$1/run" \\
        unshare rm -rf "$1/root" "$1/run"
    xargs -r kill -KILL <"$1/libpod/tmp/pause.pid" 2>/dev/null
}
"""
START = (
    f"""\
image=$1
shift
{LEFT}\
tidy='{TIDY}'
eval "$tidy"
# of tasks of this machine that were killed together with their keepers; TMPDIR may be one that all machines see
for old in "${{TMPDIR:-/tmp}}"/hpcstack-podman-*; do
    if [ ! -O "$old" ] || [ -L "$old" ] || [ ! -f "$old/task" ]; then continue; fi
    read -r host pid job <"$old/task" || continue
    case $pid in '' | *[!0-9]*) continue ;; esac
    if [ "$host" = "$(uname -n)" ] && ! kill -0 "$pid" 2>/dev/null; then (SLURM_JOB_ID=$job && tidy "$old"); fi
done
work=$(mktemp -d "${{TMPDIR:-/tmp}}/hpcstack-podman-XXXXXX") || exit 125
mkdir "$work/image" && mkfifo "$work/alive" || exit 125
echo "$(uname -n) $$ ${{SLURM_JOB_ID:-}}" >"$work/.task" && mv "$work/.task" "$work/task" || exit 125
# the keeper reads a pipe that this shell alone holds open: its end is the shell's
keeper='trap "" TERM INT HUP USR1 USR2; read -r _ <"$1/alive"; tidy "$1"'
(setsid /bin/sh -c "$tidy$keeper" keeper "$work" </dev/null >/dev/null 2>&1 &)
exec 9<>"$work/alive" # for reading, too: so it does not wait for a keeper that could not be started
export HPCSTACK_PODMAN="$work"
"""
    + NAMES
    + """\
# the mount must outlive the signals that the ranks get
(trap '' TERM INT HUP USR1 USR2 && exec squashfuse -o "uid=$(id -u),gid=$(id -g)" "$image" "$work/image" 9>&-) ||
    exit 125
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
trap 'told=143' TERM # podman has it, too, and hands it on; what is mounted goes after it
trap 'told=130' INT
trap : USR1 USR2
podman $oci --log-level=error --root "$work/root" --runroot "$work/run" --cgroup-manager=cgroupfs \\
    --events-backend=none run --rm -i --network=host --pid=host --userns=keep-id --ulimit=host \\
    --security-opt label=disable --security-opt seccomp=unconfined -v /dev/shm:/dev/shm -v /tmp:/tmp "$@" 9>&-
status=$?
[ "$status" != 0 ] || status=${told:-0}
tidy "$work" 9>&-
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
