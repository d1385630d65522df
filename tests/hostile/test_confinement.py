"""What programs of a base can reach while hpcstack locks and builds: a table of engines, users and
attacks.

Each attack is tried from within, by a script that runs as a step or as the lock's own question
does, and says what it found open. Nothing here acts on the machine: files of the kernel's are
opened for writing and closed.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.bases import machines_python, make_base
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.squashfs, pytest.mark.apptainer]
ENGINES = ["builtin", "apptainer", pytest.param("enroot", marks=pytest.mark.enroot)]
SUPPORT = Path(__file__).parents[1] / "support"
CANARY = "canary-8d1f6b"
NOBODY = 65534
ONE_WALL = "one enclosure confines the steps of every engine and user"
# Each line that begins with OPEN is an attack that got through.
ATTACK = r"""
open() { echo "OPEN $*"; }
for one in /proc/[0-9]*/environ; do grep -qa CANARY "$one" 2>/dev/null && open "environ $one"; done
for one in /proc/[0-9]*/cmdline; do grep -qa NEIGHBOUR "$one" 2>/dev/null && open "neighbour $one"; done
for one in / /proc/[0-9]*/root /proc/[0-9]*/cwd /proc/[0-9]*/fd/*; do
    [ -r "$one/SECRET" ] && open "files $one/SECRET"
    ( : >"$one/FOLDER/written" ) 2>/dev/null && open "writes $one/FOLDER"
    [ -r "$one/etc/shadow" ] && [ "$(stat -c %u:%s "$one/etc/shadow" 2>/dev/null)" != "0:0" ] &&
        [ -s "$one/etc/shadow" ] && open "shadow $one"
done
for one in /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/vm/drop_caches /proc/sys/fs/binfmt_misc/register \
    /sys/kernel/uevent_helper /proc/1/oom_score_adj; do
    [ "$one" = /proc/1/oom_score_adj ] && continue
    ( : >>"$one" ) 2>/dev/null && open "procfs $one"
done
grep -q " /proc/sys ro[, ]" /proc/self/mountinfo || open "/proc/sys can be written"
[ -w /proc/sysrq-trigger ] && case $(stat -c %u:%a /proc/sysrq-trigger) in 0:*) open sysrq ;; esac
find /sys/fs/cgroup -name release_agent -writable 2>/dev/null | grep -q . && open release_agent
mount -t tmpfs none /mnt 2>/dev/null && open "mount tmpfs"
mount -o remount,rw,bind /mnt 2>/dev/null && ( : >/mnt/mine ) 2>/dev/null && open "remount /mnt"
( : >/mnt/mine ) 2>/dev/null && open "writes what is lent"
for one in /proc/self/fd/*; do
    case ${one##*/} in 0 | 1 | 2) continue ;; esac
    to=$(readlink "$one" 2>/dev/null) || continue
    case $to in /hpcstack-step/* | /opt/hpcstack/* | /proc/*/fd | '') ;; *) open "descriptor $one $to" ;; esac
done
for one in sda vda nvme0n1 mem kmsg kvm mapper/control; do [ -e "/dev/$one" ] && [ -r "/dev/$one" ] && open "device $one"; done
mknod /tmp/made b 254 0 2>/dev/null && [ -b /tmp/made ] && open "mknod"
grep -qa CANARY /proc/keys 2>/dev/null && open keyring
echo mine >/opt/made-by-step
( : >/dev/made-by-step ) 2>/dev/null && open "/dev, which all steps share"
( : </opt/device ) 2>/dev/null && open "a device of the base"
unshare --user --map-root-user true 2>/dev/null && open "another user namespace"
ignored=$(grep ^SigIgn: /proc/self/status) && (( 0x${ignored##*[^0-9a-f]} & 0x1001000 )) && open "SIGPIPE or SIGXFSZ ignored"
for one in /proc/self/status; do case $(grep ^CapEff: $one) in *0000003fffffffff | *000001ffffffffff) open "all capabilities" ;; esac; done
grep -q '^NoNewPrivs:.*1' /proc/self/status || open "no_new_privs is not set"
kill -0 NEIGHBOURS_PID 2>/dev/null && grep -qa NEIGHBOUR /proc/NEIGHBOURS_PID/cmdline && open "ptrace of a neighbour"
echo "TRIED ALL"
true
"""


@pytest.fixture(scope="module")
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the builder's own, whose arguments say who it is."""
    process = subprocess.Popen(["bash", "-c", "exec -a NEIGHBOUR-1 sleep 3000"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that an ordinary user can enter, with a secret and a folder of his beside it."""
    folder = Path(
        subprocess.run(
            ["mktemp", "-d", "/tmp/hpcstack-confined-XXXXXX"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def attack(
    place: Path, engine: str, uid: int, how: str, script: str, *, forced: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """SCRIPT run inside, by ENGINE as the user UID."""
    argv, env = command(place, engine, uid, how, script)
    env |= {"NGC_API_KEY": CANARY, "FORCED": forced, **variables}
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        errors="replace",
        env=env,
        check=False,
        cwd="/",
        timeout=200,
    )


def command(
    place: Path, engine: str, uid: int, how: str, script: str
) -> tuple[list[str], dict[str, str]]:
    """The argv and the variables of support/attack.py. Another user than ours runs the testbed's
    hpcstack: a checkout and its Python may lie in a home that is closed to him.
    """
    (place / "attack.sh").write_text(script)
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "HOME": str(place),
    }
    if uid == os.getuid():
        env["PYTHONPATH"] = str(SUPPORT.parents[1] / "src")
        return [sys.executable, str(SUPPORT / "attack.py"), engine, str(place), how], env
    shutil.copy(SUPPORT / "attack.py", place)
    drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    python = str(Testbed().folder / "venv/bin/python")
    return [*drop, python, str(place / "attack.py"), engine, str(place), how], env


def users() -> list[int]:
    return [0, NOBODY] if os.getuid() == 0 else [os.getuid()]


@pytest.mark.soak(
    ONE_WALL,
    but=lambda engine, how, uid: (
        (engine, uid) == ("builtin", NOBODY) or (how == "build" and engine == "apptainer")
    ),
)
@pytest.mark.parametrize("uid", users())
@pytest.mark.parametrize("how", ["lock", "build", "build without layers"])
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_open(
    place: Path, neighbour: subprocess.Popen[bytes], engine: str, how: str, uid: int
) -> None:
    device = uid == 0 or "without" not in how  # an ordinary user unpacks none
    make_base(place, device=device)
    secret, folder = place / "home/secret", place / "home/folder"
    folder.mkdir(parents=True)
    secret.write_text("mine")
    for path in (place / "home", secret, folder):
        os.chown(path, uid, uid)
    join_session_with_key()
    script = (
        ATTACK.replace("CANARY", CANARY)
        .replace("SECRET", str(secret).lstrip("/"))
        .replace("FOLDER", str(folder).lstrip("/"))
    )
    script = script.replace("NEIGHBOURS_PID", str(neighbour.pid)).replace(
        "NEIGHBOUR", "NEIGHBOUR-1"
    )
    forced = "no layers" if "without" in how else ""
    done = attack(place, engine, uid, how.split()[0], script, forced=forced)
    said = done.stdout + done.stderr
    assert "TRIED ALL" in done.stdout, said
    assert [line for line in done.stdout.splitlines() if line.startswith("OPEN")] == []
    assert not (folder / "written").exists()
    made = subprocess.run(
        ["find", str(place), "-name", "made-by-step", "-uid", "0"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == "", "the machine's root is mapped"


# What Docker's daemon leaves open to a RUN: docs/security.md says so. All else is as closed as in
# our own enclosure.
OPEN_BY_DOCKER = {
    (
        "no_new_privs is not set"
    ): "a set-uid program of the base gives root of the container, which a RUN has anyway",
    "mknod": (
        "a node can be made; the daemon's device cgroup lets nobody open it, and a squashfs of "
        "ours has none"
    ),
    "/dev, which all steps share": "each RUN has a /dev of its own",
    "writes what is lent": "a copy, in a layer below the build's that is removed",
}


@pytest.mark.docker
@pytest.mark.soak("a build shows it", but=lambda how: how == "build")
@pytest.mark.parametrize("how", ["lock", "build"])
def test_docker_opens_what_is_said_of_it(
    place: Path, neighbour: subprocess.Popen[bytes], how: str
) -> None:
    """Its daemon confines what a Dockerfile runs; we say only what it may be given."""
    make_base(place)
    (place / "home").mkdir()
    secret, folder = place / "home/secret", place / "home/folder"
    folder.mkdir()
    secret.write_text("mine")
    script = (
        ATTACK.replace("CANARY", CANARY)
        .replace("SECRET", str(secret).lstrip("/"))
        .replace("FOLDER", str(folder).lstrip("/"))
    )
    script = script.replace("NEIGHBOURS_PID", str(neighbour.pid)).replace(
        "NEIGHBOUR", "NEIGHBOUR-1"
    )
    daemon = {"DOCKER_HOST": f"unix://{Testbed().folder}/run/docker.sock"}
    if how == "lock":
        refused = attack(place, "docker", 0, how, "true\n", **daemon)
        assert refused.returncode == 1
        assert "the base ran our script, and left no /opt/hpcstack/answers" in refused.stdout
        script = f"mkdir -p /opt/hpcstack/answers\n{script}"
    done = attack(place, "docker", 0, how, script, **daemon)
    assert "TRIED ALL" in done.stdout, done.stdout + done.stderr
    opened = {
        line.removeprefix("OPEN ") for line in done.stdout.splitlines() if line.startswith("OPEN")
    }
    assert opened == set(OPEN_BY_DOCKER)
    assert not (folder / "written").exists()


@pytest.fixture
def fuse(place: Path) -> Iterator[Path]:
    """A folder on a FUSE filesystem, open to all: NFS and Lustre take no upper layer of an overlay
    either.
    """
    if os.getuid():
        pytest.skip("only root mounts a filesystem that another user sees")
    top = place / "mounted"
    for name in ("lower", "upper", "work", "mounted"):
        (place / name).mkdir()
    options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work,allow_other"
    subprocess.run(["fuse-overlayfs", "-o", options, str(top)], check=True, capture_output=True)
    top.chmod(0o777)
    yield top
    subprocess.run(["umount", str(top)], check=True)


@pytest.mark.fuse
@pytest.mark.soak(ONE_WALL, but=lambda engine, uid: uid == NOBODY and engine == "builtin")
@pytest.mark.parametrize("uid", users())
@pytest.mark.parametrize("engine", ENGINES)
def test_a_cache_on_a_network_filesystem_builds_confined(
    fuse: Path, neighbour: subprocess.Popen[bytes], engine: str, uid: int
) -> None:
    """No layers can be kept there: steps run in an unpacked copy, behind the same walls."""
    make_base(fuse)
    script = (
        ATTACK.replace("CANARY", CANARY)
        .replace("SECRET", "etc/hostname-that-is-not")
        .replace("FOLDER", "nowhere")
    )
    script = script.replace("NEIGHBOURS_PID", str(neighbour.pid)).replace(
        "NEIGHBOUR", "NEIGHBOUR-1"
    )
    done = attack(fuse, engine, uid, "build", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TRIED ALL" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("OPEN")] == []
    assert "> unsquashfs" in done.stdout and "--overlay" not in done.stdout, (
        "no layers can be mounted here"
    )
    (made,) = fuse.glob(f"{engine}-{uid}-build/work/image.sqsh")
    listed = subprocess.run(
        ["unsquashfs", "-l", str(made)], capture_output=True, text=True, check=True
    ).stdout
    assert "squashfs-root/opt/made-by-step" in listed.splitlines()


def join_session_with_key() -> None:
    """This process, and what it starts, has a key of its session whose name is the canary."""
    libc = ctypes.CDLL(None, use_errno=True)
    number, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
    libc.syscall(keyctl, 1, None)
    libc.syscall(number, b"user", CANARY.encode(), b"secret", ctypes.c_size_t(6), -3)


@pytest.mark.soak(
    ONE_WALL,
    but=lambda engine, lacks: lacks == "sh" or (engine == "builtin" and lacks in ("mount", "rm")),
)
@pytest.mark.parametrize(
    "lacks", ["rmdir", "mkdir", "touch", "mount", "ls", "cat", "sh", "env", "rm"]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_base_without_a_program_chooses_no_other_way(
    place: Path, engine: str, lacks: str
) -> None:
    """N1: what a base lacks made a build fall back to one in which its programs run beside the
    builder.
    """
    make_base(place, lacks=(lacks,))
    done = attack(
        place,
        engine,
        users()[-1],
        "build",
        f"[ -d {place}/work ] && echo OPEN\n[ -e /proc/1/root{place} ] && echo OPEN\necho ran\n",
    )
    assert "OPEN" not in done.stdout.splitlines(), done.stdout
    assert "ran" in done.stdout.splitlines() or "REFUSED" in done.stdout, done.stdout + done.stderr


def shows_first(engine: str, uid: int, links: dict[str, str]) -> bool:
    """Whether ci/test has LINKS: below a folder, a folder of the root's, and by way of /proc."""
    return (
        engine == "builtin"
        and uid == NOBODY
        and ("etc" in links or "run" in links or "oldroot" in str(links))
    )


@pytest.mark.soak(ONE_WALL, but=shows_first)
@pytest.mark.parametrize("uid", users())
@pytest.mark.parametrize(
    "links",
    [
        {"etc/resolv.conf": "/proc/self/root/oldroot{out}/made"},
        {"etc/resolv.conf": "/proc/1/root{out}/made"},
        {"etc/resolv.conf": "..{out}/made"},
        {"etc/hosts": "{out}/made"},
        {"tmp": "{out}/made"},
        {"mnt": "{out}/made"},
        {"var": "{out}/made"},
        {"opt": "{out}/made"},
        {"etc": "{out}/made"},
        {"run": "{out}"},
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ENGINES)
def test_links_of_a_base_lead_nowhere(
    place: Path, engine: str, links: dict[str, str], uid: int
) -> None:
    """N7: places for mounts were made over a base's links, out of the image."""
    out = place / "out"
    out.mkdir()
    os.chown(out, uid, uid)
    make_base(place, links={name: to.replace("{out}", str(out)) for name, to in links.items()})
    for how in ("lock", "build"):
        attack(place, engine, uid, how, "echo ran\n")
        assert list(out.iterdir()) == [], how


@pytest.mark.soak(ONE_WALL, but=lambda engine, uid: uid == NOBODY and engine == "builtin")
@pytest.mark.parametrize("uid", users())
@pytest.mark.parametrize("engine", ENGINES)
def test_a_link_of_a_base_leads_into_no_folder_of_the_build(
    place: Path, engine: str, uid: int
) -> None:
    """N7 once more: what a build may write is in sight of what makes the places for its mounts."""
    cache = place / f"{engine}-{uid}-build/cache"
    make_base(place, links={"var": str(cache)})
    attack(place, engine, uid, "build", "echo ran\n")
    assert cache.is_dir()
    assert not [path.name for path in cache.iterdir() if path.name in ("tmp", "hpcstack", "hosts")]


@pytest.mark.soak(ONE_WALL, but=lambda engine, uid: uid == NOBODY and engine == "builtin")
@pytest.mark.parametrize("uid", users())
@pytest.mark.parametrize("engine", ENGINES)
def test_no_set_uid_file_of_a_step_is_in_anybodys_reach(place: Path, engine: str, uid: int) -> None:
    """N8: the kept layer of a step had one below folders that everybody could enter."""
    make_base(place)
    attack(place, engine, uid, "build", "cp /bin/id /usr/bin/mine && chmod 6755 /usr/bin/mine\n")
    shutil.rmtree(place / "tree")
    found = subprocess.run(
        ["find", str(place), "-perm", "/6000", "-type", "f"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout, "the step has left one"
    for line in found.stdout.splitlines():
        around = [one for one in Path(line).parents if one.is_relative_to(place) and one != place]
        assert any(not one.stat().st_mode & 0o011 for one in around), line


@pytest.mark.soak(ONE_WALL, but=lambda engine: engine == "builtin")
@pytest.mark.parametrize("engine", ENGINES)
def test_folders_without_end_are_refused_and_leave_nothing(place: Path, engine: str) -> None:
    """N12: folders in one another ended every later build, and gc, with a traceback."""
    make_base(place)
    deep = "n=0; while [ $n -lt 300 ]; do mkdir d && cd d; n=$((n+1)); done\n"
    done = attack(place, engine, users()[-1], "build", f"mkdir /opt/x; cd /opt/x; {deep}")
    assert "REFUSED" in done.stdout and "deep in one another" in done.stdout, (
        done.stdout + done.stderr
    )
    done = attack(place, engine, users()[-1], "build", "echo ran\n")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.soak(ONE_WALL, but=lambda engine, uid: uid == NOBODY and engine == "builtin")
@pytest.mark.parametrize("uid", users())
@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_ends_with_hpcstack_whatever_ends_it(place: Path, engine: str, uid: int) -> None:
    """A step under Apptainer went on when hpcstack was killed, and the next build of the same key
    ran beside it.
    """
    make_base(place)
    argv, env = command(place, engine, uid, "build", "sleep 4747.25\n")
    process = subprocess.Popen(
        argv, env=env, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: running("4747.25"), "the step runs")
        process.kill()
        wait_until(lambda: not running("4747.25"), "the step has ended")
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not running(str(place)), "nothing of the build is left")


@pytest.mark.soak(ONE_WALL, but=lambda engine, uid: uid == NOBODY and engine == "builtin")
@pytest.mark.parametrize("uid", users())
@pytest.mark.parametrize("engine", ENGINES)
def test_no_nameless_socket_of_the_machine_answers(place: Path, engine: str, uid: int) -> None:
    """Abstract Unix sockets belong to the network's name space, which a step that downloads shares
    with the machine.

    Linux 6.12 is the first that can tell them apart; before it docs/security.md says that they are
    reached.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(444, None, ctypes.c_size_t(0), 1) < 6:
        pytest.skip("this kernel's Landlock has no scopes")
    make_base(place, python=True)
    with socket.socket(socket.AF_UNIX) as heard:
        heard.bind(f"\0hpcstack-test-{os.getpid()}")
        heard.listen()
        ask = (
            f"import _socket; "
            f"_socket.socket(_socket.AF_UNIX).connect(b'\\0hpcstack-test-{os.getpid()}')"
        )
        python, _ = machines_python()
        script = (
            f'{python} -ISc "import _socket" && echo TRIED\n{python} -ISc "{ask}" && echo OPEN; '
            f"true\n"
        )
        for how in ("lock", "build"):
            done = attack(place, engine, uid, how, script)
            assert "TRIED" in done.stdout.splitlines(), done.stdout + done.stderr
            assert "OPEN" not in done.stdout.splitlines(), done.stdout
            assert "PermissionError" in done.stdout, done.stdout


@pytest.mark.soak(ONE_WALL, but=lambda engine: engine == "apptainer")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_changes_nothing_of_what_started_it(place: Path, engine: str) -> None:
    """CVE-2019-5736: a base whose first program is /proc/self/exe runs that which has started the
    container. It could give a set-uid bit to a Python that belongs to who builds.
    """
    uid = users()[-1]
    program, library = machines_python()
    own = place / "python"
    copied = own / program.name
    own.mkdir()
    shutil.copy(program, copied)
    for path in (own, copied):
        os.chown(path, uid, uid)
    hostile = """#!/proc/self/exe
import os
print("TRIED", flush=True)
for change in (lambda: os.fchmod(os.open("/proc/self/exe", os.O_RDONLY), 0o6755), lambda: open("/proc/self/exe", "r+")):
    try:
        change()
        print("OPEN", flush=True)
    except OSError as error:
        print(error, flush=True)
"""
    make_base(place, python=True, bash=hostile)
    before = copied.stat()
    argv, env = command(place, engine, uid, "build", "true\n")
    python = next(number for number, word in enumerate(argv) if "/python" in word)
    packages = next((Testbed().folder / "venv").glob("lib/python*/site-packages"))
    env |= {"PYTHONPATH": str(packages), "PYTHONHOME": str(library.parents[1])}
    argv[python] = str(copied)
    done = subprocess.run(
        argv, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=200
    )
    said = done.stdout + done.stderr
    assert "TRIED" in said, said
    assert "OPEN" not in done.stdout.splitlines(), said
    assert copied.stat().st_mode == before.st_mode


def running(words: str) -> bool:
    found = subprocess.run(
        ["pgrep", "-f", "--", re.escape(words)], capture_output=True, text=True, check=False
    )
    return bool(found.stdout.split())


def wait_until(done: object, what: str, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    assert callable(done)
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.05)
