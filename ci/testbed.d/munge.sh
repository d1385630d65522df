# shellcheck shell=bash
# munge with a key and a socket of the testbed's own.

MUNGE_SOCKET=$RUN/munge/munge.socket.2

munge_up() {
    mkdir -p "$RUN/munge" "$TESTBED/state/munge" "$LOG/munge"
    if [ ! -s "$ETC/munge.key" ]; then
        head -c 1024 /dev/urandom >"$ETC/munge.key.part"
        mv "$ETC/munge.key.part" "$ETC/munge.key"
    fi
    chown -R munge: "$RUN/munge" "$TESTBED/state/munge" "$LOG/munge" "$ETC/munge.key"
    chmod 755 "$RUN/munge"
    chmod 700 "$TESTBED/state/munge" "$LOG/munge"
    chmod 400 "$ETC/munge.key"
    alive munge || rm -f "$MUNGE_SOCKET" "$MUNGE_SOCKET.lock"
    start munge runuser -u munge -- munged --foreground --socket="$MUNGE_SOCKET" --key-file="$ETC/munge.key" \
        --pid-file="$RUN/munge/munged.pid" --log-file="$LOG/munge/munged.log" --seed-file="$TESTBED/state/munge/seed"
    await 20 munge "$LOG/munge/munged.log" munge --socket="$MUNGE_SOCKET" --no-input
}

munge_down() { stop munge; }
munge_status() { report munge "$LOG/munge/munged.log"; }
