"""How long `hpcstack explain` takes for a log of 300 MB, and how much memory, beside grep.

    ci/bench/explain [MEGABYTES]

The log is made up: lines of 64 ranks with times and losses, names of shards with random numbers,
warnings, progress bars, and an error at the end. The peer is GNU grep, which looks for the literals of
the same known messages (`grep -i -c -F -f`) and reads nothing else of the log.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcstack.diagnose.signatures import read_signatures

END = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/d/train.py", line 88, in step
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
hpcstack: rank 3 on gpu07 ended with 1 [0 5.0]
srun: error: gpu07: task 3: Exited with exit code 1
"""
SAYS = "rank 3 on gpu07 failed first: torch.OutOfMemoryError"


def make_lines() -> Iterator[str]:
    """The lines of a log of training, without an end."""
    numbers = random.Random(1)
    step = 0
    while True:
        step += 1
        kind = numbers.random()
        if kind < 0.9:
            loss = numbers.random() * 9
            yield (
                f"[rank{step % 64}]: 2026-11-28 10:{step % 60:02}:{step % 59:02},123 INFO train.py:88 "
                f"step {step} loss {loss:.5f} lr 0.00012 tokens/s {numbers.randrange(10**6)}\n"
            )
        elif kind < 0.95:
            yield f"INFO: loaded shard {numbers.getrandbits(64):x} in {numbers.random():.2f} s\n"
        elif kind < 0.98:
            yield f"/usr/lib/python3/x.py:{step % 900}: UserWarning: not found in the cache, trying again\n"
        else:
            yield f" {step % 100}%|####      | {step}/10000 [00:10<01:30, 10.0it/s]\r" * 5 + "\n"


def write_log(path: Path, size: int) -> None:
    """Write a log of SIZE bytes to PATH."""
    with path.open("w") as file:
        for line in make_lines():
            file.write(line)
            if file.tell() > size:
                break
        file.write(END)


def measure(argv: Sequence[str]) -> tuple[float, int, str]:
    """(Seconds, the most memory in bytes, output) of ARGV."""
    began = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        sys.exit(f"{argv[0]} ended with {status}")
    return time.perf_counter() - began, used.ru_maxrss << 10, said


def main() -> None:
    """Print one line for each, and their ratio."""
    parser = argparse.ArgumentParser(prog="ci/bench/explain")
    parser.add_argument("megabytes", type=int, nargs="?", default=300)
    size = parser.parse_args().megabytes * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        log, words = Path(name, "job.out"), Path(name, "words")
        write_log(log, size)
        literals = {literal for one in read_signatures() for literal in one.literals}
        words.write_text("\n".join(sorted(literals)) + "\n")

        explain = [sys.executable, "-m", "hpcstack", "explain", str(log)]
        seconds, memory, said = measure(explain)
        if SAYS not in said:
            sys.exit(f"explain says: {said}")
        peer, peer_memory, _ = measure(["grep", "-icFf", str(words), str(log)])
        print(f"log      {log.stat().st_size / 1e6:.0f} MB, {len(literals)} literals")
        print(f"explain  {seconds:.1f} s  {memory / 1e6:.0f} MB")
        print(f"grep     {peer:.1f} s  {peer_memory / 1e6:.0f} MB")
        print(f"ratio    {seconds / peer:.2f}")


main()
