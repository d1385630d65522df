"""Look at a machine for the checks of a node: its files, its programs, the kernel's log.

All of it goes through HERE, so that a whole made-up machine can take its place (tests/clusters).

Tested in tests/unit/smoke/test_fabric.py.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import time

KMSG = "/dev/kmsg"


class Machine:
    """This machine; `root` is put before every path."""

    root = ""

    def path(self, name: str) -> str:
        return self.root + name

    def line(self, name: str) -> str:
        """Return the first line of the file NAME; empty where it cannot be read."""
        try:
            with open(self.path(name), errors="replace") as file:
                return file.readline().strip()
        except OSError:
            return ""

    def found(self, pattern: str) -> list[str]:
        """Return the names that match PATTERN, without `root`, sorted."""
        paths = glob.glob(glob.escape(self.root) + pattern)
        return sorted(path[len(self.root) :] for path in paths)

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def said(self, argv: list[str], seconds: float = 60.0) -> str:
        """Return what the program ARGV prints on both streams.

        Empty where it is missing, exits with another status than 0, or runs longer than SECONDS.
        """
        status, text = self.ran(argv, seconds)
        return text if status == 0 else ""

    def ran(self, argv: list[str], seconds: float) -> tuple[int, str]:
        """Run ARGV. Return (exit status, what it printed on both streams).

        The status is 127 where the program is missing, and 124 where it ran longer than SECONDS.
        """
        if not shutil.which(argv[0]):
            return 127, ""
        try:
            child = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        except OSError:
            return 127, ""
        try:
            text = child.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            # TERM before KILL: it may have another process at work, which it can then stop
            child.terminate()
            try:
                child.communicate(timeout=5.0)
            except subprocess.TimeoutExpired:
                child.kill()
            return 124, ""
        return child.returncode, text.decode(errors="replace")

    def opens(self, name: str) -> bool:
        """Return whether this process may open the device NAME.

        A cgroup forbids devices that the job was not given, even where their files can be seen.
        """
        try:
            os.close(os.open(self.path(name), os.O_RDWR))
        except OSError:
            return False
        return True

    def kernel_log(self, seconds: float) -> list[str]:
        """Return the kernel's messages of the last SECONDS.

        Raise OSError where they may not be read. A record of /dev/kmsg is
        `PRIORITY,NUMBER,MICROSECONDS SINCE BOOT,FLAGS;TEXT`.
        """
        uptime = time.monotonic()
        if hasattr(time, "CLOCK_BOOTTIME"):
            uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        handle = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
        lines: list[str] = []
        try:
            while True:
                try:
                    record = os.read(handle, 8192).decode(errors="replace")
                except BlockingIOError:
                    return lines  # the end of the log
                except BrokenPipeError:  # overwritten while it was read: go on with the next
                    continue
                head, _, text = record.partition(";")
                stamp = head.split(",")[2] if head.count(",") >= 2 else "0"
                if uptime - int(stamp) / 1e6 <= seconds:
                    lines.append(text.splitlines()[0] if text else "")
        finally:
            os.close(handle)


HERE = Machine()
