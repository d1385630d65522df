# shellcheck shell=bash
# The Docker engine, with a socket and a data folder of the testbed's own. No bridge, no firewall rules: builds use the
# host's network. On a machine that cannot run it, the testbed goes on without, and its tests say so.

DOCKER_SOCKET=$RUN/docker.sock

docker_up() {
    local until=$((SECONDS + 30))
    has_docker || { echo "  docker: dockerd or its client docker is not installed; going on without"; return 0; }
    start docker dockerd --iptables=false --bridge=none --data-root "$TESTBED/state/docker" \
        --exec-root "$RUN/docker" --pidfile "$RUN/dockerd.pid" --host "unix://$DOCKER_SOCKET" --log-level warn
    until docker --host "unix://$DOCKER_SOCKET" info >/dev/null 2>&1; do
        if ! alive docker || [ "$SECONDS" -ge "$until" ]; then
            echo "  docker: does not run here, going on without; its log is $LOG/docker.log:"
            show_log "$LOG/docker.log"
            docker_down
            return 0
        fi
        sleep 0.2
    done
    chmod 666 "$DOCKER_SOCKET"
}

has_docker() { command -v dockerd >/dev/null && command -v docker >/dev/null; }

docker_down() { stop docker; rm -f "$DOCKER_SOCKET"; }

docker_status() {
    if [ ! -S "$DOCKER_SOCKET" ]; then echo "docker: not there; its tests say so"; return 0; fi
    report docker "$LOG/docker.log"
}
