"""Checks of the filesystem that holds the run's folder: bandwidth, metadata, small reads, locks,
stripes.
"""

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
FILES, READS, BLOCK = 200, 2000, 4096


@contextlib.contextmanager
def make_place(request: Any) -> Iterator[str]:
    """A folder of this node's own below the run's, on the filesystem that jobs see; gone
    afterwards.
    """
    folder = tempfile.mkdtemp(dir=request.output, prefix=".io-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def bandwidth(request: Any) -> Result:
    """Write, fsync, drop from the cache where the kernel lets us, read back: the checksum must be
    the same.
    """
    size = SIZE[request.tier]
    if shutil.disk_usage(request.output).free < 4 * size:
        raise Skip(f"less than {4 * size / 1e9:.1f} GB free below {request.output}")
    block = random.Random(7).randbytes(MIB)
    wrote, read = hashlib.sha256(), hashlib.sha256()
    with make_place(request) as folder:
        path, began = os.path.join(folder, "data"), time.perf_counter()
        with open(path, "wb", buffering=0) as file:
            for number in range(size // MIB):
                piece = number.to_bytes(8, "big") + block[8:]
                wrote.update(piece)
                file.write(piece)
            os.fsync(file.fileno())
            writing = time.perf_counter() - began
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(MIB):
                read.update(piece)
        reading = time.perf_counter() - began
    figures = {
        "write_GB_s": round(size / writing / 1e9, 3),
        "read_GB_s": round(size / reading / 1e9, 3),
    }
    measured = (
        f"write {figures['write_GB_s']} GB/s with fsync, read {figures['read_GB_s']} GB/s, with "
        f"sha256"
    )
    return judge_result(
        wrote.digest() == read.digest(),
        measured,
        "what was written is read",
        "sha256",
        f"{size / 1e6:.0f} MB, one file",
        "the filesystem gives back other bytes: take it out of service",
        figures=figures,
    )


def staging(request: Any) -> Result:
    """A file of the shared filesystem copied to this node's own disk, as images and data are
    staged: the same bytes.
    """
    size, own = SIZE[request.tier], tempfile.gettempdir()
    for folder in (request.output, own):
        if shutil.disk_usage(folder).free < 4 * size:
            raise Skip(f"less than {4 * size / 1e9:.1f} GB free below {folder}")
    block = random.Random(11).randbytes(MIB)
    with make_place(request) as shared, tempfile.TemporaryDirectory(prefix="hpcstack-io-") as local:
        source, target = os.path.join(shared, "data"), os.path.join(local, "data")
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
        same = digest_file(source) == digest_file(target)
        one_disk = os.stat(source).st_dev == os.stat(target).st_dev
    rate = round(size / took / 1e9, 3)
    measured = f"{rate} GB/s to {own}{', on the same disk' if one_disk else ''}"
    return judge_result(
        same,
        measured,
        "what was copied is the same",
        "sha256",
        f"{size / 1e6:.0f} MB, one file, with fsync",
        "one of the two disks gives back other bytes",
        figures={"stage_GB_s": rate},
        informational=one_disk,
    )


def digest_file(path: str) -> bytes:
    """sha256 of a file."""
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(MIB):
            found.update(piece)
    return found.digest()


def metadata(request: Any) -> Result:
    """Files made, looked at and removed a second, by one process."""
    with make_place(request) as folder:
        names = [os.path.join(folder, str(number)) for number in range(FILES)]
        rates = {}
        for verb, work in (("create", _touch), ("stat", os.stat), ("unlink", os.unlink)):
            began = time.perf_counter()
            for name in names:
                work(name)
            rates[f"{verb}_per_s"] = round(FILES / (time.perf_counter() - began))
    measured = ", ".join(f"{verb.partition('_')[0]} {rate:,}/s" for verb, rate in rates.items())
    return Result(
        PASS, measured, "no gate", figures={verb: float(rate) for verb, rate in rates.items()}
    )


def _touch(name: str) -> None:
    with open(name, "wb"):
        pass


def small(request: Any) -> Result:
    """Reads of 4 KiB at random places, as a data loader makes them."""
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


TAKE = (
    "import fcntl,sys\ntry: fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept "
    "OSError: sys.exit(9)"
)


def lock(request: Any) -> Result:
    """A second process is kept out by flock, and let in when it is given back: datasets and caches
    rely on it.
    """
    with make_place(request) as folder:
        path = os.path.join(folder, "lock")
        with open(path, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                return Result(
                    FAIL,
                    f"flock: {error.strerror}",
                    "flock works",
                    remedy="mount Lustre with -o flock",
                )
            kept_out = _second(path) == 9
            fcntl.flock(file, fcntl.LOCK_UN)
            let_in = _second(path) == 0
    said = {
        (True, True): "kept out, then let in",
        (False, True): "a second process got a held lock",
    }
    measured = said.get((kept_out, let_in), "a lock that was given back stays held")
    return judge_result(
        kept_out and let_in,
        measured,
        "kept out, then let in",
        "flock(2)",
        remedy="mount Lustre with -o flock",
    )


def _second(path: str) -> int:
    return subprocess.run([sys.executable, "-c", TAKE, path], check=False, timeout=30).returncode


def lustre(request: Any) -> Result:
    """How the run's folder is striped, where it is on Lustre and `lfs` is at hand."""
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
