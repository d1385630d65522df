# shellcheck shell=bash
# Starting, finding and ending services of the testbed; all state lies in $TESTBED.

LOG=$TESTBED/log
RUN=$TESTBED/run
ETC=$TESTBED/etc

say() { printf '* testbed: %s\n' "$*"; }

fail() { # MESSAGE TIP
    printf 'ERROR: %s\n' "$1" >&2
    [ -z "${2:-}" ] || printf '  TIP: %s\n' "$2" >&2
    exit "${3:-1}"
}

# What a log says, where a TIP points at it: its first error, and its last lines.
show_log() { # LOG
    [ -s "$1" ] || { printf '  < %s is empty\n' "$1" >&2; return 0; }
    grep -m1 -n -i -E 'error|fatal|cannot|denied|no module named|not found' "$1" | sed 's/^/  < line /' >&2 || true
    tail -n 15 "$1" | sed 's/^/  < /' >&2
}

fail_by_log() { # MESSAGE LOG
    printf 'ERROR: %s\n' "$1" >&2
    show_log "$2"
    printf '  TIP: the whole log is %s\n' "$2" >&2
    exit 1
}

need_root() {
    [ "$(id -u)" = 0 ] || fail "the testbed needs root: it starts slurmd, and nodes with their own namespaces" \
        "run it with sudo on a disposable machine; without root, ./ci/test --no-testbed runs what needs no cluster" 3
}

prepare_folders() {
    local node
    mkdir -p "$LOG" "$RUN" "$ETC" "$TESTBED"/state/{slurmctld,registry,mariadb} "$TESTBED/cache"
    chmod 755 "$TESTBED" "$LOG" "$RUN" "$ETC"
    for node in $(node_names); do
        mkdir -p "$TESTBED/nodes/$node"/{spool,tmp}
        chmod 1777 "$TESTBED/nodes/$node/tmp"
    done
}

node_names() { local i; for ((i = 1; i <= NODES; i++)); do echo "node$i"; done; }

# A pid file holds "PID START-TIME", so that a number that the kernel gave to another process is not taken for ours.
# Empty for one that has ended, also if nobody has waited for it yet (Z).
start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 !~ /[ZX]/ { print $20 }'; }

alive() { # NAME
    local pid began
    read -r pid began 2>/dev/null <"$RUN/$1.pid" || return 1
    [ -n "$began" ] && [ "$(start_time "$pid")" = "$began" ]
}

start() { # NAME COMMAND...   in the background, with its own log and session
    local name=$1
    shift
    alive "$name" && return 0
    setsid "$@" </dev/null >>"$LOG/$name.log" 2>&1 &
    local pid=$!
    echo "$pid $(start_time "$pid")" >"$RUN/$name.pid"
    disown "$pid"
}

stop() { # NAME
    local pid i
    if alive "$1"; then
        read -r pid _ <"$RUN/$1.pid"
        kill -TERM "$pid" 2>/dev/null || true
        for ((i = 0; i < 50; i++)); do
            alive "$1" || break
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    fi
    rm -f "$RUN/$1.pid"
}

await() { # SECONDS NAME LOG COMMAND...   until COMMAND succeeds, else name the log
    local seconds=$1 name=$2 log=$3 until
    shift 3
    until=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        if [ -e "$RUN/$name.pid" ] && ! alive "$name"; then
            fail_by_log "$name ended as soon as it was started" "$log"
        fi
        if [ "$SECONDS" -ge "$until" ]; then
            fail_by_log "$name did not come up in $seconds s" "$log"
        fi
        sleep 0.2
    done
}

report() { # NAME LOG
    if alive "$1"; then echo "$1: up"; else echo "$1: down (log: $2)"; return 1; fi
}

# What a crash may have left: any process that was started with a file of the testbed's.
sweep() {
    local pid
    for pid in $(pgrep -x slurmstepd || true); do
        if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -xF "SLURM_CONF=$ETC/slurm.conf" >/dev/null; then
            kill -KILL "$pid" 2>/dev/null || true
        fi
    done
    for pid in $(pgrep -f -- "munged .*--socket=$RUN/munge" || true) $(pgrep -f -- "$ETC/(slurm|slurmdbd|registry|ngc)" || true) $(pgrep -f -- "$TESTBED/state/mariadb" || true) \
        $(pgrep -f -- "$TESTBED/venv/bin/hpcstack cache serve" || true); do
        kill -KILL "$pid" 2>/dev/null || true
    done
}
