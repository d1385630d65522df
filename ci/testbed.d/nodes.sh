# shellcheck shell=bash
# Virtual nodes: one slurmd each, as far apart as one kernel allows: own host name, /tmp, /dev/shm, Enroot
# configuration, and, where network namespaces can be made, an own address and loopback.

BRIDGE=hpcstack0
NETWORK=10.89.77

own_addresses() { [ "$(cat "$ETC/own-addresses" 2>/dev/null)" = yes ]; }
node_address() { if own_addresses; then echo "$NETWORK.1${1#node}"; else echo 127.0.0.1; fi; }
control_address() { if own_addresses; then echo "$NETWORK.1"; else echo 127.0.0.1; fi; }
namespace() { echo "hpcstack-$1"; }

network_up() {
    local node
    if ! bridge_up 2>"$LOG/network.log"; then
        echo no >"$ETC/own-addresses"
        echo "  nodes share this machine's address: no bridge can be made here ($(tail -n1 "$LOG/network.log"))"
        return 0
    fi
    echo yes >"$ETC/own-addresses"
    # Every node may know every other one's address: the kernel's table of all of them has room for 1,024 by default.
    if [ "$NODES" -gt 16 ]; then
        sysctl -q -w net.ipv4.neigh.default.gc_thresh3=65536 net.ipv4.neigh.default.gc_thresh2=32768 || true
    fi
    for node in $(node_names); do
        node_network_up "$node"
    done
}

bridge_up() {
    ip link show "$BRIDGE" >/dev/null 2>&1 || ip link add "$BRIDGE" type bridge || return 1
    ip address replace "$NETWORK.1/24" dev "$BRIDGE" && ip link set "$BRIDGE" up
}

node_network_up() { # NODE
    local space host=hs-$1
    space=$(namespace "$1")
    ip netns list | grep -w "$space" >/dev/null || ip netns add "$space"
    if ! ip link show "$host" >/dev/null 2>&1; then
        ip link add "$host" type veth peer name eth0 netns "$space"
    fi
    ip link set "$host" master "$BRIDGE" up # also where it is left from a testbed with more nodes, whose bridge went
    ip -n "$space" address replace "$(node_address "$1")/24" dev eth0
    ip -n "$space" link set lo up
    ip -n "$space" link set eth0 up
    ip -n "$space" route replace default via "$NETWORK.1" 2>/dev/null || true
}

write_hosts() {
    local node
    {
        echo "127.0.0.1 localhost"
        echo "$(control_address) $(hostname -s)"
        for node in $(node_names); do echo "$(node_address "$node") $node"; done
    } >"$ETC/hosts"
    # A node with an address of its own reaches nothing outside: no name server is better than one that never answers.
    if own_addresses; then echo "options timeout:1 attempts:1" >"$ETC/resolv.conf"; else rm -f "$ETC/resolv.conf"; fi
}

# What runs inside a node's namespaces; $1 is the node. /run/pyxis is the node's own, too: it lies in /tmp.
NODE_START='
set -eu
node=$1 folder=$2 etc=$3 apart=
hostname "$node"
cd /
mount --bind "$folder/tmp" /tmp
mount -t tmpfs -o size=2g tmpfs /dev/shm
mount --bind "$etc/hosts" /etc/hosts
if [ -e "$etc/resolv.conf" ]; then mount --bind "$etc/resolv.conf" /etc/resolv.conf; fi
mkdir -p -m 1777 /tmp/enroot
for conf in /usr/local/etc/enroot/enroot.conf /etc/enroot/enroot.conf; do
    if [ -e "$conf" ]; then mount --bind "$etc/enroot.conf" "$conf"; fi
done
if [ -e "$etc/mount-shared" ]; then . "$etc/mount-shared"; fi # of ci/filesystems --testbed
ulimit -l unlimited 2>/dev/null || true
exec ${apart:-} env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    SLURM_CONF="$etc/slurm.conf" slurmd -D -f "$etc/slurm.conf" -N "$node"
'

nodes_up() {
    local node prefix
    [ -n "${HPCSTACK_TESTBED_SHARED:-}" ] || rm -f "$ETC/mount-shared" # of one that was killed
    cat >"$ETC/enroot.conf" <<'CONF'
ENROOT_RUNTIME_PATH        /tmp/enroot/run-$(id -u)
ENROOT_DATA_PATH           /tmp/enroot/data-$(id -u)
ENROOT_CACHE_PATH          /tmp/enroot/cache-$(id -u)
ENROOT_TEMP_PATH           /tmp
ENROOT_ALLOW_HTTP          yes
CONF
    for node in $(node_names); do
        prefix=()
        if own_addresses; then prefix=(nsenter "--net=/run/netns/$(namespace "$node")"); fi
        start "slurmd-$node" "${prefix[@]}" unshare --mount --uts --propagation private \
            bash -c "$NODE_START" bash "$node" "$TESTBED/nodes/$node" "$ETC"
    done
}

nodes_down() {
    local node pid
    for node in $(node_names); do
        stop "slurmd-$node"
        for pid in $(ip netns pids "$(namespace "$node")" 2>/dev/null); do
            kill -KILL "$pid" 2>/dev/null || true # steps and whatever a job left
        done
        ip netns del "$(namespace "$node")" 2>/dev/null || true
        ip link del "hs-$node" 2>/dev/null || true
    done
    ip link del "$BRIDGE" 2>/dev/null || true
}

nodes_status() {
    local node bad=0
    for node in $(node_names); do report "slurmd-$node" "$LOG/slurmd-$node.log" || bad=1; done
    return "$bad"
}
