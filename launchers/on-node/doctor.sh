# What `hpcstack doctor` wants to know of a machine, as KEY=VALUE lines; run by any POSIX shell, as the user, on the
# login node and as a task on each compute node. Arguments: paths that must be readable there. Nothing is changed.
say() { printf '%s=%s\n' "$1" "$(printf %s "$2" | tr '\n\r' '  ')"; }
have() { command -v "$1" >/dev/null 2>&1; }
first() { head -n 1 2>/dev/null; }

say host "$(uname -n)"
say kernel "$(uname -r)"
say machine "$(uname -m)"
say epoch "$(date +%s.%N)"
say user "$(id -un)"

for tool in srun sbatch enroot podman ch-run apptainer singularity nvidia-smi nvidia-container-cli squashfuse fusermount3 unsquashfs newuidmap; do
    if have "$tool"; then say "tool.$tool" "$(command -v "$tool")"; fi
done
if have apptainer; then
    say apptainer.version "$(apptainer --version 2>/dev/null | first)"
    starter=$(ls /usr/libexec/apptainer/bin/starter-suid /usr/lib/*/apptainer/bin/starter-suid /usr/local/libexec/apptainer/bin/starter-suid 2>/dev/null | first)
    if [ -n "$starter" ] && [ -u "$starter" ]; then say apptainer.setuid yes; else say apptainer.setuid no; fi
fi
if have enroot; then
    say enroot.version "$(enroot version 2>/dev/null | first)"
    for folder in /etc/enroot /usr/local/etc/enroot; do
        if [ -d "$folder" ]; then
            say enroot.conf "$folder"
            say enroot.hooks "$(ls "$folder/hooks.d" 2>/dev/null | tr '\n' ' ')"
            break
        fi
    done
    if have getcap; then
        say enroot.mksquashovlfs "$(getcap "$(command -v enroot-mksquashovlfs)" 2>/dev/null | sed 's/.* //')"
    fi
fi

say userns.max "$(cat /proc/sys/user/max_user_namespaces 2>/dev/null)"
say userns.clone "$(cat /proc/sys/kernel/unprivileged_userns_clone 2>/dev/null)"
say userns.apparmor "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null)"
if have unshare; then
    if unshare --user --map-root-user true 2>/dev/null; then say userns.works yes; else say userns.works no; fi
fi
if [ -e /dev/fuse ]; then
    if [ -r /dev/fuse ] && [ -w /dev/fuse ]; then say fuse usable; else say fuse "not for this user"; fi
else
    say fuse missing
fi
say subuid "$(grep -c "^$(id -un):\|^$(id -u):" /etc/subuid 2>/dev/null)"

say memlock.kb "$(ulimit -l)"
say nofile "$(ulimit -n)"
say shm.kb "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $2}')"
tmp=${TMPDIR:-/tmp}
say tmp "$tmp"
say tmp.kb "$(df -Pk "$tmp" 2>/dev/null | awk 'NR == 2 {print $4}')"
if [ -w "$tmp" ]; then say tmp.writable yes; else say tmp.writable no; fi

say driver "$(sed -n 's/.*Kernel Module *\(for [a-z0-9_]*\)\{0,1\} *\([0-9][0-9.]*\).*/\2/p' /proc/driver/nvidia/version 2>/dev/null | first)"
count=0
for device in /dev/nvidia[0-9]*; do if [ -e "$device" ]; then count=$((count + 1)); fi; done
say gpus "$count"
if have nvidia-smi; then say gpu.names "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>&1 | sort | uniq -c | tr -s ' ' | first)"; fi
if [ -d /sys/module/nvidia_peermem ] || [ -d /sys/module/nv_peer_mem ]; then say gpudirect peermem; else say gpudirect none; fi

for device in /sys/class/infiniband/*; do
    [ -e "$device/ports" ] || continue
    for port in "$device"/ports/*; do
        say "hca.${device##*/}.${port##*/}" "$(cat "$port/state" 2>/dev/null), $(cat "$port/rate" 2>/dev/null), $(cat "$port/link_layer" 2>/dev/null)"
    done
done
if [ -d /dev/infiniband ]; then say infiniband.devices yes; else say infiniband.devices no; fi

for path in "$@"; do
    if [ -r "$path" ]; then say "readable.$path" yes; else say "readable.$path" no; fi
done
