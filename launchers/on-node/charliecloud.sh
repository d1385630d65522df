# A task under Charliecloud; the line RUN is what starts it. Arguments: OPTIONS of ch-run... IMAGE -- COMMAND...
export USER="${USER:-$(id -un)}"
case $(ch-run --help 2>&1) in *--write-fake*) set -- --write-fake "$@" ;; esac
# Not /var/tmp/USER.ch: two ranks would make it at the same moment, and anybody before them.
place=$(mktemp -d "${TMPDIR:-/tmp}/hpcstack-ch.XXXXXX") || exit 125
set -- "--mount=$place" "$@"
export HPCSTACK_PLACE="$place"
exec 3<&0
# The helper serves the image to the command, its child: signals are for that. Traps first: a signal that comes before there
# is a helper ends it as soon as there is one, and not this shell.
helper=''
tell() {
    for child in $(cat /proc/"$helper"/task/*/children 2>/dev/null); do kill -"$1" "$child" 2>/dev/null; done
}
trap 'told=143; tell TERM' TERM
trap 'told=130; tell TERM' INT
trap 'tell USR1' USR1
trap 'tell USR2' USR2
RUN
helper=$!
# Slurm may end this shell, or what serves the image, before the command's own children, and then does not know of them any
# more. The keeper is no child of this shell. It ends all that was started with this task's own variable.
keeper='
trap "" TERM INT HUP USR1 USR2
tail --pid="$1" -s 1 -f /dev/null
for one in $(grep -lzxF "HPCSTACK_PLACE=$2" /proc/[0-9]*/environ); do
    pid=${one#/proc/}
    kill -s KILL "${pid%/environ}"
done
'
(unset HPCSTACK_PLACE && setsid /bin/sh -c "$keeper" keeper "$$" "$place" </dev/null >/dev/null 2>&1 3<&- &)
if [ -n "${told:-}" ]; then # right after its start the helper still is a copy of this shell, with its traps
    sleep 0.2
    kill -TERM "$helper"
fi
while :; do
    status=0 again=0
    wait "$helper" || status=$?
    kill -0 "$helper" 2>/dev/null && continue
    wait "$helper" 2>/dev/null || again=$?
    [ "$again" = 127 ] || status=$again
    # What the helper ends with when it gets a signal itself is no status of the command
    case $status in 0 | 84) status=${told:-$status} ;; esac
    rmdir "$place" 2>/dev/null
    exit "$status"
done
