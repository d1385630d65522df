#!/bin/sh
# A build's base, mounted for all its steps: BASE WHERE PROGRAM... READY
# BASE, a squashfs, at WHERE, by the first PROGRAM that can, in a mount and process namespace of its own; the file READY
# is made when it is there. It stays until the standard input ends; what serves it ends with this shell, whatever becomes
# of that.
set -eu
base=$1 where=$2
shift 2
until "$1" "$base" "$where"; do
    shift
    if [ $# = 1 ]; then exit 1; fi
done
for ready; do :; done
: >"$ready"
cat >/dev/null
