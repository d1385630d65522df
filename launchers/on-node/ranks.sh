# Which ranks a job has on this node, by /proc alone. Ranks are what launchers/in-image/rank.sh has started: leaders of a
# session below a shell with its text.
of() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | sed -n "s/^$2=//p" | head -n 1; }      # PROCESS VARIABLE
field() { sed -n 's/^.*) //p' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f"$2"; }              # state, parent, group, session
words() { tr '\0\n' '  ' 2>/dev/null <"/proc/$1/cmdline"; }
processes() { grep -lzsxF "SLURM_JOB_ID=$1" /proc/[0-9]*/environ | cut -d/ -f3; }           # of a job
ours() {
    [ "$(field "$1" 4)" = "$1" ] || return 1
    case $(words "$1") in *HPCSTACK_RANK*) return 1 ;; esac
    case $(words "$(field "$1" 2)") in *HPCSTACK_RANK*) ;; *) return 1 ;; esac
}
here() { # whether process $1 is of step $2 (nothing: of any), and of this node: there may be several slurmd on one machine
    [ -z "$2" ] || [ "$(of "$1" SLURM_STEP_ID)" = "$2" ] || return 1
    [ "$(of "$1" SLURMD_NODENAME)" = "${SLURMD_NODENAME:-}" ]
}
