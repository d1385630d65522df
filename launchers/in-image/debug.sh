# Runs a rank; the one that is to be debugged below its debugger. Arguments: RANK DEBUGGER COMMAND... DEBUGGER is a Python
# program.
wanted=$1 debugger=$2
shift 2
case $1 in -m | *.py) set -- python3 -u "$@" ;; esac
if [ "${RANK:-${SLURM_PROCID:-0}}" != "$wanted" ]; then exec "$@"; fi
case ${1##*/} in
python | python[0-9]*) ;;
*)
    echo "hpcstack: rank $wanted cannot be debugged: $1 is no Python" >&2
    exit 2
    ;;
esac
python=$1
shift
exec "$python" -u -c "$debugger" "$@"
