# shellcheck shell=bash
# hpcstack's image service, as an account of its own: one import of any image for all nodes and users. The virtual nodes
# share this machine's files, so that one service stands for one on each node.

IMAGES_NAME=hpcstack-images
IMAGES_RUN=$TESTBED/run-images

images_account() {
    if ! id "$IMAGES_NAME" >/dev/null 2>&1; then
        useradd --system --no-create-home --home-dir "$TESTBED/images" --shell /usr/sbin/nologin "$IMAGES_NAME"
        touch "$ETC/images-account-is-ours"
    fi
    install -d -m 755 -o "$IMAGES_NAME" -g "$(id -gn "$IMAGES_NAME")" "$TESTBED/images" "$IMAGES_RUN"
}

# Started anew where hpcstack or the site has changed.
images_up() {
    images_account
    local stamp
    stamp=$(cat "$TESTBED/state/hpcstack" "$ETC/site.yaml" | sha256sum)
    [ "$(cat "$TESTBED/state/images" 2>/dev/null)" = "$stamp" ] || stop images
    alive images || rm -f "$IMAGES_RUN/images.sock"
    start images setpriv --reuid "$IMAGES_NAME" --regid "$(id -g "$IMAGES_NAME")" --groups "$(id -g "$USER_NAME")" \
        env -i "HOME=$TESTBED/images" PATH=/usr/local/bin:/usr/bin:/bin "HPCSTACK_SITE=$ETC/site.yaml" \
        "$VENV/bin/hpcstack" cache serve
    await 20 images "$LOG/images.log" test -S "$IMAGES_RUN/images.sock"
    echo "$stamp" >"$TESTBED/state/images"
}

images_down() { stop images; }
images_status() { report images "$LOG/images.log"; }

remove_images_account() {
    if [ -e "$ETC/images-account-is-ours" ]; then userdel "$IMAGES_NAME" 2>/dev/null || true; fi
}
