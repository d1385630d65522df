#!/bin/sh
# A build's base, mounted for all its steps: BASE WHERE READY PROGRAM...
# BASE, a squashfs, at WHERE, by the first PROGRAM that can, in a mount and process namespace of its own; READY is made
# when it is there. It stays until the standard input ends; what serves it ends with this shell, whatever becomes of that.
set -eu
base=$1 where=$2 ready=$3
shift 3
until "$1" "$base" "$where"; do
    shift
    if [ $# = 0 ]; then exit 1; fi
done
: >"$ready"
cat >/dev/null
