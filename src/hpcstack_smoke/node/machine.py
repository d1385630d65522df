"""What the checks of a node look at: its files, its programs, the kernel's log.

All of it goes through HERE, so that a whole made-up machine can stand in its place
(tests/clusters).
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
        """The first line of the file NAME; `? (reason)` where it cannot be read."""
        try:
            with open(self.path(name), errors="replace") as file:
                return file.readline().strip()
        except OSError as error:
            return f"? ({error.strerror})"

    def found(self, pattern: str) -> list[str]:
        """The names that match PATTERN, without `root`, sorted."""
        return sorted(
            name[len(self.root) :] for name in glob.glob(glob.escape(self.root) + pattern)
        )

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def said(self, argv: list[str], seconds: float = 60.0) -> str:
        """What the program prints, both streams; empty where it is missing, refuses, or takes
        longer.
        """
        status, text = self.ran(argv, seconds)
        return text if status == 0 else ""

    def ran(self, argv: list[str], seconds: float) -> tuple[int, str]:
        """(exit status, both streams) of a program: 127 where it is missing, 124 where it takes
        longer.
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
            child.terminate()  # kindly first: it may have something else do its work
            try:
                child.communicate(timeout=5.0)
            except subprocess.TimeoutExpired:
                child.kill()
            return 124, ""
        return child.returncode, text.decode(errors="replace")

    def opens(self, name: str) -> bool:
        """Whether this process may open the device NAME: a cgroup hides what it does not list."""
        try:
            os.close(os.open(self.path(name), os.O_RDWR))
        except OSError:
            return False
        return True

    def kernel_log(self, seconds: float) -> list[str]:
        """The kernel's messages of the last SECONDS. OSError where they may not be read."""
        uptime = (
            time.clock_gettime(time.CLOCK_BOOTTIME)
            if hasattr(time, "CLOCK_BOOTTIME")
            else time.monotonic()
        )
        handle = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
        lines: list[str] = []
        try:
            while True:
                try:
                    record = os.read(handle, 8192).decode(errors="replace")
                except BlockingIOError:
                    return lines
                except BrokenPipeError:  # overwritten while it was read: go on with the next
                    continue
                head, _, text = record.partition(";")
                stamp = head.split(",")[2] if head.count(",") >= 2 else "0"
                if uptime - int(stamp) / 1e6 <= seconds:
                    lines.append(text.splitlines()[0] if text else "")
        finally:
            os.close(handle)


HERE = Machine()
