"""What the hook that tells syslog of a load costs, by Lmod and by Environment Modules.

    ci/bench/usage-hook [--rounds 41] [--json]

A release of a few bytes is published below a temporary folder, and loaded with and without the
hook, alternating, each time in a shell of its own, with a syslog that listens. Bar: the median of a
load with the hook is at most 5 ms above that without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from hpcstack.render.usage_hook import render_usage_hook
from support.modules import ENVIRONMENT_MODULES, LMOD, Place, clean, system
from support.syslog import Syslog, listen_to_syslog

BAR = 5.0  # ms
FILES = {
    "lmod": ("SitePackage.lua", 'require("Hook").register("load", dofile("{hook}"))\n'),
    "tcl": ("siteconfig.tcl", "source {hook}\n"),
}


# a syslog that takes what comes, as rsyslogd does: the queue of a socket holds ten messages
class Taking(threading.Thread):
    """Takes what is said to SYSLOG until it is stopped."""

    def __init__(self, syslog: Syslog) -> None:
        super().__init__(daemon=True)
        self.syslog, self.lines, self.over = syslog, 0, False

    def run(self) -> None:
        while not self.over:
            self.lines += len(self.syslog.take(0.2))


# ROUNDS loads in one namespace, since to enter it takes longer than a load; prints seconds a line
LOADS = """
import os, subprocess, sys, time
rounds, *command = sys.argv[1:]
for number in range(int(rounds)):
    for kind in ("without", "with"):
        env = dict(os.environ)
        if kind == "without":
            env.pop("LMOD_PACKAGE_PATH", None); env.pop("MODULES_SITECONFIG", None)
        began = time.perf_counter()
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        print(kind, time.perf_counter() - began)
"""


def measure(kind: str, top: Path, syslog: Syslog, rounds: int) -> dict[str, float]:
    """{with, without, lines}: medians in ms of a load by KIND, and how often syslog was told."""
    which = "lmod" if kind == "lmod" else "emodules"
    place = Place(top / kind)
    place.publish()
    hook = top / f"hook.{kind}"
    hook.write_text(render_usage_hook(place.site, kind))
    folder = top / f"etc-{kind}"
    folder.mkdir()
    name, text = FILES[kind]
    (folder / name).write_text(text.format(hook=hook))
    env = clean(
        place,
        which,
        LMOD_PACKAGE_PATH=str(folder),
        MODULES_SITECONFIG=str(folder / "siteconfig.tcl"),
    )
    command = [*system(which).split(), "bash", "load", "pytorch/24.11"]
    taking = Taking(syslog)
    taking.start()
    done = syslog.run(sys.executable, "-c", LOADS, str(rounds), *command, env=env)
    if done.returncode:
        sys.exit(done.stderr[-500:])
    times: dict[str, list[float]] = {"with": [], "without": []}
    for line in done.stdout.splitlines():
        case, _, seconds = line.partition(" ")
        times[case].append(float(seconds) * 1000)
    medians = {case: statistics.median(each) for case, each in times.items()}
    time.sleep(1)
    taking.over = True
    taking.join()
    return {**medians, "lines": taking.lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    known = {"lmod": LMOD.exists(), "tcl": ENVIRONMENT_MODULES.exists()}
    rows = {}
    with tempfile.TemporaryDirectory(prefix="hpcstack-hook-") as name:
        top = Path(name)
        for kind in (kind for kind, there in known.items() if there):
            (top / f"log-{kind}").mkdir()
            with listen_to_syslog(top / f"log-{kind}") as syslog:
                rows[kind] = measure(kind, top, syslog, asked.rounds)

    if asked.json:
        print(json.dumps(rows, indent=1))
    for kind, row in rows.items():
        more = row["with"] - row["without"]
        verdict = "within" if more <= BAR else "ABOVE"
        if not asked.json:
            print(
                f"{kind}: {row['without']:.1f} ms without, {row['with']:.1f} ms with the hook: "
                f"{more:+.1f} ms, {verdict} {BAR:.0f}; {row['lines']:.0f} lines of {asked.rounds} loads"
            )
    # a hook that says nothing costs nothing, and is no hook
    silent = any(row["lines"] != asked.rounds for row in rows.values())
    return int(silent or any(row["with"] - row["without"] > BAR for row in rows.values()))


if __name__ == "__main__":
    began = time.monotonic()
    status = main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    sys.exit(status)
