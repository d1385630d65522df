"""Check the filesystem of the run's folder: bandwidth, metadata, small reads, locks, stripes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.result import FAIL, PASS, Result, Skip, judge_result

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
SIZE = {"quick": 16 * MIB, "standard": 128 * MIB, "full": 4096 * MIB}
# Files of `metadata`; reads of `small`, and their size
FILES, READS, BLOCK = 200, 2000, 4096


@contextlib.contextmanager
def make_place(request: Any) -> Iterator[str]:
    """Make a folder of this node's own inside the run's folder, and delete it afterwards.

    It lies on the filesystem that jobs see.
    """
    folder = tempfile.mkdtemp(dir=request.output, prefix=".io-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_io_bandwidth(request: Any) -> Result:
    """Write a file, fsync it and read it back: its checksum must be the same.

    Between the two the file is dropped from the page cache, where the kernel allows that.
    """
    size = SIZE[request.tier]
    if shutil.disk_usage(request.output).free < 4 * size:
        raise Skip(f"less than {4 * size / 1e9:.1f} GB free below {request.output}")

    block = random.Random(7).randbytes(MIB)
    wrote, read = hashlib.sha256(), hashlib.sha256()
    with make_place(request) as folder:
        path = os.path.join(folder, "data")
        began = time.perf_counter()
        with open(path, "wb", buffering=0) as file:
            for number in range(size // MIB):
                # A number in each block, so that no two are the same
                piece = number.to_bytes(8, "big") + block[8:]
                wrote.update(piece)
                file.write(piece)
            os.fsync(file.fileno())
            writing = time.perf_counter() - began
            # Else it would be read from memory, whatever the filesystem holds
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        began = time.perf_counter()
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(MIB):
                read.update(piece)
        reading = time.perf_counter() - began

    write_rate = round(size / writing / 1e9, 3)
    read_rate = round(size / reading / 1e9, 3)
    return judge_result(
        wrote.digest() == read.digest(),
        f"write {write_rate} GB/s with fsync, read {read_rate} GB/s, with sha256",
        "what was written is read",
        "sha256",
        f"{size / 1e6:.0f} MB, one file",
        "take the filesystem out of service: it returns other bytes than were written",
        figures={"write_GB_s": write_rate, "read_GB_s": read_rate},
    )


def check_io_staging(request: Any) -> Result:
    """Copy a file from the shared filesystem to this node's own disk: the bytes must be the same.

    Images and data are staged in this way. Where the two are one disk, the rate is informational.
    """
    size = SIZE[request.tier]
    own = tempfile.gettempdir()
    for folder in (request.output, own):
        if shutil.disk_usage(folder).free < 4 * size:
            raise Skip(f"less than {4 * size / 1e9:.1f} GB free below {folder}")

    block = random.Random(11).randbytes(MIB)
    with make_place(request) as shared, tempfile.TemporaryDirectory(prefix="hpcstack-io-") as local:
        source = os.path.join(shared, "data")
        target = os.path.join(local, "data")
        with open(source, "wb", buffering=0) as file:
            for number in range(size // MIB):
                file.write(number.to_bytes(8, "big") + block[8:])
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        began = time.perf_counter()
        shutil.copyfile(source, target)
        with open(target, "rb+") as file:
            os.fsync(file.fileno())
        took = time.perf_counter() - began
        same = read_and_digest(source) == read_and_digest(target)
        one_disk = os.stat(source).st_dev == os.stat(target).st_dev

    rate = round(size / took / 1e9, 3)
    measured = f"{rate} GB/s to {own}"
    if one_disk:
        measured += ", on the same disk"
    return judge_result(
        same,
        measured,
        "what was copied is the same",
        "sha256",
        f"{size / 1e6:.0f} MB, one file, with fsync",
        "find out which of the two disks returns other bytes than were written",
        figures={"stage_GB_s": rate},
        informational=one_disk,
    )


def read_and_digest(path: str) -> bytes:
    """Return the sha256 of the file PATH, as bytes."""
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(MIB):
            found.update(piece)
    return found.digest()


def check_io_metadata(request: Any) -> Result:
    """Measure how many files one process creates, stats and removes a second."""
    with make_place(request) as folder:
        names = [os.path.join(folder, str(number)) for number in range(FILES)]
        rates = {}
        for verb, work in (("create", _create_file), ("stat", os.stat), ("unlink", os.unlink)):
            began = time.perf_counter()
            for name in names:
                work(name)
            rates[verb] = round(FILES / (time.perf_counter() - began))

    measured = ", ".join(f"{verb} {rate:,}/s" for verb, rate in rates.items())
    figures = {f"{verb}_per_s": float(rate) for verb, rate in rates.items()}
    return Result(PASS, measured, "no gate", figures=figures)


def _create_file(name: str) -> None:
    with open(name, "wb"):
        pass


def check_io_small(request: Any) -> Result:
    """Measure reads of 4 KiB at random places of a file, as a data loader makes them."""
    with make_place(request) as folder:
        path = os.path.join(folder, "data")
        with open(path, "wb") as file:
            file.write(b"\0" * SIZE["quick"])
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        places = random.Random(7).choices(range(SIZE["quick"] // BLOCK), k=READS)
        with open(path, "rb", buffering=0) as file:
            began = time.perf_counter()
            for number in places:
                os.pread(file.fileno(), BLOCK, number * BLOCK)
            took = time.perf_counter() - began

    rate = READS / took
    return Result(
        PASS,
        f"{rate:,.0f} reads of 4 KiB a second",
        "no gate",
        evidence="page cache included",
        figures={"reads_per_s": round(rate)},
    )


# A program that tries to lock the file that it is given, and exits with 9 where the lock is held
TAKE = (
    "import fcntl,sys\ntry: fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept "
    "OSError: sys.exit(9)"
)


def check_io_lock(request: Any) -> Result:
    """Check that flock keeps a second process out, and lets it in once the lock is released.

    Datasets and caches rely on it.
    """
    remedy = "mount Lustre with -o flock"
    with make_place(request) as folder:
        path = os.path.join(folder, "lock")
        with open(path, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                return Result(FAIL, f"flock: {error.strerror}", "flock works", remedy=remedy)
            kept_out = _try_lock(path) == 9
            fcntl.flock(file, fcntl.LOCK_UN)
            let_in = _try_lock(path) == 0

    measured = "kept out, then let in"
    if not let_in:
        measured = "a released lock stays held"
    elif not kept_out:
        measured = "a second process got a lock that was held"
    return judge_result(
        kept_out and let_in, measured, "kept out, then let in", "flock(2)", remedy=remedy
    )


def _try_lock(path: str) -> int:
    """Return the exit status of a second process that tries to lock PATH: 0, or 9 if it is held."""
    return subprocess.run([sys.executable, "-c", TAKE, path], check=False, timeout=30).returncode


def check_io_lustre(request: Any) -> Result:
    """Report how the run's folder is striped, where it is on Lustre and the image has `lfs`."""
    if not shutil.which("lfs"):
        raise Skip("no lfs in this image")
    done = subprocess.run(
        ["lfs", "getstripe", "-d", request.output],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise Skip("the run's folder is not on Lustre")
    return Result(PASS, " ".join(done.stdout.split())[:200], "no gate", evidence="lfs getstripe -d")
