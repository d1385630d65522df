"""An enclosure: all that programs of a base and of a recipe see of this machine, whatever engine
starts them.

    enclose.py make --root DIR --pid FILE [--uid N] [--offline] [--ro PATH]... [--rw PATH]...
    [--at SOURCE PATH]... -- COMMAND...
    enclose.py enter --process N [--uid N] [--offline] [--overlay OPTIONS MERGED] [--tree TREE ...]
    -- COMMAND...

`make` runs COMMAND as the first process of a new enclosure. It has user, mount, process, IPC and
host name spaces of its own. Its root is an empty filesystem at DIR with the system's programs
(read-only), a few devices, the paths --ro and --rw, SOURCE as PATH (--at, read-only), and nothing
else of the machine: no home, no /run, no /var, no other process in /proc; --offline: no network
either. The machine's root is no user in it: an ordinary user is mapped to root there; root itself
becomes N, an id that owns nothing. FILE gets the number of the process that others enter.

`enter` runs COMMAND in the enclosure of process N, in mount and process name spaces of its own;
--offline: and without a network. --overlay mounts one at MERGED first. --tree: COMMAND sees the
tree of a base as its root, with /proc, /sys and /dev as containers have them, and of the enclosure
what --bind, --show (read-only) and --file name; it has the capabilities that packages' scripts
need, the system calls that --filter lets through, and the variables of --environment, a file. No
link of the tree is followed when a place for a mount is made.

What they start has no session keyring of the caller's, gains no privileges, and ends with them;
they end with the program that has started them, however that ends.

Run by the machine's Python, without libraries. Models: bubblewrap's and runc's order of mounts.
"""

import argparse
import contextlib
import ctypes
import errno
import fcntl
import os
import re
import signal
import stat
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)

# linux/sched.h, linux/mount.h, linux/prctl.h
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 4096, 16384, 1 << 18, 1 << 19
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
SECCOMP_MODE_FILTER = 2
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
# linux/landlock.h; the numbers are the same on all architectures
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_RESTRICT_SELF = 444, 446
LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, LANDLOCK_SCOPE_SIGNAL = 1, 2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_KEYCTL, JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1  # linux/keyctl.h
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/sys")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
# What a step keeps of root's capabilities, linux/capability.h: CHOWN, DAC_OVERRIDE,
# DAC_READ_SEARCH, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT,
# MKNOD, AUDIT_WRITE, SETFCAP: Docker's list.
KEPT_CAPABILITIES, MOST_CAPABILITIES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 18, 27, 29, 31}, 64
# What of /proc nobody may write, or see: runc's lists, libcontainer/specconv/example.go
READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
MASKED = (
    "acpi",
    "asound",
    "kcore",
    "keys",
    "latency_stats",
    "timer_list",
    "timer_stats",
    "sched_debug",
    "scsi",
)
PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
EMPTY = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/proc")
NAMES = "/etc/resolv.conf"
# the exit status that says that no command was started, as env(1) and docker-run(1) have it
REFUSED = 125


class MountAttributes(ctypes.Structure):
    """struct mount_attr of linux/mount.h."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("spread", ctypes.c_uint64),
        ("fd", ctypes.c_uint64),
    )


def call(name, *words):
    """The libc function NAME with WORDS; OSError where it fails."""
    given = [word.encode() if isinstance(word, str) else word for word in words]
    if getattr(libc, name)(*given) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{words}: {os.strerror(error)}")


def mount(source, target, kind, flags, data=None):
    call("mount", source, target, kind, ctypes.c_ulong(flags), data)


def show(path, root, *, writable, source=None):
    """PATH of the machine at the same path below ROOT, or SOURCE in its place.

    What is not there is left out; a link stays a link.
    """
    source = source or path
    if not os.path.lexists(source):
        return
    target = root + path
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if os.path.islink(source) and not writable:
        if not os.path.lexists(target):
            os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target, mode=0o755, exist_ok=True)
    elif not os.path.lexists(target):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)
    if writable:
        restrict(target, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, MS_NOSUID | MS_NODEV)
    else:
        make_read_only(target)


def make_read_only(target):
    """TARGET, a mount, and all below it cannot be written."""
    restrict(target, MOUNT_ATTR_RDONLY, MS_RDONLY)


def restrict(target, attributes, flags):
    """TARGET, a mount, and all below it get ATTRIBUTES. Kernels before 5.12 know no call for all of
    them: there FLAGS, which say the same, are given to one after the other.
    """
    wanted = MountAttributes(set=attributes)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    if (
        libc.syscall(
            SYS_MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, ctypes.byref(wanted), size
        )
        == 0
    ):
        return
    if ctypes.get_errno() not in (
        errno.ENOSYS,
        errno.EPERM,
    ):  # EPERM: a container's filter that does not know it
        raise OSError(
            ctypes.get_errno(), f"{target} cannot be closed: {os.strerror(ctypes.get_errno())}"
        )
    outermost = os.path.realpath(target)
    for place in mounts_below(outermost):
        try:
            restrict_one(place, flags)
        except (
            PermissionError,
            FileNotFoundError,
        ):  # behind a folder that is closed to the builder, and so to steps
            if place == outermost:
                raise


def restrict_one(place, flags):
    """The mount at PLACE alone gets FLAGS."""
    kept = os.statvfs(place).f_flag & (
        MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    )  # a user may take none away
    mount(None, place, None, MS_REMOUNT | MS_BIND | flags | kept)


def mounts_below(folder):
    """FOLDER, a mount, and each mount below it that can be seen, outermost first."""
    with open("/proc/self/mountinfo", "rb") as file:
        named = [line.split()[4] for line in file]
    places = {folder, *(os.fsdecode(plain(name)) for name in named)}
    return sorted(
        place for place in places if place == folder or place.startswith(folder.rstrip("/") + "/")
    )


def plain(name):
    """NAME of /proc/self/mountinfo, where blanks and backslashes are octal (proc_pid_mountinfo(5)),
    as it is.
    """
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), name)


def make_devices(root):
    """The few devices that a build needs, and terminals of its own."""
    folder = root + "/dev"
    os.makedirs(folder, mode=0o755, exist_ok=True)
    mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=755")
    for name in DEVICES:
        if os.path.exists("/dev/" + name):
            os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY, 0o644))
            mount("/dev/" + name, f"{folder}/{name}", None, MS_BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                         ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")):  # fmt: skip
        os.symlink(target, f"{folder}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{folder}/{name}", 0o755)
    mount(
        "devpts",
        folder + "/pts",
        "devpts",
        MS_NOSUID | MS_NOEXEC,
        "newinstance,ptmxmode=0666,mode=620",
    )
    mount("tmpfs", folder + "/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def make_root(words):
    """The enclosure's tree, mounted at words.root."""
    root = words.root
    os.makedirs(root, mode=0o755, exist_ok=True)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64m")
    for path in EMPTY:
        os.makedirs(root + path, mode=0o755, exist_ok=True)
    names = os.path.realpath(NAMES)
    system = [*SYSTEM, *([names] if names != NAMES else [])]
    asked = [(path, False) for path in words.ro] + [(path, True) for path in words.rw]
    for path in system:
        show(path, root, writable=False)
    for path, writable in sorted(asked, key=lambda one: (one[0].count("/"), one[0])):
        show(path, root, writable=writable)
    for source, path in words.at:
        show(path, root, writable=False, source=source)
    make_devices(root)
    mount(
        "proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC
    )  # the old one is still seen: it has to be


def enter_root(root):
    """ROOT is the root of this mount namespace, and what was is gone."""
    os.chdir(root)
    call("syscall", ctypes.c_long(SYS_PIVOT_ROOT[os.uname().machine]), ".", ".")
    call("umount2", ".", MNT_DETACH)
    os.chdir("/")


def write_maps(process, uid, gid):
    """UID and GID of the machine are root in the user namespace of PROCESS, and nobody else is
    there.
    """
    with contextlib.suppress(FileNotFoundError):
        write(f"/proc/{process}/setgroups", "deny")
    write(f"/proc/{process}/uid_map", f"0 {uid} 1")
    write(f"/proc/{process}/gid_map", f"0 {gid} 1")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def become(number):
    """This process, root of the machine, is the root of a new user namespace: there NUMBER, and no
    other user.
    """
    asked, told = os.pipe(), os.pipe()
    helper = os.fork()
    if helper == 0:
        os.read(asked[0], 1)
        write_maps(os.getppid(), number, number)
        os.write(told[1], b"x")
        os._exit(0)
    call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    os.write(asked[1], b"x")
    os.close(told[1])
    mapped = os.read(told[0], 1)
    os.waitpid(helper, 0)
    if not mapped:
        raise OSError(f"no map for the user {number}")
    for descriptor in (*asked, told[0]):
        os.close(descriptor)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def drop_privileges():
    """What runs from here on gains none by executing a file, and has no keyring of the caller's
    session.

    It ends with its parent. A change of user takes that away, so it is said after the last one.
    """
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.syscall(
        SYS_KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, None
    )  # ENOSYS: a kernel that has no keys
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def make_place(tree, path, *, file=False):
    """A descriptor of PATH in TREE, made where it is not there: a folder, or an empty FILE.

    SystemExit for a link.
    """
    here = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = [part for part in path.split("/") if part]
    for number, part in enumerate(parts, 1):
        last = number == len(parts)
        try:
            if last and file:
                os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=here))
            else:
                os.mkdir(part, 0o755, dir_fd=here)
        except FileExistsError:
            pass
        inner = os.open(part, PLACE, dir_fd=here)
        kind = os.fstat(inner).st_mode
        if stat.S_ISLNK(kind):
            at = "/" + "/".join(parts[:number])
            sys.exit(
                f"the image has a link at {at}, where a build has a folder or file of its own: "
                "nothing can be built on it"
            )
        if stat.S_ISDIR(kind) == (last and file):
            sys.exit(f"the image has another thing at {path} than a {'file' if file else 'folder'}")
        os.close(here)
        here = inner
    return here


def bind(source, tree, path, *, file=False):
    """SOURCE at PATH in TREE, with what is mounted below it."""
    descriptor = make_place(tree, path, file=file)
    mount(source, f"/proc/self/fd/{descriptor}", None, MS_BIND | MS_REC)
    os.close(descriptor)


def enter_tree(words):
    """words.tree is the root, with what a container has, and what was asked for."""
    tree = words.tree
    if not os.path.ismount(tree):
        mount(tree, tree, None, MS_BIND)
    descriptor = make_place(tree, "/proc")
    mount("proc", f"/proc/self/fd/{descriptor}", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.close(descriptor)
    bind("/sys", tree, "/sys")
    bind("/dev", tree, "/dev")
    mount(
        "tmpfs", tree + "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"
    )  # each step has its own
    restrict_one(
        tree + "/dev", MS_RDONLY
    )  # the folder, which all steps share: devices are mounts of their own
    for source, path in words.bind:
        bind(source, tree, path)
    for source, path in words.show:
        bind(source, tree, path)
        make_read_only(tree + path)
    for source, path in words.file:
        bind(source, tree, path, file=True)
        make_read_only(tree + path)
    mask(tree)
    enter_root(tree)


def mask(tree):
    """What of the kernel's own is neither written nor seen by whoever is root in a container."""
    for name in READ_ONLY:
        path = f"{tree}/proc/{name}"
        if os.path.exists(path):
            mount(path, path, None, MS_BIND | MS_REC)
            make_read_only(path)
    for name in MASKED:
        path = f"{tree}/proc/{name}"
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", MS_RDONLY)
        elif os.path.exists(path):
            mount("/dev/null", path, None, MS_BIND)
    if os.path.exists(tree + "/dev/fuse"):
        mount("/dev/null", tree + "/dev/fuse", None, MS_BIND)


def keep_to_itself():
    """No socket of the machine's that has a name and no path (unix(7), abstract) is reached from
    here on, nor a process signalled that was there before. Kernels know that since Linux 6.12.
    """
    wanted = struct.pack("QQQ", 0, 0, LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL)
    ruleset = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, wanted, ctypes.c_size_t(len(wanted)), 0)
    if ruleset < 0:  # ENOSYS, EOPNOTSUPP: none; E2BIG, EINVAL: one that knows no scopes
        return
    if libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


def limit_capabilities():
    """Of root's capabilities those that a step needs: what it executes has no others."""
    for number in range(MOST_CAPABILITIES):
        if number not in KEPT_CAPABILITIES:
            libc.prctl(
                PR_CAPBSET_DROP, number, 0, 0, 0
            )  # EINVAL: this kernel has none of that number


class Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filter_calls(text):
    """System calls as TEXT, classic BPF, says."""
    program = Program(len(text) // 8, text)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(f"the kernel takes no filter: {os.strerror(ctypes.get_errno())}")


def wait_for(child):
    """End as CHILD does."""
    _, status = os.waitpid(child, 0)
    sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def make(words):
    """The enclosure, with words.command as its first process."""
    spaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    if words.offline:
        spaces |= CLONE_NEWNET
    if words.uid is None:
        uid, gid = os.geteuid(), os.getegid()
        call("unshare", CLONE_NEWUSER | spaces)
        write_maps("self", uid, gid)
    else:
        os.setgroups([])
        call("unshare", spaces)
    # Opened now: once the child has its root, that is ours as well, and need not hold this path.
    number = os.open(words.pid, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    child = os.fork()
    if child:
        os.write(number, str(child).encode())
        wait_for(child)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    make_root(words)
    enter_root(words.root)
    if words.uid is not None:
        become(words.uid)
    # Nothing in here needs another user namespace, and in its own a step could mount what is kept
    # from it.
    with contextlib.suppress(OSError):  # /proc/sys cannot be written in some containers
        write("/proc/sys/user/max_user_namespaces", "0")
    drop_privileges()
    os.execvp(words.command[0], words.command)


def enter(words):
    """words.command in the enclosure of a process."""
    if words.inside:
        run_in_tree(words)
    spaces = ("user", "ipc", "uts", "pid", "mnt")
    if words.uid is not None:  # root keeps what it may until it is in all others
        os.setgroups([])
        spaces = (*spaces[1:], spaces[0])
    opened = [
        os.open(f"/proc/{words.process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in spaces
    ]
    for descriptor in opened:
        call("setns", descriptor, 0)
        os.close(descriptor)
    if words.uid is not None:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    outer = os.fork()  # who has entered a process name space is not in it: its children are
    if outer:
        wait_for(outer)
    call(
        "unshare",
        CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | (CLONE_NEWNET if words.offline else 0),
    )
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    if words.offline:
        raise_loopback()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    child = os.fork()
    if child:
        wait_for(child)
    if words.overlay:
        options, merged = words.overlay
        os.chdir(words.folder)  # layers are named from there on, to be short: mount(2) takes a page
        mount("overlay", merged, "overlay", 0, options)
    if not words.tree:
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        drop_privileges()
        os.execvp(words.command[0], words.command)
    # What a step executes sees this very program as /proc/self/exe for a moment (CVE-2019-5736):
    # from here on it is the one that the enclosure shows, read-only, not the machine's own.
    own = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    os.execv(own[0], [*own, "enter", "--inside", *sys.argv[2:]])


def run_in_tree(words):
    """words.command with words.tree as its root, and no more rights than a step needs."""
    import json  # here, since `make` does without, and every start of an enclosure counts

    with open(words.environment, encoding="utf-8") as file:
        environment = json.load(file)
    with open(words.filter, "rb") as file:
        text = file.read()
    enter_tree(words)
    limit_capabilities()
    drop_privileges()
    keep_to_itself()
    filter_calls(text)
    os.closerange(3, 1 << 16)
    try:
        os.execve(words.command[0], words.command, environment)
    except OSError as error:
        sys.exit(f"the image has no {words.command[0]} that runs: {error.strerror}")


def raise_loopback():
    """127.0.0.1 answers in a network that has nothing else."""
    import socket  # as above

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    making, entering = verbs.add_parser("make"), verbs.add_parser("enter")
    for name in ("--root", "--pid"):
        making.add_argument(name, required=True)
    for name in ("--ro", "--rw"):
        making.add_argument(name, action="append", default=[])
    making.add_argument("--at", nargs=2, action="append", default=[])
    entering.add_argument("--process", type=int, required=True)
    entering.add_argument("--inside", action="store_true")  # said by `enter` itself
    entering.add_argument("--folder", default="/")
    entering.add_argument("--overlay", nargs=2)
    for name in ("--tree", "--environment", "--filter"):
        entering.add_argument(name)
    for name in ("--bind", "--show", "--file"):
        entering.add_argument(name, nargs=2, action="append", default=[])
    for one in (making, entering):
        one.add_argument("--uid", type=int)
        one.add_argument("--offline", action="store_true")
        one.add_argument("command", nargs="+")
    words = parser.parse_args()
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):  # Python ignores them, and what it executes would
        signal.signal(number, signal.SIG_DFL)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        make(words) if words.verb == "make" else enter(words)
    except OSError as error:
        print(f"this machine lets no enclosure be made: {error}", file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
