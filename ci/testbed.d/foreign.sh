# shellcheck shell=bash
# Programs of arm64, run by qemu: the kernel is told by binfmt_misc, which a `down` takes back if we have told it.

BINFMT=/proc/sys/fs/binfmt_misc
FOREIGN=qemu-aarch64
FOREIGN_RULE=/usr/lib/binfmt.d/$FOREIGN.conf # qemu's package brings it; systemd reads it where there is systemd

foreign_up() {
    [ -e "$BINFMT/register" ] || mount -t binfmt_misc binfmt_misc "$BINFMT" 2>>"$LOG/foreign.log" || true
    if [ -e "$BINFMT/$FOREIGN" ]; then return 0; fi
    if [ -w "$BINFMT/register" ] && [ -r "$FOREIGN_RULE" ] && cat "$FOREIGN_RULE" >"$BINFMT/register" 2>>"$LOG/foreign.log"; then
        touch "$TESTBED/state/foreign"
    else
        say "no programs of arm64 can be run here: tests marked arm64 are skipped"
    fi
}

foreign_down() {
    [ -e "$TESTBED/state/foreign" ] || return 0
    [ ! -e "$BINFMT/$FOREIGN" ] || echo -1 >"$BINFMT/$FOREIGN"
    rm -f "$TESTBED/state/foreign"
}
