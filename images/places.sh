#!/bin/sh
# ROOT NAME... -- COMMAND...
# An empty folder ROOT/NAME for every NAME that is not there: Apptainer makes no place for a bind in a tree that may be
# written. Then COMMAND.
set -eu
root=$1
shift
while [ "$1" != -- ]; do
    if [ ! -e "$root$1" ] && [ ! -L "$root$1" ]; then mkdir "$root$1"; fi
    shift
done
shift
exec "$@"
