# shellcheck shell=bash
# Stand-ins for the NGC images, in the testbed's registry under NVIDIA's own names.

standins_up() {
    local facts stamp have all
    all=("$CI"/standin/*.json)
    # For ci/soak: the bases of all recipes that can have one.
    if [ "${HPCSTACK_STANDINS:-}" = all ]; then all+=("$CI"/standin/soak/*.json); fi
    for facts in "${all[@]}"; do
        stamp=$(cat "$CI"/standin/*.py "$facts" | sha256sum | cut -d' ' -f1)
        have=$TESTBED/state/standin-$(basename "$facts" .json)
        [ "$(cat "$have" 2>/dev/null)" = "$stamp" ] && continue
        python3 "$CI/standin" "$facts" "$TESTBED/cache" "$REGISTRY" >"$LOG/standin.log" 2>&1 || {
            fail_by_log "the stand-in of $(basename "$facts" .json) was not built" "$LOG/standin.log"
        }
        tail -n 1 "$LOG/standin.log"
        echo "$stamp" >"$have"
    done
}
