#!/bin/sh
# A build's step in its tree: FOLDER MERGED OPTIONS COMMAND...
# An overlay with OPTIONS, whose layers are named from FOLDER on, at MERGED; then COMMAND. All as root of a mount
# namespace of its own.
set -eu
cd "$1" # here: who enters a namespace is at its top
merged=$2 options=$3
shift 3
# mount(8) of util-linux 2.39 and newer hands each option to fsconfig(2), which takes 255 bytes, too few for the layers
# of ten steps; the classic mount(2) takes a page.
LIBMOUNT_FORCE_MOUNT2=always mount -t overlay overlay -o "$options" "$merged"
exec "$@"
