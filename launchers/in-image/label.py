# Begins each line that a rank writes with its number, and starts the rank: PREFIX PROGRAM [ARGUMENTS]...
# The rank keeps the number of this process, so that a signal reaches it as without labels. A line is handed on when it
# is whole: ranks that write at once do not part each other's. A drawing, which ends with a carriage return, is one.
import contextlib
import os
import select
import signal
import sys

WAIT_S = 0.5  # after which the beginning of a line is handed on: somebody may be asked something
LONGEST = 65536  # bytes of a line that are handed on at once
DONE = 9  # the descriptor that rank.sh reads to its end
OWN = b"hpcstack: "  # what is hpcstack's own names its rank itself


def write(out, data):
    while data:
        data = data[os.write(out, data) :]


def label(source, out, prefix):
    """Copy SOURCE to OUT until its end, each line behind PREFIX."""
    rest = b""  # the beginning of a line
    is_new = True  # what comes next begins one
    while True:
        has_come = not rest or select.select([source], [], [], WAIT_S)[0]
        data = os.read(source, LONGEST) if has_come else b""
        is_over = has_come and not data
        rest += data
        end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        if is_over or not has_come or len(rest) >= LONGEST:
            end = len(rest)
        lines, rest = rest[:end].splitlines(True), rest[end:]
        for at, line in enumerate(lines):
            names_itself = line.startswith((prefix, OWN)) or not line.strip()
            if is_new and not names_itself:
                lines[at] = prefix + line
            is_new = line.endswith((b"\n", b"\r"))
        write(out, b"".join(lines))
        if is_over:
            return


def main():
    prefix = sys.argv[1].encode()
    # Whoever reads this to its end knows that all is written. rank.sh waits for that: what ends the container
    # ends those who label, too.
    done, held = os.pipe()
    for out in (1, 2):
        source, sink = os.pipe()
        if not os.fork():
            os.setsid()
            for number in (
                signal.SIGINT,
                signal.SIGTERM,
                signal.SIGHUP,
                signal.SIGUSR1,
                signal.SIGUSR2,
            ):
                signal.signal(number, signal.SIG_IGN)
            os.close(sink)
            os.close(0)
            os.close(3 - out)
            os.close(done)
            with contextlib.suppress(OSError):  # nobody reads what the rank writes
                label(source, out, prefix)
            os._exit(0)
        os.dup2(sink, out)
        os.close(source)
        os.close(sink)
    os.close(held)
    os.dup2(done, DONE)  # inheritable
    os.execvp(sys.argv[2], sys.argv[2:])


main()
