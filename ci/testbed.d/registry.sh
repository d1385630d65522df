# shellcheck shell=bash
# A registry that stands where nvcr.io stands: docker-registry on loopback keeps the images, and before it is a front that
# speaks as NVIDIA's does (tests/support/ngc_registry.py): TLS by an authority of the testbed's own, tokens, and layers
# from another host. Its three names lead to loopback by one line of /etc/hosts, which `down` takes away.

REGISTRY_PORT=${HPCSTACK_TESTBED_REGISTRY_PORT:-5000}
REGISTRY=127.0.0.1:$REGISTRY_PORT
NGC_PORT=${HPCSTACK_TESTBED_NGC_PORT:-5443} # and the two behind it
NGC=nvcr.testbed:$NGC_PORT
NGC_NAMES="nvcr.testbed layers.nvcr.testbed authn.nvidia.testbed"
HOSTS_MARK="# hpcstack's testbed"

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
    front_up
}

front_up() {
    local stamp
    mkdir -p "$ETC/ngc"
    forget_names
    echo "127.0.0.1 $NGC_NAMES $HOSTS_MARK" >>/etc/hosts
    stamp=$(sha256sum <"$REPO/tests/support/ngc_registry.py")
    [ "$(cat "$TESTBED/state/ngc" 2>/dev/null)" = "$stamp" ] || stop ngc
    start ngc python3 "$REPO/tests/support/ngc_registry.py" "$ETC/ngc" "$REGISTRY" "$TESTBED/state/registry" "$NGC_PORT"
    await 20 ngc "$LOG/ngc.log" front_answers
    echo "$NGC" >"$ETC/ngc/address"
    echo "$stamp" >"$TESTBED/state/ngc"
    # What the testbed's site trusts: what this machine does, and the front's authority.
    cat "${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}" "$ETC/ngc/ca.pem" >"$ETC/ca-bundle.pem"
}

# It wants a token, as it should.
front_answers() {
    python3 - "$ETC/ngc/ca.pem" "https://$NGC/v2/" <<'ASK'
import ssl, sys, urllib.error, urllib.request

direct = urllib.request.ProxyHandler({})
trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=sys.argv[1]))
try:
    urllib.request.build_opener(direct, trusting).open(sys.argv[2], timeout=2)
except urllib.error.HTTPError as answer:
    sys.exit(answer.code != 401)
ASK
}

# In place: in a container /etc/hosts is a mount, which nothing can be renamed over.
forget_names() {
    local rest
    rest=$(grep -vF "$HOSTS_MARK" /etc/hosts || true)
    printf '%s\n' "$rest" >/etc/hosts
}

registry_down() { stop ngc; stop registry; forget_names; }
registry_status() { report registry "$LOG/registry.log" && report ngc "$LOG/ngc.log"; }
