# What becomes of a node, from what its probes have said. Lines of `NODE CHECK KIND TIME WHY`, times in seconds; KIND is
#   ok      it answered, and all is well
#   none    it has not answered yet
#   miss    it has not answered in time: a note at first, a fault after `misses` in a row
#   bad     evidence of a fault
#   reset   evidence of a fault that only a reset takes away, by somebody who has looked
#   end     the round of NODE is over; CHECK and WHY are empty (-)
# Lines `= NAME VALUE` are what earlier rounds have left. They come first, and are printed again at the end.
#
# It prints `drain NODE WHY`, `undrain NODE` and `unknown NODE WHY`; `missed NODE` where a drain rests on answers alone that
# did not come, which may be a file server's fault. Whoever acts on that asks Slurm first who has drained the node, and how
# many were drained this hour. -v misses=, clean=, undrains= (a day).
$1 == "=" { kept[$2] = $3; next }
{ why = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ ?/, "", why) }
$3 == "ok" { delete kept["miss:" $1 ":" $2]; next }
$3 == "none" { unknown[$1] = unknown[$1] (unknown[$1] ? "; " : "") why; next }
$3 == "miss" {
    if (seen[$1 ":" $2]++) { next } # one a round, however many questions of a probe went unanswered
    count = ++kept["miss:" $1 ":" $2]
    if (count >= misses) { fault[$1] = fault[$1] (fault[$1] ? "; " : "") why }
    else { unknown[$1] = unknown[$1] (unknown[$1] ? "; " : "") why " (" count " of " misses ")" }
    next
}
$3 == "bad" || $3 == "reset" {
    seen_bad[$1] = 1
    fault[$1] = fault[$1] (fault[$1] ? "; " : "") why
    if ($3 == "reset") { kept["reset:" $1] = 1 }
    next
}
$3 == "end" {
    day = int($4 / 86400)
    if ($1 in fault) {
        kept["clean:" $1] = 0
        print "drain " $1 " " fault[$1]
        if (!seen_bad[$1]) { print "missed " $1 }
    } else if ($1 in unknown) {
        kept["clean:" $1] = 0
        print "unknown " $1 " " unknown[$1]
    } else if (++kept["clean:" $1] >= clean && !kept["reset:" $1]) {
        if (kept["day:" $1] != day) { kept["day:" $1] = day; kept["undrains:" $1] = 0 }
        if (kept["undrains:" $1] < undrains) { print "undrain " $1 }
    }
    delete fault[$1]
    delete unknown[$1]
    delete seen_bad[$1]
    split("", seen)
}
END {
    for (name in kept) if (kept[name]) print "= " name " " kept[name]
    print "# whole" # the last line: what lacks it was cut off by a full disk
}
