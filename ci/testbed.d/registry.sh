# shellcheck shell=bash
# A registry on loopback, plain http, that stands where nvcr.io stands.

REGISTRY_PORT=${HPCSTACK_TESTBED_REGISTRY_PORT:-5000}
REGISTRY=127.0.0.1:$REGISTRY_PORT

registry_up() {
    cat >"$ETC/registry.yml" <<CONF
version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: $TESTBED/state/registry}, delete: {enabled: true}}
http: {addr: "$REGISTRY"}
CONF
    start registry docker-registry serve "$ETC/registry.yml"
    await 20 registry "$LOG/registry.log" python3 -c \
        "import urllib.request as r; r.urlopen('http://$REGISTRY/v2/', timeout=2)"
}

registry_down() { stop registry; }
registry_status() { report registry "$LOG/registry.log"; }
