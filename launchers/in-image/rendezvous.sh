# What every rank has to know of the step, inside the image and without Slurm's tools. Arguments: RANKS-PER-NODE
# MIN:MAX-NODES (empty: all of them) RESTARTS COMMAND...   What the user has set in MASTER_ADDR or MASTER_PORT is kept.
set -u
ranks=$1
elastic=$2
restarts=$3
shift 3
# What neither the user nor the image has set, but Enroot's hooks may have: it is made anew below.
for name in ${HPCSTACK_UNSET:-}; do unset "$name"; done
if [ -r /opt/hpcstack/compat.sh ]; then . /opt/hpcstack/compat.sh; fi

# The first host of a Slurm node list: rack[1-3]n[01,07],b2 -> rack1n01
first_host() {
    list=$1 host=
    while [ -n "$list" ]; do
        case $list in
        ,*) break ;;
        \[*)
            inside=${list#\[} list=${list#*\]}
            inside=${inside%%\]*} inside=${inside%%,*}
            host=$host${inside%%-*}
            ;;
        *)
            plain=${list%%[\[,]*} list=${list#"${list%%[\[,]*}"}
            host=$host$plain
            ;;
        esac
    done
    printf '%s\n' "$host"
}

nodes=${SLURM_STEP_NUM_NODES:-${SLURM_JOB_NUM_NODES:-1}}
if [ "$nodes" -gt 1 ]; then
    head=$(first_host "${SLURM_STEP_NODELIST:-$SLURM_JOB_NODELIST}")
    address=$(getent ahostsv4 "$head" 2>/dev/null | { read -r first _ && printf '%s' "$first"; })
    : "${MASTER_ADDR:=${address:-$head}}"
else
    : "${MASTER_ADDR:=127.0.0.1}"
fi
# Enroot's PyTorch hook makes its port of the job id alone: two steps of one job would meet.
if [ "${MASTER_PORT:-}" = "$((61000 + ${SLURM_JOB_ID:-0} % 4536))" ]; then unset MASTER_PORT; fi
# Two steps of one job must not meet: the port is made of both numbers, below the ephemeral range.
: "${MASTER_PORT:=$((10000 + (${SLURM_JOB_ID:-$$} * 31 + ${SLURM_STEP_ID:-0}) % 20000))}"
export MASTER_ADDR MASTER_PORT

# COMMAND in place of this shell. With a grace time (--grace), Slurm sends USR1 before the time is up: launchers would
# die of it, so they are shielded, and the ranks, which hand it on, get it; a rank that has no handler lives on.
run() {
    [ -n "${HPCSTACK_GRACE:-}" ] || exec "$@"
    exec 3<&0
    launcher='' ended='' # traps first: a signal that comes before there is a launcher must not end this shell
    trap '[ -z "$launcher" ] || for rank in $(cat /proc/"$launcher"/task/*/children); do kill -USR1 "$rank"; done' USR1
    trap 'if [ -n "$launcher" ]; then kill -TERM "$launcher"; else ended=yes; fi' TERM INT
    (trap '' USR1 && exec "$@" <&3) &
    launcher=$!
    if [ -n "$ended" ]; then # right after its start the launcher still is a copy of this shell, with its traps
        sleep 0.2 2>/dev/null || sleep 1
        kill -TERM "$launcher"
    fi
    while :; do
        status=0 again=0
        wait "$launcher" || status=$?
        kill -0 "$launcher" 2>/dev/null && continue
        wait "$launcher" 2>/dev/null || again=$? # a signal may have ended the first wait: this one knows; 127 is neither
        [ "$again" = 127 ] || status=$again
        exit "$status"
    done
}
