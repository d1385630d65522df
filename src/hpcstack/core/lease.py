"""Leases: one builder for each key, on one host or on several.

A lease is a file made by link(2). One whose holder is dead is taken over:

- A holder under this kernel and in this PID namespace is looked up by its process id and the time
  at which it started.
- Any other one is known by its heartbeat. It renews the file's time every few seconds; if a waiter
  has watched for PATIENCE_S seconds without seeing it renewed, it is dead. So is who names a process
  that is not theirs.

Where a site names its publishers, none of them waits for anybody else: such a lease is broken at
once. Otherwise nobody waits longer than MOST_WAIT_S, and is then told whose lease it is.

Whether a lease is free never depends on comparing the clocks of two hosts, and flock(2) is not
used. (Only leftovers are judged by a clock, with a week to spare: `may_have_living_owner`.)
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

from hpcstack.core import descriptors
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import read_text
from hpcstack.core.namespaces import ROOT_BECOMES, is_machines_root
from hpcstack.core.sharing import ALONE, Sharing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcstack.core.progress import Say

FIRST_POLL_S = 0.02  # between two looks of a waiter, at first
POLL_S = 0.5  # later
LAST_POLL_S = 5.0  # at most, after a long wait
BEAT_S = 5.0  # between two heartbeats of a holder
PATIENCE_S = 60.0  # without a heartbeat, watched all that time: the holder is dead
MOST_WAIT_S = 12 * 3600.0  # longer than any build
# A waiter that has not looked for so long was stopped itself, or its file server was. It knows
# nothing of the heartbeats in between, and begins to watch anew.
GAP_S = 2 * LAST_POLL_S
# An owner that cannot be inspected from here counts as dead after so long without a touch.
ABANDONED_S = 7 * 86400.0
HIDDEN = "hidden"  # in place of a start time that /proc does not show us


@dataclass(frozen=True)
class Holder:
    """The holder of a lease, written into it as HOST+BOOT+NAMESPACE+PID+START+JOB.

    BOOT is the beginning of the kernel's boot id, NAMESPACE the number of the PID namespace, START
    the process's start time in clock ticks, JOB the Slurm job it runs in.
    """

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
        """A description to be shown: process, host, and job where there is one."""
        text = f"process {self.pid} on {self.host}"
        if self.job:
            text += f", job {self.job}"
        return text


HOLDER = re.compile(
    r"([A-Za-z0-9.-]{0,255})\+([0-9a-f]{1,8})\+([0-9]{1,20})\+([0-9]{1,10})\+([0-9]{0,20}|hidden)\+([A-Za-z0-9_.-]{0,64})"
)


def read_holder(text: str) -> Holder | None:
    """Return the Holder that was written as TEXT; None where TEXT is none."""
    match = HOLDER.fullmatch(text.strip())
    if not match:
        return None
    return Holder(*match.groups())


def identify_process() -> Holder:
    """Return this process as a Holder."""
    pid = str(os.getpid())
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
    job = re.sub(r"[^A-Za-z0-9_.-]", "", os.environ.get("SLURM_JOB_ID", ""))
    return Holder(host, _boot_id(), _pid_namespace(), pid, _start_time(pid), job)


def is_alive(holder: Holder) -> bool | None:
    """Return whether HOLDER lives; None where it cannot be seen from here.

    That is so on another machine, and in another PID namespace.
    """
    mine = identify_process()
    if (holder.boot, holder.namespace) != (mine.boot, mine.namespace):
        return None
    started = _start_time(holder.pid)
    return started in (holder.start, HIDDEN)  # HIDDEN: a process has this id, and may be the holder


def may_have_living_owner(path: Path, prefix: str = "") -> bool:
    """Return whether PATH, whose name is PREFIX and then a label, may have a living owner.

    An owner that cannot be inspected from here counts as alive for a week after its last touch.
    A name without a label counts as that of a living owner.
    """
    label = path.name.removeprefix(prefix).split("+")[:5]
    holder = read_holder("+".join([*label, ""]))  # a label is a holder without its job
    if holder is None:
        return True

    lives = is_alive(holder)
    if lives is None:
        return time.time() - path.lstat().st_ctime < ABANDONED_S
    return lives


def make_label() -> str:
    """Return the label of this process: how the names begin that `may_have_living_owner` reads."""
    return str(identify_process()).rpartition("+")[0] + "+"


def _is_theirs(holder: Holder, owner: int) -> bool:
    """Return whether the process of HOLDER belongs to the user OWNER, as far as /proc shows it.

    A file server may give root's files to another user. So what does not belong together is no
    proof of a lie, and its heartbeat decides.
    """
    with contextlib.suppress(OSError):
        return Path(f"/proc/{holder.pid}").stat().st_uid == owner
    return True


class Watch:
    """Watches another process's lease, to know when its holder is dead, or need not be waited for."""

    def __init__(self, path: Path, sharing: Sharing = ALONE) -> None:
        self.path = path
        self.sharing = sharing
        self.seen = (0, 0)  # inode and time of the lease when it was last found changed
        self.since = time.monotonic()  # when that was
        self.looked = self.since

    def dead(self, text: str) -> bool:
        """Look once, and return whether the holder that wrote TEXT into the lease is dead.

        To be called again and again during a wait: heartbeats are noticed between two calls. For a
        publisher, somebody who is none counts as dead.
        """
        try:
            found = descriptors.stat_path(self.path)
        except FileNotFoundError:
            return False
        if self.sharing.may_publish and not self.sharing.is_publisher(found.st_uid):
            return True

        holder = read_holder(text)
        lives = is_alive(holder) if holder else None
        if lives is False:
            return True
        if lives and holder and _is_theirs(holder, found.st_uid):
            return False

        mark = (found.st_ino, found.st_mtime_ns)
        now = time.monotonic()
        if mark != self.seen or now - self.looked > GAP_S:
            self.seen = mark
            self.since = now
        self.looked = now
        return now - self.since > PATIENCE_S


def _never() -> bool:
    return False


@contextlib.contextmanager
def hold_lease(
    path: Path,
    waiting: Say | None = None,
    done: Callable[[], bool] = _never,
    sharing: Sharing = ALONE,
) -> Iterator[bool]:
    """Hold the lease PATH for the time of the block, once nobody else has it; yield True.

    WAITING is called once with a description of the holder that is waited for. DONE returns True
    when what is waited for is there, so that no lease is needed any more: then yield False,
    without one. DONE is asked often at first, then twice a second, and after ten seconds less and
    less: it is noticed late by half a second at first, later by a twentieth of the wait, and never
    by more than LAST_POLL_S. The folder of PATH is made the group's of SHARING.

    Raise OSError where no lease can be made there, StoreError where something else is at PATH, or
    somebody has held it for MOST_WAIT_S.
    """
    descriptors.make_folder(path.parent)
    sharing.make_folder(path.parent)
    mine = path.with_name(f".{path.name}.{make_label()}{uuid.uuid4().hex[:8]}")
    text = str(identify_process())
    with descriptors.create_file(mine, 0o644) as file:
        file.write(text.encode())
    try:
        if not _acquire(mine, path, waiting, done, Watch(path, sharing)):
            yield False
            return
        with contextlib.suppress(OSError):
            descriptors.touch_path(path)  # it was written before the wait
        # Only the holder removes leftovers: if each of a thousand waiters did, each would look at
        # the files of all the others.
        with contextlib.suppress(OSError):
            remove_leftovers(path.parent, f".{path.name}.", descriptors.remove_file)

        ended = threading.Event()
        beat = threading.Thread(target=_keep_beating, args=(path, text, ended), daemon=True)
        beat.start()
        try:
            yield True
        finally:
            ended.set()
            beat.join()
            if _read_lease(path) == text:  # else it was taken over while this process was stopped
                descriptors.remove_file(path)
    finally:
        descriptors.remove_file(mine)


def _acquire(
    mine: Path, path: Path, waiting: Say | None, done: Callable[[], bool], watch: Watch
) -> bool:
    """Make PATH another name of MINE once no living holder has it; False once DONE is true."""
    is_told = False
    pause = FIRST_POLL_S
    began = time.monotonic()
    while not _link_lease(mine, path):
        if done():
            return False
        owner = _read_lease(path)
        if owner is None:  # it was given back between the two calls: try again
            continue
        if watch.dead(owner):
            _break_lease(path, owner)
            continue
        if waiting and not is_told:
            holder = read_holder(owner)
            waiting(holder.told if holder else f"the holder of {path}")
            is_told = True
        if time.monotonic() - began > MOST_WAIT_S:
            raise _make_error(path)

        time.sleep(pause)
        late = 0.0  # how late DONE may be noticed; without DONE the lease itself is waited for
        if done is not _never:
            late = (time.monotonic() - began) / 20
        pause = max(min(pause * 1.5, POLL_S), min(late, LAST_POLL_S))
    return True


def _make_error(path: Path) -> StoreError:
    """Return the refusal of who has waited too long for the lease PATH."""
    owner = "somebody"
    with contextlib.suppress(OSError):
        owner = descriptors.find_user_name(descriptors.stat_path(path).st_uid)
    return StoreError(
        f"{owner} has held {path} for more than {MOST_WAIT_S / 3600:.0f} hours",
        f"ask {owner} what runs there; {owner} or root may break it, and the change that it was held "
        f"for is then refused: rm {path}",
        page="group-of-administrators",
    )


def still_holds_lease(path: Path) -> bool:
    """Return whether this process still holds the lease PATH.

    It may have lost it, if it was stopped for long.
    """
    return _read_lease(path) == str(identify_process())


def _keep_beating(path: Path, text: str, ended: threading.Event) -> None:
    """Renew the time of the lease PATH, as long as TEXT is in it, until ENDED is set."""
    while not ended.wait(BEAT_S):
        with contextlib.suppress(OSError):
            if _read_lease(path) == text:
                descriptors.touch_path(path)


def _link_lease(mine: Path, path: Path) -> bool:
    """Make PATH another name of MINE. Return whether it is one now.

    A file server may answer that PATH exists though it has made the link itself. The number of
    links tells.
    """
    with contextlib.suppress(FileExistsError):
        descriptors.hard_link(mine, path)
        return True
    return descriptors.stat_path(mine).st_nlink == 2


def _break_lease(path: Path, owner: str) -> None:
    """Remove the lease of a dead OWNER.

    It is renamed first, so that of two waiters who try, only one removes it.
    """
    grave = path.with_name(f".{path.name}.{make_label()}{uuid.uuid4().hex[:8]}")
    with contextlib.suppress(FileNotFoundError):
        if _read_lease(path) == owner:
            descriptors.rename_path(path, grave)
            if _read_lease(grave) != owner:  # a new owner came between the two looks: give it back
                _link_lease(grave, path)
            descriptors.remove_file(grave)


def _read_lease(path: Path) -> str | None:
    """Return what is in the lease PATH; None where there is none.

    Raise StoreError where something else lies there.
    """
    try:
        return read_text(path, 4096)
    except FileNotFoundError:
        return None
    except InputError as error:
        raise StoreError(
            f"no lease can be had: {error.message}", f"look at what lies there, then: rm {path}"
        ) from None


def _boot_id() -> str:
    """Return the beginning of the kernel's boot id, which each boot of a machine makes anew."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    return "0"


def _pid_namespace() -> str:
    """Return the number of our PID namespace."""
    with contextlib.suppress(OSError):
        return re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink())) or "0"
    return "0"


def _start_time(pid: str) -> str:
    """Return when process PID started, in the kernel's clock ticks.

    Empty if it has ended, also if its parent has not waited for it yet (a zombie); HIDDEN for a
    process that lives and that /proc does not show us.
    """
    with contextlib.suppress(OSError, IndexError):
        # proc_pid_stat(5): the second field, in parentheses, may hold blanks and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # state and starttime, fields 3 and 22
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return HIDDEN  # another user's process, which /proc does not show us (hidepid)
    except (ProcessLookupError, ValueError, OverflowError):
        return ""
    return HIDDEN


def remove_leftovers(parent: Path, prefix: str, remove: Callable[[Path], None]) -> None:
    """Call REMOVE for each entry of PARENT named PREFIX and a label whose owner is dead.

    Entries of other users are left.
    """
    for name in descriptors.list_names_in(parent):
        old = parent / name
        with contextlib.suppress(FileNotFoundError):
            if not name.startswith(prefix) or may_have_living_owner(old, prefix):
                continue
            if old.lstat().st_uid in _own_ids():
                remove(old)


def _own_ids() -> tuple[int, ...]:
    """Return the user ids whose leftovers we may remove: ours, and that of root's own builds."""
    if is_machines_root():
        return (os.getuid(), ROOT_BECOMES)
    return (os.getuid(),)
