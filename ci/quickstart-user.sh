# shellcheck shell=bash
# The quickstart without root: no cluster can be started, so the image is built, published and tested on this machine.

quickstart_user() {
    local top=${XDG_CACHE_HOME:-$HOME/.cache}/hpcstack-quickstart missing=() tool
    echo "ci/quickstart: not root, so no cluster is started: no munge, Slurm, virtual nodes (sudo ./ci/quickstart has them)"
    ci/setup
    PATH=$PWD/.venv/bin:$PATH
    show "hpcstack list" && hpcstack list
    show "hpcstack lint --all" && hpcstack lint --all
    for tool in apptainer mksquashfs docker-registry mmdebstrap pigz newuidmap; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    if [ "${#missing[@]}" -gt 0 ]; then
        # shellcheck disable=SC2034
        left_out="cluster, build, publish, launch, test"
        echo
        echo "SKIPPED: build, publish and test: not installed: ${missing[*]}"
        echo "  TIP: 'sudo ci/packages' installs them; then run this again"
        return 0
    fi
    # shellcheck disable=SC2034  # the verdict of ci/quickstart names it
    left_out="cluster, module load, launch"
    # what is built is this user's own: nobody else may put an image there
    mkdir -p "$top/registry" && chmod 700 "$top"
    start_registry "$top"
    say "the stand-in image"
    python3 ci/standin "ci/standin/$STACK.json" "$top/cache" "127.0.0.1:$port"
    write_user_site "$top"
    export HPCSTACK_SITE=$top/site.yaml
    say "build, publish, test on this machine"
    require_own_registry
    show "hpcstack lock $STACK" && hpcstack lock "$STACK"
    require_own_registry
    show "hpcstack build $STACK" && hpcstack build "$STACK"
    show "hpcstack publish $STACK" && hpcstack publish "$STACK"
    show "hpcstack test $STACK --runtime local" && hpcstack test "$STACK" --runtime local
}

# A registry on a free port of loopback, which ends with this script. Everybody on this machine reaches it, so it asks for a
# login: one that is made at each start, for $STANDIN_LOGIN (ci/standin/push.py) and FOLDER/login.json (hpcstack).
start_registry() { # FOLDER
    make_login "$1"
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    printf 'version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s/registry}}\nhttp: {addr: "127.0.0.1:%s"}\nauth: {htpasswd: {realm: quickstart, path: %s/htpasswd}}\n' \
        "$1" "$port" "$1" >"$1/registry.yml"
    write_private "$1/login.json" \
        "$(printf '{"auths": {"127.0.0.1:%s": {"auth": "%s"}}}' "$port" "$(printf %s "$STANDIN_LOGIN" | base64 --wrap=0)")"
    docker-registry serve "$1/registry.yml" >"$1/registry.log" 2>&1 &
    # shellcheck disable=SC2034  # `verdict` of ci/quickstart ends it
    registry_pid=$!
    for _ in $(seq 50); do
        if listens_here "$port"; then return 0; fi
        sleep 0.2
    done
    echo "ERROR: the registry did not come up" >&2
    tail -n 5 "$1/registry.log" | sed 's/^/  < /' >&2
    echo "  TIP: the whole log is $1/registry.log" >&2
    return 1
}

make_login() { # FOLDER
    local password salt
    password=$(python3 -c 'import secrets; print(secrets.token_hex(16))')
    salt=$(python3 -c 'import secrets; print(secrets.token_hex(11))')
    export STANDIN_LOGIN=quickstart:$password
    # bcrypt, the one digest that the registry reads; Debian's crypt(3) has it. A password is in no argument.
    write_private "$1/htpasswd" "quickstart:$(printf %s "$password" | perl -e 'print crypt(<STDIN>, "\$2b\$05\$$ARGV[0]")' "$salt")"
}

write_private() { # FILE TEXT
    rm -f "$1"
    (umask 077 && printf '%s\n' "$2" >"$1")
}

# Whether it is a program of this user that listens on PORT of loopback: somebody else may have taken the port. The fields
# of /proc/net/tcp are in proc_net_tcp(5): an address and port in hexadecimal, 0A for a socket that listens, and the user.
listens_here() { # PORT
    awk -v place="$(printf '0100007F:%04X' "$1")" -v user="$(id -u)" \
        '$2 == place && $4 == "0A" && $8 == user { found = 1 } END { exit !found }' /proc/net/tcp
}

# Fail where the registry has ended: whoever takes its port then would get the login, and give the base.
require_own_registry() {
    listens_here "$port" && return 0
    echo "ERROR: the registry on port $port has ended" >&2
    echo "  TIP: run ci/quickstart again" >&2
    return 1
}

write_user_site() { # FOLDER
    local ca=${PIP_CERT:-${SSL_CERT_FILE:-}}
    cat >"$1/site.yaml" <<SITE
apiVersion: hpcstack/site/v1
name: quickstart
store: $1/store
lock_dir: $1/locks
module_root: $1/modules
registries:
  nvcr.io: {mirror: 127.0.0.1:$port, plain_http: true, credentials: $1/login.json}
build:
  engine: apptainer
SITE
    if [ -n "$ca" ]; then printf '  ca_bundle: "%s"\n' "$ca" >>"$1/site.yaml"; fi
}
