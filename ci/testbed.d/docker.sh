# shellcheck shell=bash
# The Docker engine, with a socket and a data folder of the testbed's own. No bridge, no firewall rules: builds use the
# host's network. On a machine that cannot run it, the testbed goes on without, and its tests say so.

DOCKER_SOCKET=$RUN/docker.sock

docker_up() {
    command -v dockerd >/dev/null || return 0
    start docker dockerd --iptables=false --bridge=none --data-root "$TESTBED/state/docker" \
        --exec-root "$RUN/docker" --pidfile "$RUN/dockerd.pid" --host "unix://$DOCKER_SOCKET" --log-level warn
    await 30 docker "$LOG/docker.log" test -S "$DOCKER_SOCKET"
    await 30 docker "$LOG/docker.log" docker --host "unix://$DOCKER_SOCKET" info
    chmod 666 "$DOCKER_SOCKET"
}

docker_down() { stop docker; rm -f "$DOCKER_SOCKET"; }

docker_status() { report docker "$LOG/docker.log"; }
