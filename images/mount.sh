#!/bin/sh
# A build's base, mounted for all its steps: BASE WHERE READY
# BASE, a squashfs, at WHERE, in a mount and process namespace of its own; READY is made when it is there. It stays until
# the standard input ends; what serves it ends with this shell, whatever becomes of that.
set -eu
if command -v squashfuse_ll >/dev/null; then
    squashfuse_ll "$1" "$2"
else # reads with one thread
    squashfuse "$1" "$2"
fi
: >"$3"
cat >/dev/null
