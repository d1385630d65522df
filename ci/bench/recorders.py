"""How long `hang --flights` takes, from reading to the root, for the files of 8,192 ranks.

    ci/bench/flights [RANKS] [--peer TORCHFRTRACE]

Each rank has 2,000 operations with 13 frames each, in the form of torch's flight recorder: 0.8 MB.
Rank 100 has not come to the last collective. Files are links to two: what is read is in memory.
TORCHFRTRACE is torch's own program (in a Python that has torch); it reads the files of PEER_RANKS,
and so does hpcstack in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hpcstack.launch.flights import read_flights
from hpcstack.launch.wait_graph import diagnose_hang

OPERATIONS, FRAMES, LATE = 2000, 12, 100
PEER_RANKS = 128  # torchfrtrace takes a second and more for each ten


def make_dump(ranks: int, last: int) -> bytes:
    """The file of a rank of RANKS whose last operation has the number LAST, and is not over."""
    library = [
        {"name": f"f{n}", "filename": f"/usr/lib/python3/dist-packages/torch/x{n}.py", "line": n}
        for n in range(FRAMES)
    ]
    own = {"name": "main", "filename": "/home/user/train.py", "line": 7}
    rows: list[dict[str, Any]] = []
    for number in range(1, last + 1):
        rows.append(
            {
                "record_id": number,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number,
                "p2p_seq_id": 0,
                "op_id": number,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": number,
                "input_sizes": [[4]],
                "input_dtypes": ["Float"],
                "output_sizes": [[4]],
                "output_dtypes": ["Float"],
                "state": "scheduled",
                "retired": number < OPERATIONS,
                "is_p2p": False,
                "timeout_ms": 600000,
                "frames": [dict(one) for one in [*library, own]],
            }
        )
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": json.dumps(list(range(ranks)))}}
    document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": rows}
    return pickle.dumps(document, protocol=2)


def make_folder(folder: Path, ranks: int) -> int:
    """Write the files of RANKS into FOLDER; their bytes."""
    folder.mkdir()
    usual, late = folder / "usual", folder / "late"
    usual.write_bytes(make_dump(ranks, OPERATIONS))
    late.write_bytes(make_dump(ranks, OPERATIONS - 1))
    for rank in range(ranks):
        os.link(late if rank == LATE else usual, folder / f"flight-{rank}")
    size = usual.stat().st_size
    usual.unlink()
    late.unlink()
    return size * ranks


def time_ours(folder: Path) -> tuple[float, float, tuple[int, ...]]:
    """(seconds of reading, seconds of finding the root, the root)."""
    began = time.monotonic()
    flights = read_flights(folder, "flight-")
    read = time.monotonic()
    diagnosis = diagnose_hang(flights)
    return read - began, time.monotonic() - read, diagnosis.roots[0].ranks


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/bench/flights")
    parser.add_argument("ranks", nargs="?", type=int, default=8192)
    parser.add_argument("--peer", default="", help="torchfrtrace, of a Python that has torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top, "all")
        size = make_folder(folder, options.ranks)
        read, found, root = time_ours(folder)
        told = f"{options.ranks} files, {size / 1e9:.1f} GB: read in {read:.1f} s, root {root} in {found:.1f} s"
        print(f"hpcstack: {told} on {os.cpu_count()} CPUs")
        if not options.peer:
            return 0
        few = Path(top, "few")
        make_folder(few, PEER_RANKS)
        read, found, root = time_ours(few)
        began = time.monotonic()
        done = subprocess.run(
            [options.peer, str(few), "-p", "flight-"], capture_output=True, text=True, check=False
        )
        peer = time.monotonic() - began
        named = f"missing ranks: {{{LATE}}}" in done.stdout + done.stderr
        print(
            f"{PEER_RANKS} files: hpcstack {read + found:.1f} s, torchfrtrace {peer:.1f} s "
            f"({'names' if named else 'does not name'} rank {LATE}): ratio "
            f"{(read + found) / peer:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
