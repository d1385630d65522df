# shellcheck shell=bash
# hpcstack itself in a virtual environment of the system's Python, the site.yaml, and the user's profile.

VENV=$TESTBED/venv
PRIVATE_PORT=${HPCSTACK_TESTBED_PRIVATE_PORT:-5001} # where tests start a registry that wants a login

site_up() {
    install_hpcstack
    write_profile
    write_site
    HPCSTACK_SITE=$ETC/site.yaml "$VENV/bin/hpcstack" site importer --output "$ETC/importer.sh" 2>>"$LOG/install.log"
    local home
    home=$(getent passwd "$USER_NAME" | cut -d: -f6)
    install -d -o "$USER_NAME" -g "$(id -gn "$USER_NAME")" "$TESTBED/site" "$home/jobs"
    echo ". $ETC/profile.sh" >"$home/.bash_profile" # a login shell sets its PATH anew
}

install_hpcstack() {
    local stamp
    stamp=$(cd "$REPO" && find src recipes images modules launchers facts pyproject.toml constraints.txt -type f ! -name '*.pyc' ! -name _version.py -print0 |
        sort -z | xargs -0 sha256sum | sha256sum)
    [ "$(cat "$TESTBED/state/hpcstack" 2>/dev/null)" = "$stamp" ] && return 0
    [ -x "$VENV/bin/python" ] || /usr/bin/python3 -m venv "$VENV"
    local install=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location)
    "${install[@]}" --require-hashes --requirement "$REPO/constraints.txt" 2>"$LOG/install.log" ||
        fail_by_log "what hpcstack needs was not installed" "$LOG/install.log"
    # the same version with other contents: take the files anew
    "${install[@]}" --force-reinstall --no-deps "$REPO" 2>>"$LOG/install.log" ||
        fail_by_log "hpcstack was not installed" "$LOG/install.log"
    echo "$stamp" >"$TESTBED/state/hpcstack"
}

write_profile() {
    cat >"$ETC/profile.sh" <<PROFILE
# What a login on the testbed sets.
export SLURM_CONF=$ETC/slurm.conf HPCSTACK_SITE=$ETC/site.yaml DOCKER_HOST=unix://$DOCKER_SOCKET
export PATH=$VENV/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
export MODULEPATH=$TESTBED/site/modules/Core
if [ -r /usr/share/lmod/lmod/init/bash ]; then . /usr/share/lmod/lmod/init/bash; fi
PROFILE
}

# A registry that wants a login: tests start one there. Without them nothing answers, and `hpcstack doctor` says so.
private_registry() {
    if [ "$FOR_TESTS" = yes ]; then echo "  $(control_address):$PRIVATE_PORT: {plain_http: true}"; fi
}

# The machine's own proxy, CA bundle and pip index serve the builds; none of them enters an image.
write_site() {
    cat >"$ETC/site.yaml" <<SITE
apiVersion: hpcstack/site/v1
name: testbed
store: $TESTBED/site/store
lock_dir: $TESTBED/site/locks
module_root: $TESTBED/site/modules
registries:
  nvcr.io: {mirror: "$NGC"}
  docker.io: {mirror: "$NGC"}
$(private_registry)
image_cache: {folder: $TESTBED/images, account: hpcstack-images, socket: $TESTBED/run-images/images.sock}
build:
  engine: apptainer
  ca_bundle: $ETC/ca-bundle.pem
SITE
    {
        if [ -n "${PIP_INDEX_URL:-}" ]; then printf '  pip: {index_url: "%s"}\n' "$PIP_INDEX_URL"; fi
        if [ -n "${http_proxy:-}${https_proxy:-}" ]; then
            printf '  proxy: {http: "%s", https: "%s", no: "%s"}\n' "${http_proxy:-}" "${https_proxy:-}" "${no_proxy:+$no_proxy,}.testbed"
        fi
        cat <<SITE
node_types:
  virtual: {gpus: {model: virtual, count: $VIRTUAL_GPUS, domain_nodes: $BLOCK}, virtual: true}
partitions:
  debug: {node_type: virtual, default: true}
SITE
    } >>"$ETC/site.yaml"
    # a proxy's or an index's URL may hold a password
    chown "root:$(id -gn "$USER_NAME")" "$ETC/site.yaml"
    chmod 640 "$ETC/site.yaml"
}
