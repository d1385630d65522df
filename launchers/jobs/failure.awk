# What a step's standard error says of its end, in one line: the first rank that failed, where, of what. Then the status
# that this rank had, alone on a line; else that of the step, which is in `status`. `log_` is where all of it is.
# The same as hpcstack/launch/failure.py, for job scripts; a test holds the two together.
# Whether Slurm's word of the step's end came after the task's own
function ended_by_slurm() {
    if (told == "it was cancelled") return code == 143
    return (told == "the time limit was reached" || told == "it was preempted") && (code == 143 || code == 137)
}
function exception(rank) { return rank in why ? why[rank] (rank in at ? " (" at[rank] ")" : "") : "" }
function reason() { # of what the rank that failed first has failed, as far as it has said so
    if (rank in why) return exception(rank)
    if (aborted != "") return aborted
    if (ended == 137 && out_of_memory) return "killed by SIGKILL: the job\047s memory limit was reached"
    if (ended > 128) return signal(ended - 128)
    if (said_then != "") return said_then
    if (ended == 2 || ended == 126 || ended == 127) return starts
    if (ended == 1 && starts ~ /python[0-9.]*: (No module named|Error while finding module specification)/) return starts
    return ""
}
function signal(number) { return number in NAMES ? "killed by SIG" NAMES[number] : "killed by signal " number }
function last_of(text, word,    place, off) {
    place = 0
    while ((off = index(substr(text, place + 1), word)) > 0) place += off
    return place
}
BEGIN {
    BEGINS[1] = "hpcstack: rank "; BEGINS[2] = "srun: error: "; BEGINS[3] = "slurmstepd"
    BEGINS[4] = "Traceback (most recent call last):"; BEGINS[5] = "hpcstack: nothing was"
    BEGINS[6] = "error: *** STEP "; BEGINS[7] = "error: *** JOB "; BEGINS[8] = "error: Detected "
    BEGINS[9] = "error: pyxis: "; BEGINS[10] = "error: spank: pyxis: "
    split("HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM", NAMES, " ")
    rank = host = task = told = starts = pyxis = aborted = ""
}
{
    sub(/\r+$/, "") # a terminal ends lines with both; a bar is drawn over itself
    sub(/.*\r/, "")
    sub(/^ *[0-9]+: /, "")
    of = ""
    if (match($0, /^\[rank[0-9]+\]: ?/)) {
        of = substr($0, 6, index($0, "]") - 6)
        $0 = substr($0, RLENGTH + 1)
    }
}
{ # a progress bar may stand before what is said
    from = 0
    for (n in BEGINS) {
        at_ = last_of($0, BEGINS[n])
        if (at_ > from) from = at_
    }
    if (from > 1) $0 = substr($0, from)
}
/^hpcstack: rank [0-9]+ on [^ ]+ ended with [0-9]+ \[[0-9]+ [0-9]+(\.[0-9]+)?\.?N?\]$/ {
    if (told != "") next
    again = substr($9, 2) + 0
    moment = $10 + 0
    if (host == "" || again > last || (again == last && moment < first)) {
        rank = $3; host = $5; ended = $8; last = again; first = moment
        said_then = exception("") # what comes later is an echo
        if (said_then == "" && ended == 2) said_then = (rank in wrong) ? wrong[rank] : wrong[""]
        last_words = (rank in last_of_rank) ? last_of_rank[rank] : last_of_rank[""]
    }
    next
}
/^srun: error: [^ ]+: tasks? [0-9,-]+: Exited with exit code [0-9]+$/ {
    if (task == "" && told == "" && !others_are_ended) { task = $5; sub(/:$/, "", task); sub(/[,-].*/, "", task); on = $3; sub(/:$/, "", on); code = $NF }
    next
}
# Slurm's messages begin in several ways: hpcstack/slurm/step_messages.py
/^((slurmstepd|srun)[^ ]*: .*|error: \*\*\* (STEP|JOB) .*) CANCELLED AT / {
    cause = substr($0, last_of($0, " CANCELLED AT "))
    if (cause ~ /DUE TO TASK FAILURE/) others_are_ended = 1 # one task has failed, and Slurm ends the others
    else if (cause ~ /DUE TO TIME LIMIT/) told = "the time limit was reached"
    else if (cause ~ /DUE TO PREEMPTION/) told = "it was preempted"
    else if (cause ~ /DUE TO NODE FAILURE/) told = "a node failed"
    else if (told == "") told = "it was cancelled"
    next
}
/^hpcstack: nothing was written for [0-9]+ s: / { if (told == "") told = "nothing was written for " $6 " s"; next }
/^srun: error: Node failure on / { told = "a node failed"; next }
/^((slurmstepd|srun)[^ ]*: |\[[^]]+\] )?error: (spank: )?pyxis: / {
    where = $0
    sub(/^((slurmstepd|srun)[^ ]*: |\[[^]]+\] )?error: (spank: )?pyxis: +/, "", where)
    if (pyxis == "" && where !~ /^(couldn.t start container|container start failed|printing enroot log file|if the image has)/)
        pyxis = substr(where, 1, 300)
    next
}
/^((slurmstepd|srun)[^ ]*: |\[[^]]+\] )?error: Detected [0-9]+ oom[-_]kill events? in / { out_of_memory = 1; next }
starts == "" && host == "" && (/^[^ \t]*python[0-9.]*: (can.t open file|No module named|Error while finding module specification)/ || /^(env|setsid|setpriv|[^ \t]*sh): .*(Permission denied|No such file or directory|not found|Exec format error)$/) {
    starts = substr($0, 1, 300)
    next
}
aborted == "" && host == "" && (/^MPI_ABORT was invoked on rank [0-9]+ / || /^Abort\(-?[0-9]+\) on node [0-9]+ /) {
    aborted = substr($0, 1, 300)
    next
}
$0 == "--- Logging error ---" { harmless[of] = 1; delete inside[of]; next }
/^Traceback \(most recent call last\):/ { delete inside[of]; open[of] = 1; delete place[of]; delete own[of]; next }
/^  File "[^"]+", line [0-9]+/ {
    open[of] = 1
    where = $0
    sub(/^  File "/, "", where)
    file = where
    sub(/".*/, "", file)
    sub(/.*", line /, "", where)
    sub(/[^0-9].*/, "", where)
    place[of] = file ", line " where
    if (file !~ /\/(site|dist)-packages\/|\/lib\/python3|^</) own[of] = place[of]
    inside[of] = 1
    next
}
/^[A-Za-z_][A-Za-z0-9_.]*(Error|Exception|Interrupt|Exit|Expired|Iteration)(:|$)/ || ((of in inside) && /^[A-Za-z_][A-Za-z0-9_.]*(: |$)/) {
    # a rank that was interrupted may fail of something else as it ends
    is_new = !(of in why) || (why[of] ~ /^KeyboardInterrupt/ && $0 !~ /^KeyboardInterrupt/)
    if (open[of] && is_new && !harmless[of] && $0 !~ /ChildFailedError/) {
        why[of] = substr($0, 1, 300)
        delete at[of]
        if (of in own) at[of] = own[of]
        else if (of in place) at[of] = place[of]
    }
    delete open[of]
    delete harmless[of]
    delete inside[of]
    next
}
/^ / && (of in inside) { next } # a line of source, or the marks below it
{ delete inside[of] }
/^([^ \t]+: )?[Ee]rror: ./ { wrong[of] = substr($0, 1, 300); next }
host == "" && !/^\[?[WIED][0-9][0-9][0-9][0-9]|WARN|Warning|INFO|DEBUG|NOTE|%\||it\/s|^(\*|hpcstack:|srun:|salloc:|slurmstepd|\[[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[^]]*\] error: )|^[-=*# ]*$/ { last_of_rank[of] = substr($0, 1, 300) }
END {
    said = ""
    if ((getline status <ended_in) <= 0) status = 143 # the shell that would have written it was ended
    if (status == 0) {
        print 0
        exit
    }
    if (host != "") {
        status = ended
        said = reason()
        if (said != "") said = ": " said
        else if (last_words != "") said = "; the last line before: " last_words
        said = "rank " rank " on " host " failed first" said
    } else if (task != "" && status != 125 && !ended_by_slurm()) {
        status = code
        said = exception("")
        if (said == "") said = aborted
        if (said == "") said = pyxis
        said = "task " task " on " on " failed first" (said == "" ? "" : ": " said)
    } else if (aborted != "") {
        said = aborted # Slurm cancels the step of it
    } else {
        said = told != "" ? told : exception("")
        if (said == "") said = pyxis
        if (said == "") said = "it failed"
        if (told == "it was cancelled" || told == "the time limit was reached" || told == "it was preempted") status = 143
    }
    printf "hpcstack: %s; exit %s\n", said, status
    print status
}
