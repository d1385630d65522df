#!/bin/sh
# ROOT PLACE... -- COMMAND...
# COMMAND, unless a PLACE in ROOT leads over a link: what makes places for binds there would follow it out of ROOT.
set -eu
root=$1
shift
while [ "$1" != -- ]; do
    at=$root rest=${1#/}/
    while [ -n "$rest" ]; do
        at=$at/${rest%%/*} rest=${rest#*/}
        if [ -L "$at" ]; then
            echo "the image has a link at ${at#"$root"}, where a build has a folder or file of its own: this engine cannot build on it" >&2
            exit 1
        fi
    done
    shift
done
shift
exec "$@"
