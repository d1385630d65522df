# Holds left-out.sh, task-names.sh, own-folder.sh, squashfs.sh and podman-tidy.sh. A task under podman: the image is
# mounted, and run as a root file system. In podman's options, `@squashfs1:` and so on are the folders of the squashfs files.
# Arguments: IMAGE [FILE NAME]... -- NAMES... -- OPTIONS of podman run... @image COMMAND...
image=$1
shift
files=
while [ "$1" != -- ]; do
    files="$files$1:$2 "
    shift 2
done
shift
#: own-folder.sh
#: squashfs.sh
#: left-out.sh
tidy='
#: podman-tidy.sh
'
eval "$tidy"
# of tasks of this machine that were killed together with their keepers; TMPDIR may be one that all machines see
here=$(readlink /proc/self/ns/pid)
for old in "${TMPDIR:-/tmp}"/hpcstack-podman-*; do
    if [ ! -O "$old" ] || [ -L "$old" ] || [ ! -f "$old/task" ]; then continue; fi
    read -r host pid job space <"$old/task" || continue
    case $pid in '' | *[!0-9]*) continue ;; esac
    if [ "$job" = - ]; then job=; fi
    # a task of another PID namespace cannot be seen from here (namespace/linux of Slurm 25.11)
    if [ "${space:-$here}" != "$here" ]; then continue; fi
    if [ "$host" = "$(uname -n)" ] && ! kill -0 "$pid" 2>/dev/null; then (SLURM_JOB_ID=$job && tidy "$old"); fi
done
work=$(mktemp -d "${TMPDIR:-/tmp}/hpcstack-podman-XXXXXX") || exit 125
mkdir "$work/image" && mkfifo "$work/alive" || exit 125
echo "$(uname -n) $$ ${SLURM_JOB_ID:--} $here" >"$work/.task" && mv "$work/.task" "$work/task" || exit 125
# the keeper reads a pipe that this shell alone holds open: its end is the shell's
keeper='trap "" TERM INT HUP USR1 USR2; read -r _ <"$1/alive"; tidy "$1"'
(setsid /bin/sh -c "$tidy$keeper" keeper "$work" </dev/null >/dev/null 2>&1 &)
exec 9<>"$work/alive" # for reading, too: so it does not wait for a keeper that could not be started
export HPCSTACK_PODMAN="$work"
#: task-names.sh
# the mount must outlive the signals that the ranks get; squashfuse_ll reads with many threads, squashfuse with one
served() { (trap '' TERM INT HUP USR1 USR2 && exec "$1" -o "uid=$(id -u),gid=$(id -g)" "$image" "$work/image" 9>&-); }
{ command -v squashfuse_ll >/dev/null && served squashfuse_ll 2>/dev/null; } || served squashfuse || exit 125
export XDG_RUNTIME_DIR="$work"
own_podman() {
    podman $oci --log-level=error --root "$work/root" --runroot "$work/run" --cgroup-manager=cgroupfs \
        --events-backend=none "$@" 9>&-
}
# In podman's own user namespace: a mount of this user's outside it is closed to the other users that a container has.
serve_squashfs() {
    for way in squashfuse_ll squashfuse; do
        command -v "$way" >/dev/null || continue
        (trap '' TERM INT HUP USR1 USR2 && own_podman unshare "$way" -o allow_other "$1" "$2") \
            </dev/null >/dev/null 2>&1 && return 0
    done
    return 1
}
served=$$
count=0
folders=
for one in $files; do # neither has blanks in it
    count=$((count + 1))
    open_squashfs "${one%:*}" "${one##*:}" "$work/squashfs-$count"
    folders="$folders$opened
"
done
# the marker among the arguments becomes the mounted image; what stands before it are podman's options
count=$#
while [ "$count" -gt 0 ]; do
    word=$1 count=$((count - 1))
    shift
    case ${found:-}$word in
    @image)
        found=yes
        set -- "$@" --rootfs "$work/image:O"
        ;;
    @squashfs[0-9]*:*)
        number=${word#@squashfs}
        number=${number%%:*}
        set -- "$@" "$(printf %s "$folders" | sed -n "${number}p"):${word#*:}"
        ;;
    *) set -- "$@" "$word" ;;
    esac
done
for device in /dev/infiniband/* /dev/gdrdrv; do [ ! -e "$device" ] || set -- --device "$device" "$@"; done
trap 'told=143' TERM # podman has it, too, and hands it on; what is mounted goes after it
trap 'told=130' INT
trap : USR1 USR2
own_podman run --rm -i --network=host --pid=host --userns=keep-id --ulimit=host \
    --security-opt label=disable --security-opt seccomp=unconfined -v /dev/shm:/dev/shm -v /tmp:/tmp "$@"
status=$?
[ "$status" != 0 ] || status=${told:-0}
tidy "$work" 9>&-
exit "$status"
