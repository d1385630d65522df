# What a step's standard error says of its end, in one line: the first rank that failed, where, of what. Then the status
# that this rank had, else that of the step, which is in `status`; and the state in Slurm's word.
# The same as hpcstack/launch/failure.py, for job scripts; a test holds the two together.
# Whether Slurm's word of the step's end came after the task's own
function ended_by_slurm() {
    if (told == "CANCELLED") return code == 143
    return (told == "TIMEOUT" || told == "PREEMPTED") && (code == 143 || code == 137)
}
function is_victim(text) { # of which another rank was the cause
    return text ~ /DistBackendError|DistNetworkError|DistStoreError|Rendezvous|CalledProcessError|ProcessRaisedException|ProcessExitedException|BrokenPipeError|Connection closed by peer|Connection reset by peer|ncclRemoteError|remote process exited|Watchdog caught collective|HorovodInternalError|NCCL communicator was aborted|monitoredBarrier|Timed out initializing process group/ && text !~ /Cuda failure|unhandled cuda error|EADDRINUSE|[Aa]ddress already in use/
}
function find_exception(preferred,    n, key, best) { # into found_of and found: where no rank is known to have failed first
    found_of = found = ""
    best = 16
    for (n = 1; n <= kept; n++) {
        if (place_of[order[n]] != n) continue
        key = 8 * (exception(order[n]) ~ /WorkerProc initialization failed|Engine core initialization failed|See root cause above/)
        key += 4 * ((order[n] in went_on) || (order[n] in logged)) + 2 * is_victim(exception(order[n])) + (order[n] != preferred)
        if (key < best) { best = key; found_of = order[n]; found = exception(order[n]) }
    }
}
function find_said(    n, first) { # the exception of whoever names no rank
    first = ""
    for (n = 1; n <= kept; n++) {
        if (place_of[order[n]] != n || (order[n] != "" && order[n] !~ /:$/)) continue
        if (!is_victim(exception(order[n]))) return exception(order[n])
        if (first == "") first = exception(order[n])
    }
    return first
}
function is_of_a_program(text) { # it says only that a program or a worker which was started has failed
    return text ~ /^[A-Za-z_.]*CalledProcessError/ || text ~ /^[A-Za-z_.]+: Caught [A-Za-z_.]+ in (DataLoader worker|replica|pin memory)/
}
function is_told(text) { return text ~ /KeyboardInterrupt|SystemExit|SignalException|Interrupt/ } # to end, and ended of that
function end_by(word) { # the step was ended from outside: of what a rank had failed before is kept
    if (told == "") {
        find_exception("\001")
        before_end = ((found_of in went_on) || is_told(found)) ? "" : found
    }
    told = word
}
function end_task(number, where, status,    by_itself, by_srun, again) { # a task that Slurm was ending has not failed
    by_itself = status != 143 && status != 137
    if (task != "" && number != task && by_itself) several_tasks = 1
    if (task != "" || others_are_ended) return
    by_srun = told == "CANCELLED" && is_of_a_step && before_end != ""
    again = (told == "PREEMPTED" || told == "NODE_FAIL") && after_end != "" && !(after_end_of in went_on) && status < 128
    if (told != "" && !(by_itself && (by_srun || again))) return
    if (again) {
        split("", why); split("", at); split("", order); split("", place_of)
        why[after_end_of] = after_end
        order[1] = after_end_of; place_of[after_end_of] = kept = 1
    }
    told = ""
    task = number; on = where; code = status
    task_words = ((number ":") in last_of_rank) ? last_of_rank[number ":"] : last_of_rank[""]
}
function form_of(text) {
    gsub(/[0-9]+/, "0", text)
    gsub(/(TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL) */, "LEVEL", text)
    return text
}
function learn_label(    n, before, form) { # what stands before the head of a traceback, and again before its frames
    if (n = index($0, "Traceback (most recent call last):")) {
        before = substr($0, 1, n - 1)
        if (length(before) >= 2 && length(before) <= 160 && before ~ /^[]A-Za-z0-9 _.,:;\/|()<>=@#+*[{}-]+$/ && waiting < 20) {
            form = form_of(before)
            if (!(form in pending)) waiting++
            pending[form] = 1
        }
    } else if (waiting && (n = index($0, "  File \""))) {
        form = form_of(substr($0, 1, n - 1))
        if (!(form in pending) || form !~ /[A-Za-z0-9]/ || others >= 20 || (form in known_other)) return
        known_other[form] = 1
        gsub(/[^A-Za-z0-9 ]/, "[&]", form)
        gsub(/0/, "[0-9]+", form)
        gsub(/LEVEL/, "(TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL) *", form)
        OTHER[++others] = "^" form
    }
}
function name_in(label,    text) { # who is named in it: what is a time, and what stands before it, tells no speakers apart
    text = label
    while (match(text, /([0-9][0-9]+[-\/][0-9][0-9]([-\/][0-9][0-9]+)?[T ]+)?[0-9][0-9]?:[0-9][0-9]:[0-9][0-9]([.,][0-9]+)?Z?|(TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL) */)) text = substr(text, RSTART + RLENGTH)
    sub(/^[] )|:]+/, "", text)
    sub(/[ :|]+$/, "", text)
    return text
}
function take_label(    n, text) { # whose the line is, as others have put it in front; hpcstack/launch/log_lines.py
    for (n = 1; n <= LABELS; n++) {
        if (!match($0, LABEL[n])) continue
        text = substr($0, 1, RLENGTH)
        $0 = substr($0, RLENGTH + 1)
        if (KIND[n] == "rank") { sub(/[^0-9]+$/, "", text); sub(/.*[^0-9]/, "", text); of = text }
        if (KIND[n] == "task") { gsub(/ /, "", text); of = text }
        if (KIND[n] == "own") { sub(/[ :]+$/, "", text); of = text }
        return 1
    }
    learn_label()
    for (n = 1; n <= others; n++) {
        if (!match($0, OTHER[n])) continue
        text = substr($0, 1, RLENGTH)
        $0 = substr($0, RLENGTH + 1)
        text = name_in(text)
        if (text != "") of = text
        return 1
    }
    return 0
}
function forget() { # all but the labels: the job starts again, and writes into the same log
    rank = host = task = told = silent = starts = pyxis = aborted = said_then = last_words = ""
    out_of_memory = others_are_ended = ended = last = first = kept = 0
    split("", why); split("", at); split("", place); split("", own); split("", open); split("", inside)
    several_tasks = left = is_wrong = killed = before_end = after_end = after_end_of = is_of_a_step = task_words = at_root = ""
    split("", reports); split("", just); split("", logged)
    split("", groups); split("", harmless); split("", went_on); split("", wrong); split("", last_of_rank); split("", order); split("", place_of)
}
function exception(rank) { return rank in why ? why[rank] (rank in at ? " (" at[rank] ")" : "") : "" }
function reason() { # of what the rank that failed first has failed, as far as it has said so
    if ((rank in why) && !((rank in went_on) && signal_of(ended))) return exception(rank)
    if (aborted != "") return aborted
    if (ended == 137 && out_of_memory) return "killed by SIGKILL: " MEANING["OUT_OF_MEMORY"]
    if (signal_of(ended)) return signal(signal_of(ended))
    if (said_then != "") return said_then
    if (ended == 2 || ended == 126 || ended == 127) return starts
    if (ended == 1 && starts ~ /python[0-9.]*: (No module named|Error while finding module specification)/) return starts
    return ""
}
function signal_of(status) { return (status > 128 && status <= 159) ? status - 128 : 0 } # 31 have a meaning of their own
function goes_on(text,    small) { # it is no line of an exception's message, nor what a rank may write after it
    if (text ~ /^($|[ *=-])|^\[?[WEF][0-9][0-9][0-9][0-9]|WARN|Warning|ERROR|^Exception in thread|^terminate called|^wandb: |:sigkill_handler\]/) return 0
    small = tolower(text)
    return small ~ /^\[?(info|debug|notice)[]: |]|^\[?[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][t ,]|%\||it\/s/ ||
        small ~ /(epoch|step|iter|iteration|loss|batch)[^a-z0-9.]([^a-z0-9.]([^a-z0-9.])?)?[0-9]/ ||
        small ~ /^(retry|trying|resum|restart|continu|carry|going on|training|finished|done|saved|saving|loaded|loading|skipp|falling back|starting|using|attempt|caught|recovered|all )/
}
function killed_by_memory() { return "killed by SIGKILL: " MEANING["OUT_OF_MEMORY"] }
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
    BEGINS[9] = "error: pyxis: "; BEGINS[10] = "error: spank: pyxis: "; BEGINS[11] = "error: Step "; BEGINS[12] = "error: Exceeded "
    split("Hangup|Interrupt|Quit|Illegal instruction|Trace/breakpoint trap|Aborted|Bus error|Floating point exception|Killed|User defined signal 1|Segmentation fault|User defined signal 2|Broken pipe|Alarm clock|Terminated|CPU time limit exceeded|File size limit exceeded|Bad system call|Out Of Memory", WORDS, "|")
    split("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 24 25 31 9", NUMBERS, " ")
    for (n in WORDS) SIGNALS[WORDS[n]] = NUMBERS[n]
    split("HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS", NAMES, " ")
    forget()
    # LABELS
    # MEANINGS
}
{
    gsub(/\033\[[0-9;?]*[A-Za-z]/, "") # what terminals take for commands
    gsub(/\033\][^\007\033]*\007/, "")
    sub(/\r+$/, "") # a terminal ends lines with both; a bar is drawn over itself
    sub(/.*\r/, "")
    of = ""
    whole = $0
    for (taken = 0; taken < MOST_LABELS && take_label(); taken++);
    is_logged = $0 != "" && substr(whole, 1, length(whole) - length($0)) ~ /TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL/
}
(of in open) || (of in groups) { # the tree of an exception group has a margin
    if (/^ +[+][-+ ]/) { if (!/Traceback/) $0 = "" }
    else if (/^ +[|]/) sub(/^ +[|] ?/, "")
    else delete groups[of]
}
/^ +traceback : Traceback [(]most recent call last[)]:/ { reports[of] = 1; is_head = 1 }
(of in reports) && !is_head { # what @record has reported stands two blanks further in
    if (/^  /) $0 = substr($0, 3)
    else delete reports[of]
}
{ is_head = 0 }
{ # a progress bar may stand before what is said
    from = 0
    for (n in BEGINS) {
        at_ = last_of($0, BEGINS[n])
        if (at_ > from) from = at_
    }
    if (from > 1) $0 = substr($0, from)
}
/^hpcstack: start [0-9]+ of job / || /^((slurmstepd|srun)[^ ]*: |\[[^]]+\] )?error: \*\*\* (STEP|JOB) .* DUE TO JOB REQUEUE/ || /Worker group FAILED\. [0-9]+\/[0-9]+ attempts left; will restart worker group/ { forget(); next }
/^hpcstack: rank [0-9]+ on [^ ]+ ended with [0-9]+ \[[0-9]+ [0-9]+(\.[0-9]+)?\.?N?\]$/ {
    if (told != "") next
    again = substr($9, 2) + 0
    moment = $10 + 0
    if (host == "" || again > last || (again == last && moment < first)) {
        rank = $3; host = $5; ended = $8; last = again; first = moment
        said_then = find_said() # what comes later is an echo
        if (said_then == "" && ended == 2) said_then = (rank in wrong) ? wrong[rank] : wrong[""]
        last_words = (rank in last_of_rank) ? last_of_rank[rank] : last_of_rank[""]
    }
    next
}
/^hpcstack: rank [0-9]+ on [^ ]+ had left before \[[0-9]+ [0-9]+(\.[0-9]+)?\.?N?\]$/ {
    if (left == "") { left = "rank " $3 " on " $5; left_again = substr($9, 2) + 0; left_at = $10 + 0 }
    next
}
/^srun: error: [^ ]+: tasks? [0-9,-]+: Exited with exit code [0-9]+$/ {
    number = $5; sub(/:$/, "", number); sub(/[,-].*/, "", number)
    where = $3; sub(/:$/, "", where)
    end_task(number, where, $NF)
    next
}
/^srun: error: [^ ]+: tasks? [0-9,-]+: [A-Z][A-Za-z12 \/]+( \(core dumped\))?$/ {
    word = $0
    sub(/^srun: error: [^ ]+: tasks? [0-9,-]+: /, "", word)
    sub(/ \(core dumped\)$/, "", word)
    if (word in SIGNALS) {
        number = $5; sub(/:$/, "", number); sub(/[,-].*/, "", number)
        where = $3; sub(/:$/, "", where)
        had = task
        end_task(number, where, 128 + SIGNALS[word])
        if (had == "" && task != "" && word == "Out Of Memory") out_of_memory = 1
        next
    }
}
# Slurm's messages begin in several ways: hpcstack/slurm/step_messages.py
/^((slurmstepd|srun)[^ ]*: .*|error: \*\*\* (STEP|JOB) .*) CANCELLED AT / {
    cause = substr($0, last_of($0, " CANCELLED AT "))
    if (cause ~ /DUE TO TASK FAILURE/) others_are_ended = 1 # one task has failed, and Slurm ends the others
    else {
        if (cause ~ /DUE TO TIME LIMIT/) end_by("TIMEOUT")
        else if (cause ~ /DUE TO PREEMPTION/) end_by("PREEMPTED")
        else if (cause ~ /DUE TO NODE FAILURE/) end_by("NODE_FAIL")
        else end_by(told == "" ? "CANCELLED" : told)
        is_of_a_step = /\*\*\* STEP /
    }
    next
}
/^hpcstack: nothing was written for [0-9]+ s: / { silent = $6; end_by(told == "" ? "FAILED" : told); next }
/^srun: error: Node failure on / { end_by("NODE_FAIL"); next }
/^((slurmstepd|srun)[^ ]*: |\[[^]]+\] )?error: (spank: )?pyxis: / {
    where = $0
    sub(/^((slurmstepd|srun)[^ ]*: |\[[^]]+\] )?error: (spank: )?pyxis: +/, "", where)
    if (pyxis == "" && where !~ /^(couldn.t start container|container start failed|printing enroot log file|printing contents of log file|if the image has)/)
        pyxis = substr(where, 1, 300)
    next
}
/^((slurmstepd|srun)[^ ]*: |\[[^]]+\] )?error: (Detected [0-9]+ oom[-_]kill events? in |(.* e|E)xceeded .*memory limit)/ { out_of_memory = 1; next }
/^[^ \t]+: line [0-9]+: +[0-9]+ (Illegal instruction|Aborted|Bus error|Killed|Floating point exception|Segmentation fault) / {
    word = $0
    sub(/^[^ \t]+: line [0-9]+: +[0-9]+ /, "", word)
    for (n in SIGNALS) if (index(word, n " ") == 1 && killed == "" && told == "") killed = signal(SIGNALS[n])
    next
}
starts == "" && host == "" && (/^[^ \t]*python[0-9.]*: (can.t open file|No module named|Error while finding module specification)/ || /^(env|setsid|setpriv|[^ \t]*sh): .*(Permission denied|No such file or directory|not found|Exec format error)$/) {
    starts = substr($0, 1, 300)
    next
}
aborted == "" && host == "" && (/^MPI_ABORT was invoked on rank [0-9]+ / || /^Abort\(-?[0-9]+\) on node [0-9]+ /) {
    aborted = substr($0, 1, 300)
    next
}
{ is_beside_one = (of in just); delete just[of] }
/^(--- Logging error ---$|Exception ignored in)/ { harmless[of] = 1; delete inside[of]; next }
/^Traceback \(most recent call last\):/ || /^[^ -~]+ ?Traceback \(most recent call last\) ?[^ -~]+/ { # of Python, or in a box of Rich
    delete inside[of]; open[of] = 1; delete place[of]; delete own[of]
    next
}
/^  File "[^"]+", line [0-9]+(, in |$)/ || ((of in open) && /^[^ -~]+ \/[^ :]+:[0-9]+ in /) {
    open[of] = 1
    where = $0
    if (where ~ /^  File "/) {
        sub(/^  File "/, "", where)
        file = where
        sub(/".*/, "", file)
        sub(/.*", line /, "", where)
    } else {
        sub(/^[^ -~]+ /, "", where)
        file = where
        sub(/:.*/, "", file)
        where = substr(where, length(file) + 2)
    }
    sub(/[^0-9].*/, "", where)
    place[of] = file ", line " where
    if (file !~ /\/(site|dist)-packages\/|\/lib\/python3|^</) own[of] = place[of]
    inside[of] = 1
    next
}
# a line of source, the marks below it, the rest of a box, or another one's log line
(of in inside) && (/^ / || /^[^ -~]/ || /^\[?(INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL|NOTE|TRACE)[]: |]/ || /^\[?[WIED][0-9][0-9][0-9][0-9]/) { next }
/^[A-Za-z_][A-Za-z0-9_.]*(Error|Exception|Interrupt|Exit|Expired|Iteration)(:|$)/ || ((of in inside) && /^[A-Za-z_][A-Za-z0-9_.]*(: |$)/) {
    # a rank that was interrupted may fail of something else as it ends; one that went on had caught the one before
    as_it_ended = (of in why) && why[of] ~ /^KeyboardInterrupt/ && $0 !~ /^KeyboardInterrupt/
    was_caught = (of in went_on) && host == "" && !is_victim($0)
    of_group = (of in groups) && (of in why) && (why[of] ~ /^[A-Za-z_.]*ExceptionGroup: / || is_victim(why[of]))
    says_for_what = (of in why) && is_of_a_program(why[of]) && !is_of_a_program($0)
    gives_way = (of in why) && (of == "" || of ~ /:$/) && is_victim(exception(of)) && !is_victim($0) && !is_told($0)
    is_the_root = at_root && (of in reports)
    is_raised = (of in logged) && !is_logged
    is_new = !(of in why) || as_it_ended || was_caught || of_group || says_for_what || gives_way || is_the_root || is_raised
    if (((of in open) || (of in groups) || (is_beside_one && gives_way)) && is_new && !(of in harmless) && $0 !~ /ChildFailedError/) {
        why[of] = substr($0, 1, 300)
        order[++kept] = of
        place_of[of] = kept
        delete at[of]
        delete went_on[of]
        delete logged[of]
        if (is_logged) logged[of] = 1
        if (of in own) at[of] = own[of]
        else if (of in place) at[of] = place[of]
        if (told != "" && !is_victim($0) && !is_told($0)) { after_end = exception(of); after_end_of = of }
    }
    if (/^[A-Za-z_.]*ExceptionGroup: /) groups[of] = 1
    delete open[of]
    delete harmless[of]
    delete inside[of]
    just[of] = 1
    next
}
{ delete inside[of] }
(of in why) && goes_on($0) { went_on[of] = 1 }
/^Root Cause \(first observed failure\):/ { at_root = 1; next }
/^[Uu]sage: / || / failed \(exitcode: 2\) local_rank: / { is_wrong = 1; next }
/^([^ \t]+: )?[Ee]rror: ./ { wrong[of] = substr($0, 1, 300); if (of ~ /:$/) wrong[""] = wrong[of]; next }
host == "" && !/^\[?[WIED][0-9][0-9][0-9][0-9]|WARN|Warning|INFO|DEBUG|NOTE|%\||it\/s|^(\*|hpcstack:|srun:|salloc:|slurmstepd|\[[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[^]]*\] error: )|^[-=*# ]*$/ { last_of_rank[of] = substr($0, 1, 300); if (of ~ /:$/) last_of_rank[""] = last_of_rank[of] }
END {
    said = ""
    word = "FAILED"
    if ((getline status <ended_in) <= 0) status = 143 # the shell that would have written it was ended
    if (status == 0) {
        print "0 COMPLETED"
        exit
    }
    if (host != "") {
        status = ended
        said = reason()
        if (ended == 137 && out_of_memory && said == "killed by SIGKILL: " MEANING["OUT_OF_MEMORY"]) word = "OUT_OF_MEMORY"
        before = (left != "" && left_again == last && left_at < first + 0.4 && is_victim(said)) ? left " had ended before, without an error; then " : ""
        if (said != "") said = ": " said
        else if (last_words != "") said = "; the last line before: " last_words
        said = before "rank " rank " on " host " failed" (before == "" ? " first" : "") said
    } else if (task != "" && status != 125 && !ended_by_slurm()) {
        status = code
        who = "task " task " on " on
        find_exception(task ":")
        # srun names them in the order in which it hears of them
        if (found_of ~ /:$/ && found_of != task ":") who = "task " substr(found_of, 1, length(found_of) - 1)
        else if (several_tasks && found_of ~ /^[0-9]+$/ && found_of != task && !(found_of in went_on)) who = "rank " found_of # a task may have started several
        said = (found_of in went_on) ? "" : found
        if (said == "") said = aborted
        if (said == "") said = pyxis
        if (said == "" && signal_of(code)) said = (code == 137 && out_of_memory) ? killed_by_memory() : signal(signal_of(code))
        if (said == "" && code == 2) said = ((task ":") in wrong) ? wrong[task ":"] : wrong[""]
        if (said == "") said = found
        if (said == killed_by_memory()) word = "OUT_OF_MEMORY"
        if (said == "killed by SIGABRT" && task_words != "") said = said "; the last line before: " task_words # who aborts says why
        if (said != "") said = ": " said
        else if (task_words != "") said = "; the last line before: " task_words
        said = who " failed first" said
    } else if (aborted != "") {
        find_exception("\001")
        said = (found != "" && !(found_of in went_on) && !is_victim(found)) ? found : aborted # Slurm cancels the step of it
    } else if (told == "CANCELLED" && out_of_memory) {
        word = "OUT_OF_MEMORY"
        said = MEANING[word]
        status = 137
    } else if (told != "") {
        word = told
        said = (told == "FAILED") ? "nothing was written for " silent " s" : MEANING[told]
        if (told == "CANCELLED" || told == "TIMEOUT" || told == "PREEMPTED") status = 143
    } else {
        find_exception("\001")
        said = uncaught = (found_of in went_on) ? "" : found
        if (killed != "" && out_of_memory) killed = killed_by_memory()
        if (killed == killed_by_memory() && uncaught == "") word = "OUT_OF_MEMORY"
        if (said == "") said = pyxis
        if (said == "") said = killed
        if (said == "" && is_wrong) said = wrong[""]
        if (said == "") said = found
        if (said == "") said = "it failed"
    }
    printf "hpcstack: %s; exit %s\n", said, status
    print status, word
}
