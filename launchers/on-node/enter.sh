# Holds ranks.sh. Runs a command in the container of a rank, in the very namespaces that the rank is in, with its
# environment and in its folder. Arguments: find|enter JOB STEP RANK [COMMAND...]. An empty STEP or RANK means any. `find`
# says which ranks are on this node, whether they can be entered, and the folder of one that serves something.
LC_ALL=C
verb=$1 job=$2 step=$3 wanted=$4
shift 4
host=${SLURMD_NODENAME:-$(uname -n)}
#: ranks.sh
inside() { # a process of a container that has no shell around its ranks: it has a terminal, or is not hpcstack's
    [ "$(readlink "/proc/$1/ns/mnt")" != "$(readlink /proc/self/ns/mnt)" ] || return 1
    case $(of "$1" SLURM_STEP_ID) in '' | *[!0-9]*) return 1 ;; esac
    case $(cat "/proc/$1/comm") in
    squashfuse* | fuse* | starter* | apptainer* | Apptainer* | appinit | enroot* | conmon | tail | catatonit) return 1 ;;
    esac
}
rank_of() {
    number=$(of "$1" RANK)
    echo "${number:-$(of "$1" SLURM_PROCID)}"
}
same() { [ "$(readlink "/proc/$1/ns/$2")" = "$(readlink "/proc/self/ns/$2")" ]; } # PROCESS NAMESPACE
list_ranks() { # RANK PROCESS, a line each
    listed=$(processes "$job")
    for kind in ours inside; do
        found=
        for pid in $listed; do
            if "$kind" "$pid" && here "$pid" "$step"; then
                echo "$(rank_of "$pid") $pid"
                found=yes
            fi
        done 2>/dev/null
        [ -z "$found" ] || return 0
    done
}

if [ "$verb" = find ]; then
    list_ranks | while read -r number pid; do
        how=namespace
        # a set-uid program has made the container: only root may enter what belongs to no user namespace of ours
        if same "$pid" user && ! same "$pid" mnt && [ "$(id -u)" != 0 ]; then how=second; fi
        served=$(of "$pid" HPCSTACK_SERVED | sed "s/JOB/$(of "$pid" SLURM_JOB_ID)/")
        echo "hpcstack: rank $number on $host: $how $pid${served:+ $served}"
    done
    exit
fi

pid=$(list_ranks | awk -v wanted="$wanted" 'wanted == "" || $1 == wanted { print $2; exit }')
if [ -z "$pid" ]; then
    echo "hpcstack: rank ${wanted:-any} of job $job is not on $host any more" >&2
    exit 125
fi
nsenter=$(command -v nsenter) || {
    echo "hpcstack: $host has no nsenter (util-linux), which enters a container" >&2
    exit 125
}
options="--target $pid --preserve-credentials --root --wd"
for kind in user mount:mnt ipc uts net cgroup pid; do
    same "$pid" "${kind#*:}" || options="$options --${kind%:*}"
done

# The node's own sftp-server, by the node's own loader and libraries: through a descriptor of the node's root, as the
# container has none of them.
if [ "${1:-}" = @sftp ]; then
    for server in /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server /usr/lib/ssh/sftp-server; do
        [ ! -x "$server" ] || break
    done
    # As they are, without links: a link would be followed from the container's root.
    server=$(readlink -f "$server")
    loaded=$(ldd "$server") || exit 125
    loader=$(printf '%s\n' "$loaded" | sed -n 's/^[[:space:]]*\(\/[^ ]*ld[^ ]*\) (.*/\1/p')
    loader=$(readlink -f "$loader")
    folders=$(printf '%s\n' "$loaded" | sed -n 's/.*=> \(\/.*\)\/[^/]* (.*/\/proc\/self\/fd\/4\1/p' | sort -u | paste -sd:)
    exec 4</
    set -- "/proc/self/fd/4$loader" --library-path "$folders" "/proc/self/fd/4$server"
fi

# The rank's own environment in place of this step's. It is read and exported here, as an argument would be seen by all.
# What this node's loader and C library would heed goes in under another name. From here on, nothing of this shell's
# variables counts: the image may have set them. What a shell has for itself and lets nobody set stays out.
case ${TERM:-} in *[!A-Za-z0-9._+-]* | "") terminal= ;; *) terminal="export TERM='$TERM'" ;; esac
exports=$(LC_ALL=C sed -z "/^[A-Za-z_][A-Za-z0-9_]*=/!d
    /^\(UID\|EUID\|PPID\|SHELLOPTS\|BASHOPTS\|BASH_VERSINFO\)=/d
    s/^\(LD_\|GCONV_PATH\|GLIBC_TUNABLES\|LOCPATH\|NLSPATH\|MALLOC_\|GETCONF_DIR\)/HPCSTACK_INSIDE_\1/
    s/'/'\\\\''/g
    s/^\([A-Za-z_][A-Za-z0-9_]*\)=\(.*\)\$/export \1='\2'/" "/proc/$pid/environ" | tr '\0' '\n')
inner='
for name in $(env | sed -n "s/^HPCSTACK_INSIDE_\([A-Za-z0-9_]*\)=.*/\1/p"); do
    eval "export \"$name=\$HPCSTACK_INSIDE_$name\""
    unset "HPCSTACK_INSIDE_$name"
done
unset HPCSTACK_RANK HPCSTACK_INNER
if [ "$#" = 0 ]; then
    if command -v bash >/dev/null; then set -- bash; else set -- sh; fi
fi
exec "$@"'
# shellcheck disable=SC2086 # options
set -- "$nsenter" $options -- /bin/sh -c "$inner" enter "$@"
for name in $(env -0 | LC_ALL=C sed -z -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' | tr '\0' ' '); do unset "$name"; done 2>/dev/null
eval "$exports
$terminal"
exec "$@"
