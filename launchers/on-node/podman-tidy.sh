# Takes away what a task has in the folder $1: its processes, which carry its name, its mount, its storage. podman.sh holds
# it in single quotes, so that none may be in it.
oci=
if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && command -v runc >/dev/null; then oci=--runtime=runc; fi
tidy() {
    unset HPCSTACK_PODMAN
    # of this job: one that a rank submits has the name, too
    grep -lsxzF "HPCSTACK_PODMAN=$1" /proc/[0-9]*/environ | xargs -r grep -lsxzF "SLURM_JOB_ID=${SLURM_JOB_ID:-}" |
        cut -d/ -f3 | xargs -r kill -KILL 2>/dev/null
    pkill -KILL -u "$(id -u)" -f -- "$1/root " # what clears a container up, and has no environment
    for mounted in "$1/image" "$1"/squashfs-*; do
        fusermount -u "$mounted" 2>/dev/null || fusermount -uz "$mounted" 2>/dev/null
    done
    rm -rf --one-file-system "$1/root" "$1/run" "$1/image" "$1/libpod" 2>/dev/null || tidy_mapped "$1"
    [ -e "$1/root" ] || rm -rf --one-file-system "$1" # else `task` stays, by which the next one finds it
}
tidy_mapped() { # what belongs to other users of the container
    XDG_RUNTIME_DIR=$1 podman $oci --log-level=error --root "$1/root" --runroot "$1/run" \
        unshare rm -rf "$1/root" "$1/run"
    xargs -r kill -KILL <"$1/libpod/tmp/pause.pid" 2>/dev/null
}
