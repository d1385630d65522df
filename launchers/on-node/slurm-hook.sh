#!/usr/bin/env bash
# A hook of Enroot's under Pyxis: starts the helper that runs Slurm's commands for the programs in the container. It keeps
# the node's root: a mount namespace of its own is not turned when the container's is.
# HPCSTACK_SLURM: FOLDER:STEP, the folder of the helper and a file for it.
set -eu
[ -n "${HPCSTACK_SLURM:-}" ] || exit 0
for descriptor in /proc/$$/fd/*; do
    number=${descriptor##*/}
    if [ "$number" -gt 9 ] && [ "$(readlink "$descriptor" || true)" != "$0" ]; then eval "exec $number>&-"; fi
done
socket=hpcstack-$(cat /proc/sys/kernel/random/uuid)
echo "HPCSTACK_SLURM_SOCKET=$socket" >>"$ENROOT_ENVIRON"
unshare --mount --propagation slave python3 -I -S -B "${HPCSTACK_SLURM%%:*}/slurm_helper.py" "$socket" "$ENROOT_PID" \
    "${HPCSTACK_SLURM#*:}" </dev/null >/dev/null 2>&1 &
