"""One builder per key, on one host or several: a lease made by link(), whose dead holder is
detected.

A holder on this kernel and in this PID namespace is looked up: by process and by when it started.
Any other one is known by its heartbeat: it renews the lease's time every few seconds, and one that
has not done so while somebody watched for PATIENCE seconds, look by look, is dead. Nobody's clock
is compared with another's, and no flock is used.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, sharing
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_text
from hpcstack.core.namespaces import ROOT_BECOMES, is_machines_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST_POLL_S, POLL_S, LAST_POLL_S, BEAT_S, PATIENCE_S = 0.02, 0.5, 5.0, 5.0, 60.0
GAP_S = (
    2 * LAST_POLL_S
)  # who has not looked for so long was stopped, or the file server was: nothing is known of then
ABANDONED_S = (
    7 * 86400.0
)  # what an owner who is not seen from here has not touched for so long is nobody's
HIDDEN = "hidden"


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, as it is written into it: HOST+BOOT+NAMESPACE+PID+START+JOB."""

    host: str
    boot: str
    namespace: str
    pid: str
    start: str
    job: str = ""

    def __str__(self) -> str:
        return "+".join((self.host, self.boot, self.namespace, self.pid, self.start, self.job))

    @property
    def told(self) -> str:
        """For people."""
        return f"process {self.pid} on {self.host}" + (f", job {self.job}" if self.job else "")


HOLDER = re.compile(
    r"([A-Za-z0-9.-]{0,255})\+([0-9a-f]{1,8})\+([0-9]{1,20})\+([0-9]{1,10})\+([0-9]{0,20}|hidden)\+([A-Za-z0-9_.-]{0,64})"
)


def read_holder(text: str) -> Holder | None:
    """What `str(Holder)` wrote; None for anything else."""
    match = HOLDER.fullmatch(text.strip())
    return Holder(*match.groups()) if match else None


def identify_process() -> Holder:
    """This process."""
    pid = str(os.getpid())
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
    job = re.sub(r"[^A-Za-z0-9_.-]", "", os.environ.get("SLURM_JOB_ID", ""))
    return Holder(host, _boot(), _namespace(), pid, _born(pid), job)


def is_alive(holder: Holder) -> bool | None:
    """Whether HOLDER lives; None where this process cannot see it: another machine, another PID
    namespace.
    """
    mine = identify_process()
    if (holder.boot, holder.namespace) != (mine.boot, mine.namespace):
        return None
    return _born(holder.pid) in (holder.start, HIDDEN)


def may_have_living_owner(path: Path, prefix: str = "") -> bool:
    """Whether PATH, called PREFIX and then as `str(me())` begins, may have a living owner.

    Who is not seen from here may live for as long as a week has not passed since it was touched.
    """
    holder = read_holder("+".join([*path.name.removeprefix(prefix).split("+")[:5], ""]))
    if holder is None:
        return True
    lives = is_alive(holder)
    return time.time() - path.lstat().st_ctime < ABANDONED_S if lives is None else lives


def make_label() -> str:
    """The beginning of a name that `may_have_living_owner` understands: this process, without its
    job.
    """
    return str(identify_process()).rpartition("+")[0] + "+"


class Watch:
    """Somebody else's lease, watched: `dead` says when its holder is known to be."""

    def __init__(self, path: Path) -> None:
        self.path, self.seen = path, (0, 0)
        self.since = self.looked = time.monotonic()

    def dead(self, text: str) -> bool:
        holder = read_holder(text)
        lives = is_alive(holder) if holder else None
        if lives is not None:
            return not lives
        try:
            found = descriptors.stat_path(self.path)
        except FileNotFoundError:
            return False
        mark, now = (found.st_ino, found.st_mtime_ns), time.monotonic()
        if mark != self.seen or now - self.looked > GAP_S:
            self.seen, self.since = mark, now
        self.looked = now
        return now - self.since > PATIENCE_S


def _never() -> bool:
    return False


@contextlib.contextmanager
def hold_lease(
    path: Path, waiting: Callable[[str], None] | None = None, done: Callable[[], bool] = _never
) -> Iterator[bool]:
    """The lease PATH, once nobody else has it; WAITING is told for whom we wait. OSError where it
    cannot be had.

    False, and no lease, once DONE is true: what was waited for is there. It is asked often at
    first, then twice a second, and after ten seconds less and less: who waits comes at most a
    twentieth late.
    """
    descriptors.make_folder(path.parent)
    sharing.make_shared_folder(path.parent)
    mine = path.with_name(f".{path.name}.{make_label()}{uuid.uuid4().hex[:8]}")
    text = str(identify_process())
    with descriptors.create_file(mine, 0o644) as file:
        file.write(text.encode())
    try:
        if not _acquire(mine, path, waiting, done):
            yield False
            return
        with contextlib.suppress(OSError):
            descriptors.touch_path(path)  # it was written before we waited
        # by the one who has it: each of a thousand who wait would look at the files of all others
        with contextlib.suppress(OSError):
            remove_leftovers(path.parent, f".{path.name}.", descriptors.remove_file)
        ended = threading.Event()
        beat = threading.Thread(target=_beat, args=(path, text, ended), daemon=True)
        beat.start()
        try:
            yield True
        finally:
            ended.set()
            beat.join()
            if _read(path) == text:
                descriptors.remove_file(path)
    finally:
        descriptors.remove_file(mine)


def _acquire(
    mine: Path, path: Path, waiting: Callable[[str], None] | None, done: Callable[[], bool]
) -> bool:
    watch, told, pause, began = Watch(path), False, FIRST_POLL_S, time.monotonic()
    while not _link(mine, path):
        if done():
            return False
        owner = _read(path)
        if owner is None:
            continue
        if watch.dead(owner):
            _break(path, owner)
            continue
        if waiting and not told:
            holder = read_holder(owner)
            waiting(holder.told if holder else f"the holder of {path}")
            told = True
        time.sleep(pause)
        late = (time.monotonic() - began) / 20 if done is not _never else 0.0
        pause = max(min(pause * 1.5, POLL_S), min(late, LAST_POLL_S))
    return True


def still_holds_lease(path: Path) -> bool:
    """Whether this process still has the lease PATH: who was stopped for long may have lost it."""
    return _read(path) == str(identify_process())


def _beat(path: Path, text: str, ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        with contextlib.suppress(OSError):
            if _read(path) == text:
                descriptors.touch_path(path)


def _link(mine: Path, path: Path) -> bool:
    """Whether PATH is now MINE.

    A file server may say `exists` of a link that it made: the count of links tells.
    """
    with contextlib.suppress(FileExistsError):
        descriptors.hard_link(mine, path)
        return True
    return descriptors.stat_path(mine).st_nlink == 2


def _break(path: Path, owner: str) -> None:
    """Remove the lease of a dead OWNER; by rename, so that of two who try only one removes it."""
    grave = path.with_name(f".{path.name}.{make_label()}{uuid.uuid4().hex[:8]}")
    with contextlib.suppress(FileNotFoundError):
        if _read(path) == owner:
            descriptors.rename_path(path, grave)
            if _read(grave) != owner:  # a new owner came between the two looks: give it back
                _link(grave, path)
            descriptors.remove_file(grave)


def _read(path: Path) -> str | None:
    """What the lease PATH says; None where there is none.

    StoreError where something else lies there.
    """
    try:
        return read_text(path, 4096)
    except FileNotFoundError:
        return None
    except InputError as error:
        raise StoreError(
            f"no lease can be had: {error.message}", f"look who put it there, and: rm {path}"
        ) from None


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    return "0"


def _namespace() -> str:
    """The number of our PID namespace."""
    with contextlib.suppress(OSError):
        return re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink())) or "0"
    return "0"


def _born(pid: str) -> str:
    """When process PID started, in the kernel's ticks; empty if it has ended, also if nobody has
    waited for it yet.
    """
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return HIDDEN  # a process of somebody else, which /proc does not show us (hidepid)
    except (ProcessLookupError, ValueError, OverflowError):
        return ""
    return HIDDEN


def remove_leftovers(parent: Path, prefix: str, remove: Callable[[Path], None]) -> None:
    """Remove below PARENT what is called PREFIX and a label of ours whose owner is dead."""
    for name in descriptors.names_in(parent):
        old = parent / name
        with contextlib.suppress(FileNotFoundError):
            if (
                name.startswith(prefix)
                and not may_have_living_owner(old, prefix)
                and old.lstat().st_uid in _own_ids()
            ):
                remove(old)


def _own_ids() -> tuple[int, ...]:
    """Whose leftovers are ours to remove: our own, and root's what its builds have made."""
    return (os.getuid(), ROOT_BECOMES) if is_machines_root() else (os.getuid(),)
