#!/bin/sh
# A build's base, mounted for all its steps: BASE WHERE READY PROGRAM
# BASE, a squashfs, at WHERE, by PROGRAM, in a mount and process namespace of its own; READY is made when it is there. It
# stays until the standard input ends; what serves it ends with this shell, whatever becomes of that.
set -eu
"$4" "$1" "$2"
: >"$3"
cat >/dev/null
