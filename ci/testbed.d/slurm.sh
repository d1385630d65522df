# shellcheck shell=bash
# slurm.conf, gres.conf, plugstack.conf, topology.conf and slurmctld.

VIRTUAL_GPUS=4

pyxis_plugin() {
    local path
    for path in /usr/local/lib/slurm /usr/lib/*/slurm-wlm /usr/lib/*/slurm /usr/lib/slurm; do
        if [ -e "$path/spank_pyxis.so" ]; then echo "$path/spank_pyxis.so"; return 0; fi
    done
    return 1
}

# As on a site that has set it up well, Pyxis mounts images (HPCSTACK_TESTBED_PYXIS=unpack: it unpacks them).
pyxis_mounts() {
    if [ "${HPCSTACK_TESTBED_PYXIS:-mount}" = mount ] && [ -n "$(command -v squashfuse)" ]; then echo " use_squashfuse=1"; fi
}

write_slurm_conf() {
    local plugin i
    network_up
    write_hosts
    printf '#!/bin/sh\nexit 0\n' >"$ETC/health" # what tests/integration/test_site_health.py puts its own in place of
    chmod 755 "$ETC/health"
    {
        cat <<CONF
ClusterName=hpcstack
SlurmctldHost=$(hostname -s)($(control_address))
SlurmctldPort=8817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$MUNGE_SOCKET
CryptoType=crypto/munge
StateSaveLocation=$TESTBED/state/slurmctld
SlurmdSpoolDir=$TESTBED/nodes/%n/spool
SlurmctldPidFile=$RUN/slurmctld.daemon.pid
SlurmdPidFile=$RUN/slurmd-%n.daemon.pid
SlurmctldLogFile=$LOG/slurmctld.log
SlurmdLogFile=$LOG/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=60
KillWait=5
InactiveLimit=60
MinJobAge=30
GresTypes=gpu
PropagateResourceLimitsExcept=MEMLOCK
HealthCheckProgram=$ETC/health
HealthCheckInterval=5
CONF
        if has_accounting; then
            printf '%s\n' AccountingStorageType=accounting_storage/slurmdbd "AccountingStorageHost=$(control_address)" \
                AccountingStoragePort=8819 "AccountingStoragePass=$MUNGE_SOCKET" JobAcctGatherType=jobacct_gather/linux
        fi
        if [ "$BLOCK" -gt 0 ]; then echo "TopologyPlugin=topology/block"; fi
        if plugin=$(pyxis_plugin); then echo "PlugStackConfig=$ETC/plugstack.conf"; fi
        for ((i = 1; i <= NODES; i++)); do
            echo "NodeName=node$i NodeAddr=$(node_address "node$i") NodeHostname=node$i Port=$((9000 + i)) CPUs=4 RealMemory=8000 Gres=gpu:$VIRTUAL_GPUS"
        done
        echo "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4"
    } >"$ETC/slurm.conf.new"
    write_blocks >"$ETC/topology.conf.new"
    : >"$ETC/gres.conf.new"
    for ((i = 0; i < VIRTUAL_GPUS; i++)); do
        [ -e "/dev/hpcstack-gpu$i" ] || mknod -m 666 "/dev/hpcstack-gpu$i" c 1 3
    done
    echo "Name=gpu File=/dev/hpcstack-gpu[0-$((VIRTUAL_GPUS - 1))]" >"$ETC/gres.conf.new"
    : >"$ETC/plugstack.conf.new"
    if plugin=$(pyxis_plugin); then echo "required $plugin runtime_path=/tmp/.pyxis importer=$ETC/importer.sh$(pyxis_mounts)" >"$ETC/plugstack.conf.new"; fi
}

# The nodes in blocks of $BLOCK, dealt out like cards: neighbours by name are in different blocks.
write_blocks() {
    local block blocks node members
    [ "$BLOCK" -gt 0 ] || return 0
    blocks=$((NODES / BLOCK))
    for ((block = 1; block <= blocks; block++)); do
        members=''
        for ((node = block; node <= blocks * BLOCK; node += blocks)); do members+=${members:+,}node$node; done
        echo "BlockName=block$block Nodes=$members"
    done
    echo "BlockSizes=$BLOCK"
}

# Slurm reads its configuration when it starts: a changed one stops what runs with the old.
restart_if_changed() {
    local file changed=no
    for file in slurm.conf gres.conf plugstack.conf topology.conf; do
        cmp -s "$ETC/$file.new" "$ETC/$file" || changed=yes
        mv "$ETC/$file.new" "$ETC/$file"
    done
    [ "$changed" = yes ] || return 0
    slurmctld_down
    for file in $(node_names); do stop "slurmd-$file"; done
}

slurmctld_up() {
    local anew=yes node
    if alive slurmctld; then anew=no; fi
    for node in $(node_names); do if alive "slurmd-$node"; then anew=no; fi; done
    register_cluster
    start slurmctld env SLURM_CONF="$ETC/slurm.conf" slurmctld -D -f "$ETC/slurm.conf"
    await 30 slurmctld "$LOG/slurmctld.log" env SLURM_CONF="$ETC/slurm.conf" scontrol ping
    if [ "$anew" = yes ]; then empty_queue; fi
}

# Cancel what a run that was broken off has left: Slurm would requeue it, and it would hold the next run's nodes.
empty_queue() {
    local job
    for job in $(SLURM_CONF=$ETC/slurm.conf squeue --noheader --format=%A | sort -u); do
        SLURM_CONF=$ETC/slurm.conf scancel "$job" || true
    done
}

register_cluster() {
    has_accounting || return 0
    local manage=(env SLURM_CONF="$ETC/slurm.conf" sacctmgr --immediate --quiet)
    "${manage[@]}" add cluster hpcstack >/dev/null 2>&1 || true
    "${manage[@]}" add account testbed Cluster=hpcstack >/dev/null 2>&1 || true
    "${manage[@]}" add user "$USER_NAME" Account=testbed >/dev/null 2>&1 || true
}

slurmctld_down() { stop slurmctld; }
slurmctld_status() { report slurmctld "$LOG/slurmctld.log"; }

all_idle() {
    local line
    line=$(SLURM_CONF=$ETC/slurm.conf sinfo -h -N -o '%T' | sort -u | tr '\n' ' ')
    if [[ $line =~ ^((idle|mixed|allocated|completing)\ )+$ ]]; then return 0; fi
    case "$line" in *down* | *drain*) SLURM_CONF=$ETC/slurm.conf scontrol update nodename=ALL state=resume || true ;; esac
    return 1
}

wait_for_nodes() { await 60 "the cluster" "$LOG/slurmctld.log" all_idle; }
