# Functions that make the contents of squashfs files readable in folders: by FUSE, else unpacked once to the node's own
# disk. Needs own-folder.sh. Held by the scripts that start a container. They set `served` to the process that all of it is
# for: what serves a file ends with that process. Descriptors 7 and 8 are theirs, and 9 is closed in what they leave running.
squashfs_fail() {
    printf 'hpcstack: %s: %s\n' "$(uname -n)" "$1" >&2
    exit 125
}

# open_squashfs FILE NAME FOLDER: sets `opened` to the folder that shows what is in FILE. It is FOLDER where FILE can be
# mounted. NAME stands for the contents: files of one name hold the same.
open_squashfs() {
    [ -r "$1" ] || squashfs_fail "$1 cannot be read here; is it in a folder that all nodes have?"
    opened=$3
    if ! mkdir -p "$3" || ! serve_squashfs "$1" "$3"; then unpack_squashfs "$1" "$2"; fi
}

# serve_squashfs FILE FOLDER: mounts FILE, if there is FUSE. squashfuse_ll reads with many threads, but older ones do not
# take an owner for all files. squashfuse reads with one thread. Signals that Slurm sends to all processes of a step must
# not end the server. It holds none of the step's output open, as srun would wait for it.
serve_squashfs() {
    if [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then return 1; fi
    owner=uid=$(id -u),gid=$(stat -c %g /proc/self/)
    ll=/usr/libexec/apptainer/bin/squashfuse_ll # of Apptainer's own package
    for way in "squashfuse_ll -o $owner" squashfuse_ll "$ll -o $owner" "$ll" "squashfuse -o $owner"; do
        command -v "${way%% *}" >/dev/null 2>&1 || continue
        (
            trap '' TERM INT HUP USR1 USR2
            # shellcheck disable=SC2086 # a program and its options
            exec $way -f "$1" "$2"
        ) </dev/null >/dev/null 2>&1 7>&- 9>&- &
        server=$!
        looks=0
        until mountpoint -q "$2"; do
            looks=$((looks + 1))
            if [ "$looks" -gt 1500 ] || ! kill -0 "$server" 2>/dev/null; then
                kill -KILL "$server" 2>/dev/null
                continue 2
            fi
            sleep 0.01
        done
        end_with_served "$server"
        return 0
    done
    return 1
}

# end_with_served SERVER: the process SERVER ends when `served` does, and its mount with it.
end_with_served() {
    kill -0 "$served" 2>/dev/null || return 0 # it has a PID namespace of its own, which ends all that is in it
    (
        trap '' TERM INT HUP USR1 USR2
        tail --pid="$served" -s 0.2 -f /dev/null
        kill -KILL "$1"
    ) </dev/null >/dev/null 2>&1 7>&- 9>&- &
}

# unpack_squashfs FILE NAME: the first task of a node unpacks it, the others find it. All that use what is unpacked hold a
# lock in common; who gets it alone removes what has not been used for a day.
unpack_squashfs() {
    command -v unsquashfs >/dev/null ||
        squashfs_fail "$1 can neither be mounted nor unpacked here: there is no FUSE and no unsquashfs"
    own_folder unpacked || squashfs_fail "no folder can be made in ${TMPDIR:-/tmp}"
    top=$own
    hold_unpacked
    (
        flock 8
        [ ! -e "$top/$2" ] || exit 0
        printf 'hpcstack: %s: %s: %s is unpacked to %s, once for all tasks of the node\n' \
            "$(uname -n)" "${cannot_mount:-no FUSE here}" "$1" "$top" >&2
        remove_unpacked "$top/.part"
        if said=$(unsquashfs -no-progress -no-xattrs -dest "$top/.part" "$1" 2>&1 >/dev/null); then
            mv "$top/.part" "$top/$2"
        else
            printf '%s\n' "$said" | tail -n 3 >&2
            exit 1
        fi
    ) 8>"$top/.making" || squashfs_fail "$1 could not be unpacked to $top; is there room?"
    touch "$top/$2"
    opened=$top/$2
}

# hold_unpacked: holds the lock of those who use something in $top, once, for as long as `served` runs: whatever else
# inherits it may close it.
hold_unpacked() {
    if [ "${holds_unpacked:-}" = yes ]; then return 0; fi
    holds_unpacked=yes
    exec 7>"$top/.used"
    if flock -n 7; then
        for old in "$top"/*; do
            if [ -n "$(find "$old" -maxdepth 0 -mmin +1440 2>/dev/null)" ]; then remove_unpacked "$old"; fi
        done
    fi
    flock -s 7
    until="--pid=$served"
    kill -0 "$served" 2>/dev/null || until=--quiet # of another PID namespace, which ends all of its own
    (
        trap '' TERM INT HUP USR1 USR2
        exec tail "$until" -s 0.2 -f /dev/null
    ) </dev/null >/dev/null 2>&1 &
}

remove_unpacked() {
    [ ! -e "$1" ] || { chmod -R u+w "$1" && rm -rf "$1"; }
}
