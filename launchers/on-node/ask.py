"""Asks this node's image service, in ten milliseconds: SOCKET IMAGE HPCSTACK. Where it wants a
login, HPCSTACK answers.

Exit code 8: the image, or this node, has no share in the cache; or the service could not do it.
"""

import json
import os
import re
import socket
import sys

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
nodes = os.environ.get("SLURM_STEP_NUM_NODES") or os.environ.get("SLURM_JOB_NUM_NODES") or "1"
names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
step = "+".join(re.sub(r"[^A-Za-z0-9._-]", "-", os.environ.get(name, "")) for name in names)
wanted = {
    "image": sys.argv[2],
    "platform": "linux/" + MACHINES.get(os.uname().machine, "amd64"),
    "step": step if os.environ.get("SLURM_JOB_ID") and nodes != "1" else "",
}
try:
    service = socket.socket(socket.AF_UNIX)
    service.settimeout(60)
    service.connect(sys.argv[1])
    service.sendall(json.dumps(wanted).encode() + b"\n")
    for line in service.makefile("rb"):
        said = json.loads(line)
        service.settimeout(None)  # it has heard us; an import takes long
        if "path" in said:
            print(said["path"])
            sys.exit(0)
        if "challenge" in said:
            import subprocess

            answer = subprocess.run(
                [sys.argv[3], "cache", "answer", "--", sys.argv[2]],
                input=line,
                stdout=subprocess.PIPE,
                check=False,
            )
            service.sendall(answer.stdout if answer.stdout.endswith(b"\n") else b"{}\n")
        if "says" in said:
            print("hpcstack:", said["says"], file=sys.stderr, flush=True)
        if "error" in said:
            print("hpcstack:", said["error"], "\n  TIP:", said.get("hint", ""), file=sys.stderr)
            sys.exit(
                1 if said.get("kind") == "registry" else 8
            )  # what the registry refuses, it refuses everywhere
    print("hpcstack: the image service of this node has ended", file=sys.stderr)
except (OSError, ValueError) as error:
    print("hpcstack: the image service of this node does not answer:", error, file=sys.stderr)
sys.exit(8)
