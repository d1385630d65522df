# Speaks SSH on its standard input and output, by the node's own sshd, as the job's user. What is asked for is run in the
# container of a rank. Nothing listens anywhere. Arguments: KEYS ENTER JOB STEP RANK. KEYS is the folder with the job's keys,
# ENTER the text of enter.sh.
keys=$1
for sshd in /usr/sbin/sshd /usr/local/sbin/sshd sshd; do
    sshd=$(command -v "$sshd") && break
done
if [ -z "$sshd" ]; then
    echo "hpcstack: $(uname -n) has no sshd: ask the site's administrators for OpenSSH's server" >&2
    exit 125
fi
umask 077
work=$(mktemp -d "${TMPDIR:-/tmp}/hpcstack-ssh.XXXXXX") || exit 125
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM INT HUP
printf '%s\n' "$2" >"$work/enter.sh"
quote() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
{
    echo "export SLURMD_NODENAME=$(quote "${SLURMD_NODENAME:-}")"
    echo "set -- enter $(quote "$3") $(quote "$4") $(quote "$5")"
    # shellcheck disable=SC2016 # for the script
    echo 'case ${SSH_ORIGINAL_COMMAND:-} in
    "") ;;
    hpcstack-sftp) set -- "$@" @sftp ;;
    *) set -- "$@" /bin/sh -c "$SSH_ORIGINAL_COMMAND" ;;
    esac'
    echo "exec /bin/sh $(quote "$work/enter.sh") \"\$@\""
} >"$work/forced.sh"
cat >"$work/sshd_config" <<END
HostKey "$keys/host_key"
AuthorizedKeysFile "$keys/key.pub"
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
PidFile none
PrintMotd no
PrintLastLog no
AllowAgentForwarding no
X11Forwarding no
ForceCommand /bin/sh '$work/forced.sh'
Subsystem sftp hpcstack-sftp
END
"$sshd" -i -f "$work/sshd_config"
