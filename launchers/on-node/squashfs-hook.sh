#!/usr/bin/env bash
# Holds own-folder.sh and squashfs.sh. A hook of Enroot's, also under Pyxis: opens squashfs files for a container that is
# about to start. It runs in the mount namespace of the container, before the container's root is its root.
# HPCSTACK_SQUASHFS: FILE:NAME:FOLDER,... where FOLDER is what the container's mounts name.
# HPCSTACK_ENROOT_CONFIG: the user's own settings of Enroot, in whose place the folder with this hook stands.
set -eu
#: own-folder.sh
#: squashfs.sh
for hook in "${HPCSTACK_ENROOT_CONFIG:-/nowhere}"/hooks.d/*.sh; do
    case $hook in */50-hpcstack-squashfs.sh) continue ;; esac # this one, in a launch within a launch
    if [ -x "$hook" ]; then "$hook"; fi
done

# What stays behind must not hold the lock of the container's root.
for descriptor in /proc/$$/fd/*; do
    number=${descriptor##*/}
    if [ "$number" -gt 9 ] && [ "$(readlink "$descriptor" || true)" != "$0" ]; then eval "exec $number>&-"; fi
done

served=$ENROOT_PID
IFS=, read -r -a wanted <<<"${HPCSTACK_SQUASHFS:-}"
for one in "${wanted[@]}"; do
    file=${one%%:*}
    rest=${one#*:}
    folder=${rest#*:}
    open_squashfs "$file" "${rest%%:*}" "$folder"
    if [ "$opened" != "$folder" ]; then
        echo "$opened $folder none bind" | enroot-mount -
        echo "HPCSTACK_UNPACKED=$opened" >>"$ENROOT_ENVIRON" # Pyxis shows nothing of what a hook says
    fi
done
