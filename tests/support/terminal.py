"""A terminal on which somebody types: what `script` is for a shell, for tests that press Ctrl-C."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from support.testbed import Testbed

# Starts a command on a terminal of its own; presses Ctrl-C when all of some files are there, and
# again after pauses. Says at the end, as JSON: the status, what was on the screen, how many seconds
# it took from the first Ctrl-C on.
TYPIST = """\
import json, os, pty, select, sys, time

asked = json.loads(sys.argv[1])
child, terminal = pty.fork()
if child == 0:
    os.execvp(asked["argv"][0], asked["argv"])

screen, pressed, began, pauses = b"", 0.0, time.monotonic(), list(asked["pauses"])
while True:
    ready, _, _ = select.select([terminal], [], [], 0.1)
    if ready:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not data:
            break
        screen += data
    now = time.monotonic()
    if not pressed and all(os.path.exists(path) for path in asked["wait_for"]):
        time.sleep(asked["delay"])
        os.write(terminal, b"\\x03")
        pressed = next_press = time.monotonic()
    elif pressed and pauses and now - next_press >= pauses[0]:
        os.write(terminal, b"\\x03")
        next_press = now
        pauses.pop(0)
    if now - began > asked["limit"]:
        os.kill(child, 9)
        screen += b"\\nTHE TYPIST WENT HOME\\n"
        break
_, status = os.waitpid(child, 0)
print(json.dumps({
    "status": os.waitstatus_to_exitcode(status), "screen": screen.decode(errors="replace"),
    "seconds": time.monotonic() - (pressed or time.monotonic()),
}))
"""


@dataclass(frozen=True)
class Typed:
    """How a command ended at which Ctrl-C was pressed: SECONDS after the first time."""

    status: int
    screen: str
    seconds: float


def press_ctrl_c(
    testbed: Testbed, folder: str, argv: tuple[str, ...], wait_for: tuple[str, ...], *,
    pauses: tuple[float, ...] = (), delay: float = 0.5, limit: float = 180,
) -> Typed:  # fmt: skip
    """ARGV on a terminal, in FOLDER of the user's home; Ctrl-C after all files of WAIT_FOR are
    there, and after PAUSES.
    """
    asked = {"argv": argv, "wait_for": wait_for, "pauses": pauses, "delay": delay, "limit": limit}
    script = 'cd "$1" && exec python3 -c "$2" "$3"'
    done = testbed.bash(script, folder, TYPIST, json.dumps(asked), timeout=limit + 60, check=False)
    try:
        return Typed(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, json.JSONDecodeError):
        raise AssertionError(
            subprocess.list2cmdline(argv) + f": {done.stdout}{done.stderr}"
        ) from None
