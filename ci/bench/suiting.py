"""The suite's quick tier on two virtual nodes, against one bare `srun ... torchrun` of an empty
script there.

    ci/testbed up && ci/bench/suite [--rounds 3] [--json]

Both use the same image by Apptainer, two ranks a node, alternating, as the testbed's ordinary user.
Bar: the median of the suite is under 6 times the bare one. Then what the suite adds to its checks'
own work: its wall time, less the times that the checks report, less the bare launch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from testbed_user import on_testbed

STACK, BAR = "pytorch-24.11", 6.0
# The bare one is what a user would type: srun, one task a node, torchrun with static rendezvous, an
# empty script.
TIMED = """\
import json, subprocess, sys, time
image, rounds = sys.argv[1], int(sys.argv[2])
open("empty.py", "w").write("")
inner = ('exec torchrun --nnodes 2 --node-rank $SLURM_NODEID --nproc-per-node 2 --master-port 29999 --master-addr '
         '$(getent ahostsv4 node1 | { read -r first _ && echo $first; }) empty.py')
lines = {
    "bare": ["srun", "-N", "2", "--ntasks-per-node=1", "apptainer", "--quiet", "exec", "--bind", "/etc/hosts", image,
             "sh", "-c", inner],
    "suite": ["hpcstack", "test", sys.argv[3], "-N", "2", "--runtime", "apptainer", "--json"],
}
out = {"bare": [], "suite": [], "checks": []}
for number in range(rounds + 1):
    for name, argv in lines.items():
        began = time.perf_counter()
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        took = time.perf_counter() - began
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-2000:]}")
        if number:
            out[name].append(took)
        if number and name == "suite":
            out["checks"].append(sum(one["seconds"] for one in json.loads(done.stdout)["outcomes"]))
print(json.dumps(out))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    image = json.loads(on_testbed("hpcstack", "build", STACK, "--json"))["image"]
    times = json.loads(
        on_testbed("python3", "-c", TIMED, image, str(options.rounds), STACK).splitlines()[-1]
    )
    bare, suite, checks = (statistics.median(times[name]) for name in ("bare", "suite", "checks"))
    rest = suite - checks - bare
    found = {
        "bare_s": bare,
        "suite_s": suite,
        "ratio": suite / bare,
        "bar": BAR,
        "checks_s": checks,
        "rest_s": rest,
    }
    if options.json:
        print(json.dumps({name: round(value, 2) for name, value in found.items()}, indent=1))
    else:
        print(
            "| bare srun torchrun, s | quick tier, s | ratio | bar | checks' own work, s | the "
            "rest, without bare, s |"
        )
        print("|---|---|---|---|---|---|")
        print(
            f"| {bare:.1f} | {suite:.1f} | {suite / bare:.2f} | < {BAR:g} | {checks:.1f} | "
            f"{rest:.1f} |"
        )
    sys.exit(0 if suite / bare < BAR else 1)


if __name__ == "__main__":
    main()
