# shellcheck shell=bash
# The ordinary user who builds, publishes and submits.

USER_NAME=${HPCSTACK_TESTBED_USER:-hpcuser}

user_up() {
    if ! id "$USER_NAME" >/dev/null 2>&1; then
        useradd --create-home --home-dir "$TESTBED/home" --shell /bin/bash "$USER_NAME"
        touch "$ETC/user-is-ours"
    fi
    local home
    home=$(getent passwd "$USER_NAME" | cut -d: -f6)
    [ -d "$home" ] || install -d -o "$USER_NAME" -g "$(id -gn "$USER_NAME")" "$home" # of a user who was there before
    grep -q "^$USER_NAME:" /etc/subuid || usermod --add-subuids 200000-265535 --add-subgids 200000-265535 "$USER_NAME"
    if [ -e /dev/fuse ]; then chmod 666 /dev/fuse; fi # squashfuse, for Apptainer as an ordinary user
}

remove_user() {
    if [ -e "$ETC/user-is-ours" ]; then userdel "$USER_NAME" 2>/dev/null || true; fi
}

# A clean environment, as a login gives: what the caller of the testbed has set does not leak in.
as_user() {
    local home
    [ -r "$ETC/profile.sh" ] || fail "the testbed is not up" "ci/testbed up" 3
    home=$(getent passwd "$USER_NAME" | cut -d: -f6)
    local arguments=(env -i "HOME=$home" "USER=$USER_NAME" "LOGNAME=$USER_NAME" "SHELL=/bin/bash" "TERM=${TERM:-dumb}"
        LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin
        bash -c '. "$1"; shift; cd; exec "$@"' bash "$ETC/profile.sh" "$@")
    if [ "$(id -u)" = 0 ]; then
        runuser -u "$USER_NAME" -- "${arguments[@]}"
    else
        "${arguments[@]}"
    fi
}
