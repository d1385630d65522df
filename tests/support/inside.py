"""Programs that type Slurm's commands in a container, for the tests of `launch --slurm`."""

from __future__ import annotations

# What a caller's step ends with, how signals reach a step, and what passes through its streams
PROGRAM = r'''
import hashlib, json, os, signal, subprocess, sys, time

def typed(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, **options)

def signalled(script, *numbers):
    """How a step ends whose srun gets signals once the step has begun."""
    step = subprocess.Popen(["srun", "-n1", "sh", "-c", f"echo begun; {script}"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL)
    assert step.stdout.readline() == b"begun\n"
    for number in numbers:
        step.send_signal(number)
        time.sleep(0.3)
    return step.wait(timeout=60)

out = {}
job = os.environ["SLURM_JOB_ID"]
out["queued"] = typed("squeue", "--noheader", "--jobs", job, "--format=%i").stdout.split() == [job]
out["shown"] = f"JobId={job} " in typed("scontrol", "show", "job", job).stdout
out["nodes"] = sorted(typed("sinfo", "--noheader", "--Node", "--format=%N").stdout.split())
probe = "import os, socket; print(socket.gethostname(), os.path.realpath('.'), os.path.exists('/opt/hpcstack/slurm/inside'), os.environ['SAID'])"
done = typed("srun", "-N2", "-n2", "--label", "python3", "-c", probe, env={**os.environ, "SAID": "it's $HOME \"said\""})
out["steps"] = sorted(line.split(": ", 1)[1] for line in done.stdout.splitlines())
out["complaint"] = done.stderr
out["status"] = typed("srun", "-n1", "sh", "-c", "exit 3").returncode
out["unknown"] = typed("srun", "-n1", "--no-such-option", "true").returncode
out["within"] = typed("srun", "-n1", "srun", "-n1", "sh", "-c", "echo deep").stdout
out["host"] = typed("srun", "-n1", "test", "-e", "/opt/hpcstack/slurm/inside",
                    env={**os.environ, "HPCSTACK_ON_HOST": "yes"}).returncode
out["usr1"] = signalled("trap 'exit 9' USR1; while :; do sleep 0.1; done", signal.SIGUSR1)
out["term"] = signalled("sleep 60", signal.SIGTERM)
out["int"] = signalled("sleep 60", signal.SIGINT, signal.SIGINT)
out["gone"] = typed("timeout", "--signal=KILL", "5", "srun", "-n1", "sleep", "300").returncode

with open("random", "wb") as file:
    for _ in range(100):
        file.write(os.urandom(1 << 20))
with open("random", "rb") as file:
    begun = time.monotonic()
    copy = subprocess.run(["srun", "-n1", "cat"], stdin=file, stdout=subprocess.PIPE, check=True).stdout
    out["seconds"] = round(time.monotonic() - begun, 1)
with open("random", "rb") as file:
    out["same"] = hashlib.sha256(copy).digest() == hashlib.sha256(file.read()).digest()
os.unlink("random")

many = [subprocess.Popen(["squeue", "--noheader", "--jobs", job, "--format=%i"], stdout=subprocess.PIPE) for _ in range(50)]
out["at once"] = sum(one.communicate()[0].decode().strip() == job for one in many)
out["pipe"] = subprocess.run("squeue --help | head -1 >/dev/null", shell=True).returncode
print(json.dumps(out))
'''
