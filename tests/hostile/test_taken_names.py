"""Names that another user of this machine takes first, where everybody may make some: rows T6 and T13.

In /tmp, /var/tmp, /dev/shm and among abstract sockets whoever comes first has a name. One that can
be guessed is therefore somebody else's: the attacker makes it, and waits for who uses it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcstack.core import data
from hpcstack.launch.debug import make_debug_client, wrap_debugged
from hpcstack.launch.request import Served

REPO = Path(__file__).resolve().parents[2]
NOBODY = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")


# -- T13: every such name in the code

# Where everybody may make a name; and the name of a socket that is in no folder
SHARED_PLACE = re.compile(
    r"""(?<![\w.])(/tmp|/var/tmp|/dev/shm)(?!\w) | gettempdir\( | \bTMPDIR\b | XDG_RUNTIME_DIR
        | /run/(hpcstack|user) | \\(0|x00)hpcstack | ABSTRACT-
        | (bind|connect)\(f?b?["']\\(0|x00)
        | (cachedir|staging\.folder)\b.*/.*hpcstack-
    """,
    re.VERBOSE,
)
DRAWN = re.compile(r"X{6}|mkdtemp\(|uuid4\(\)|token_hex\(|\bmktemp -d")
TEXT, MOUNT, ROOTS = (
    "says it, and makes nothing",
    "a mount, of a container's own",
    "root's to write",
)
# Lines that name such a place and draw nothing: {file: {words of the line: why nobody gains by it}}
KNOWN = {
    "ci/bare": {"/var/tmp/hpcstack-bare": "taken: refused"},
    "ci/bench/importing_once.py": {"*/tmp/enroot/cache-*": "of the testbed's own nodes"},
    "ci/bench/launching.py": {"*/tmp/hpcstack-staged-*": "of the testbed's own nodes"},
    "ci/bench/building.py": {
        "tmpdir: {folder}/tmp": "a folder that was drawn",
        'dir=os.environ.get("TMPDIR"': "of mkdtemp",
    },
    "ci/quickstart": {"/var/tmp/hpcstack-bare": "ci/bare's"},
    "ci/standin/layers.py": {"--find-links=/tmp/wheels": "in an image that is being made"},
    "images/conda.py": {'os.environ["TMPDIR"], "conda"': "below the build's own"},
    "images/enclose.py": {"EMPTY =": MOUNT, '"/dev/shm", "tmpfs"': MOUNT},
    "images/lib.sh": {
        "TMPDIR=$HPCSTACK_WORK": "below the build's own",
        'mkdir -p "$TMPDIR"': "that",
    },
    "launchers/in-image/debug_client.py": {
        "for place in": "looks for what was drawn, of this user's"
    },
    "launchers/in-image/debugged.py": {"PLACE =": "of mkdtemp"},
    "launchers/in-image/serve_page.py": {
        'os.environ["TMPDIR"] = FOLDER': "a folder that was drawn"
    },
    "launchers/in-image/slurm_client.py": {
        'connect("\\0" + name)': "a digest of a secret (slurm.sh)"
    },
    "launchers/on-node/slurm_helper.py": {'bind("\\0" + name)': "a digest of a secret (slurm.sh)"},
    "launchers/on-node/slurm_lines.py": {"TMPDIR": TEXT, "XDG_RUNTIME_DIR": TEXT},
    "launchers/on-node/doctor.sh": {"tmp=${TMPDIR:-/tmp}": TEXT, "/dev/shm": TEXT},
    "launchers/on-node/health.sh.j2": {
        "/run/hpcstack-health-$node": ROOTS,
        "neither /dev/shm nor /tmp": TEXT,
        "check shm disk": TEXT,
        "check tmp disk": TEXT,
    },
    "launchers/on-node/left-out.sh": {"TMPDIR": TEXT},
    "launchers/on-node/own-folder.sh": {
        "_plain=": "taken: another one, which is drawn",
        'find "${TMPDIR:-/tmp}/"': "looks for what was drawn, of this user's",
    },
    "launchers/on-node/podman-tidy.sh": {"XDG_RUNTIME_DIR=$1": "a folder that was drawn"},
    "launchers/on-node/podman.sh": {
        "/hpcstack-podman-*": "looks for what was drawn, of this user's",
        'XDG_RUNTIME_DIR="$work"': "a folder that was drawn",
        "-v /tmp:/tmp": MOUNT,
    },
    "launchers/on-node/squashfs-around.sh": {"no folder can be made": TEXT},
    "launchers/on-node/squashfs.sh": {"no folder can be made": TEXT},
    "src/hpcstack/build/engines/apptainer.py": {"/scratch:": MOUNT},
    "src/hpcstack/build/engines/container.py": {"(scratch,": MOUNT},
    "src/hpcstack/diagnose/advice.py": {"TMPDIR": TEXT, "/dev/shm": TEXT},
    "src/hpcstack/diagnose/checks.py": {'"/tmp"': TEXT, "/dev/shm": TEXT},
    "src/hpcstack/launch/enter.py": {"[0-9a-f-]+": "reads what was drawn"},
    "src/hpcstack/launch/folders.py": {"OWN =": TEXT},
    "src/hpcstack/launch/run.py": {"cannot be written either": TEXT, '"/tmp:/tmp"': MOUNT},
    "src/hpcstack/launch/staging.py": {
        "hpcstack-staged-": "all nodes must know it before; taken: refused, with whose it is"
    },
    "src/hpcstack/draft/context_files.py": {
        '*("/tmp"': "folders of an image",
        '"/var/tmp"),': "folders of an image",
    },
    "src/hpcstack/oci/credentials.py": {"/run/user/": ROOTS},
    "src/hpcstack/oci/daemon.py": {"podman.sock": TEXT},
    "src/hpcstack/project/inside.py": {"above =": "of mkdtemp"},
    "src/hpcstack/publish/load_test.py": {"TRIAL": "looks for what was drawn, of this user's"},
    "src/hpcstack/render/kubernetes.py": {"SHM =": MOUNT},
    "src/hpcstack/site/model.py": {
        "/run/hpcstack/images.sock": ROOTS,
        "By default $TMPDIR": TEXT,
        '"/tmp",': "staging.folder, see launch/staging.py",
    },
    "src/hpcstack/store/cache.py": {"hpcstack-bases-": "kept from build to build; taken: refused"},
    "src/hpcstack/store/workspace.py": {"parent =": "of mkdtemp", "make room": TEXT},
    "src/hpcstack_smoke/bundle.py": {"df -h": TEXT},
    "src/hpcstack_smoke/node/host.py": {"/dev/shm": TEXT},
    "src/hpcstack_smoke/node/io.py": {"own =": "its file is drawn"},
    "src/hpcstack_smoke/select.py": {"/dev/shm": TEXT},
    "src/hpcstack_smoke/training/loader.py": {"/dev/shm": TEXT},
}


def list_guessed_names() -> Iterator[tuple[str, str]]:
    """Yield (file, line) of each line that names a shared place and draws nothing.

    What only describes is left out: comments, and the texts of functions and modules.
    """
    folders = ("src", "launchers", "images", "modulefiles", "ci")
    for path in sorted(path for folder in folders for path in (REPO / folder).rglob("*")):
        is_of_the_testbed = "testbed.d" in path.parts  # a machine of its own
        if not path.is_file() or path.suffix == ".pyc" or is_of_the_testbed:
            continue
        for line in read_code(path):
            if SHARED_PLACE.search(line) and not DRAWN.search(line):
                yield str(path.relative_to(REPO)), line.strip()


def read_code(path: Path) -> list[str]:
    """The lines of PATH, without comments of their own and without what describes."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".py":
        text = re.sub(r'^ *"""(?:[^"\\]|\\.|"(?!""))*"""', "", text, flags=re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [re.sub(r"  # .*$", "", line) for line in lines]


def test_t13_every_name_that_can_be_guessed_is_known() -> None:
    unknown, seen = [], set()
    for file, line in list_guessed_names():
        found = {(file, words) for words in KNOWN.get(file, {}) if words in line}
        seen |= found
        if not found:
            unknown.append(f"{file}: {line}")
    assert unknown == []
    assert seen == {(file, words) for file, known in KNOWN.items() for words in known}


@pytest.mark.parametrize(
    "line",
    [
        "place=${TMPDIR:-/tmp}/hpcstack-mounts-$(id -u)",
        'PAGE_FOLDER = "/tmp/hpcstack-page-JOB"',
        'PAGE = "/tmp/page-JOB"',
        'service.connect("\\0hpcstack-debug")',
        'bind(f"\\0hpcstack-{uid}")',
        "bind('\\0hpcstack')",
        'connect("\\x00hpcstack")',
        "socat ABSTRACT-LISTEN:hpcstack",
        'Path(tempfile.gettempdir()) / f"hpcstack-{os.getuid()}"',
        "Path(gettempdir(), 'hpcstack-x')",
        "os.path.join(tempfile.gettempdir(), 'hpcstack-x')",
        "Path('/tmp').joinpath('hpcstack')",
        "/tmp/$USER.hpcstack",
        "TMP=/tmp; mkdir $TMP/hpcstack-$UID",
        'path = "/tmp/" + name',
        'mkdir "${TMPDIR:-/tmp}/hpcstack-x"',
        "x = '/tmp/x'  # uuid4()",
    ],
)
def test_t13_the_search_finds_such_a_name(line: str, tmp_path: Path) -> None:
    (tmp_path / "file.sh").write_text(f"{line}\n")
    (code,) = read_code(tmp_path / "file.sh")
    assert SHARED_PLACE.search(code)
    assert not DRAWN.search(code)


# -- T13: a folder for a node's tasks


def make_own_folder(tmpdir: Path) -> subprocess.CompletedProcess[str]:
    script = data.read_script("on-node/own-folder.sh") + 'own_folder mounts && echo "$own"'
    return subprocess.run(
        ["sh", "-c", script],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmpdir)},
        capture_output=True,
        text=True,
        check=False,
    )


def put_in_the_way(path: Path, how: str) -> None:
    """Make what another user would leave at PATH."""
    if how == "another user's folder":
        path.mkdir()
        os.chown(path, NOBODY, NOBODY)
    elif how == "a link to a folder of the user's":
        mine = path.with_name("mine")
        mine.mkdir(mode=0o700)
        path.symlink_to(mine)
    elif how == "the user's own folder, which others may write":
        path.mkdir()
        path.chmod(0o777)
    else:
        path.write_text("a file")


@root
@pytest.mark.parametrize(
    "how",
    [
        "another user's folder",
        "a link to a folder of the user's",
        "the user's own folder, which others may write",
        "a file",
    ],
)
def test_t13_whoever_takes_the_name_holds_nothing_up(tmp_path: Path, how: str) -> None:
    taken = tmp_path / f"hpcstack-mounts-{os.getuid()}"
    put_in_the_way(taken, how)
    first = make_own_folder(tmp_path)
    own = Path(first.stdout.strip())
    assert first.returncode == 0, first.stderr
    assert own != taken
    assert not own.is_symlink()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    # Another task finds the same one, whatever others have put beside it.
    put_in_the_way(Path(f"{taken}.aaaaaa"), "another user's folder")
    assert make_own_folder(tmp_path).stdout == first.stdout


def test_t13_where_nobody_is_in_the_way_all_tasks_have_the_plain_name(tmp_path: Path) -> None:
    names = {make_own_folder(tmp_path).stdout.strip() for _ in range(3)}
    assert names == {str(tmp_path / f"hpcstack-mounts-{os.getuid()}")}


def test_t13_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    assert make_own_folder(tmp_path / "missing").returncode != 0


# -- T13: what a job serves


def test_t13_no_two_jobs_serve_in_a_folder_that_others_know() -> None:
    folders = {Served("jupyter").folder for _ in range(100)}
    assert len(folders) == 100
    assert all(re.fullmatch(r"/tmp/hpcstack-page-JOB-[0-9a-f]{12}", one) for one in folders)


# -- T13: the socket of a debugger


@root
def test_t13_a_stranger_who_has_the_debuggers_name_is_passed_over(tmp_path: Path) -> None:
    """He listens first, in folders whose names begin as ours do, and under the name of once."""
    program = tmp_path / "program.py"
    program.write_text("print('done')\n")
    job = f"t13{uuid.uuid4().hex[:12]}"
    env = {**os.environ, "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "RANK": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    beginning = f"hpcstack-debug-{os.getuid()}-{job}.0-1"
    listen = (
        "import os, socket, time\n"
        f"os.setuid({NOBODY})\n"
        "held = []\n"
        "for ending in ('.00000000', '.zzzzzzzz'):\n"
        f"    folder = '/tmp/{beginning}' + ending\n"
        "    os.mkdir(folder, 0o755)\n"
        "    held.append(socket.socket(socket.AF_UNIX)); held[-1].bind(folder + '/socket')\n"
        f"held.append(socket.socket(socket.AF_UNIX)); held[-1].bind('\\0{beginning}')\n"
        "for one in held: one.listen(1)\n"
        "print('listens', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", listen], stdout=subprocess.PIPE, text=True
    ) as stranger:
        assert stranger.stdout
        assert stranger.stdout.readline() == "listens\n"
        rank = subprocess.Popen(
            wrap_debugged(1, ("program.py",)), env=env, cwd=tmp_path, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert rank.stderr
            assert "waits for its debugger" in rank.stderr.readline()
            (own,) = [one for one in Path("/tmp").glob(f"{beginning}.*") if not one.stat().st_uid]
            assert stat.S_IMODE(own.stat().st_mode) == 0o700
            talked = subprocess.run(
                make_debug_client("1"), env=env, input="c\n", capture_output=True, text=True,
                check=False, timeout=30,
            )  # fmt: skip
            said, _ = rank.communicate(timeout=30)
        finally:
            rank.kill()
            stranger.kill()
            for folder in Path("/tmp").glob(f"{beginning}.*"):
                if folder.stat().st_uid == NOBODY:
                    shutil.rmtree(folder)
    assert "(pdb)" in talked.stdout, talked.stderr
    assert said == "done\n"
    assert list(Path("/tmp").glob(f"{beginning}.*")) == [], "it has taken its folder away"


# -- T6: the quickstart's registry

START = """\
set -eu
cd {repo}
. ci/quickstart-user.sh
mkdir -p {top}/registry
start_registry {top}
echo "$port $registry_pid $STANDIN_LOGIN"
"""


@pytest.fixture
def quickstart(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of a registry as `ci/quickstart` without root starts it, and its login."""
    script = START.format(repo=REPO, top=tmp_path)
    done = subprocess.run(
        ["bash", "-c", script], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    port, process, login = done.stdout.split()
    yield f"127.0.0.1:{port}", login
    subprocess.run(["kill", process], check=True)


def push(address: str, login: str) -> str:
    """Begin to push to the registry at ADDRESS with LOGIN; return the HTTP status."""
    url = f"http://{address}/v2/nvidia/pytorch/blobs/uploads/"
    argv = ["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", "-X", "POST", "-K", "-", url]
    asked = f'user = "{login}"\n' if login else ""
    done = subprocess.run(argv, input=asked, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout


@pytest.mark.registry
def test_t6_nobody_else_pushes_to_the_quickstarts_registry(quickstart: tuple[str, str]) -> None:
    address, login = quickstart
    user = login.partition(":")[0]
    assert push(address, "") == "401"
    assert push(address, f"{user}:guessed") == "401"
    assert push(address, login) == "202"


@pytest.mark.registry
def test_t6_its_login_is_this_users_alone(quickstart: tuple[str, str], tmp_path: Path) -> None:
    password = quickstart[1].partition(":")[2]
    for name in ("login.json", "htpasswd"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert password not in (tmp_path / "registry.yml").read_text()
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert password not in shown.stdout


@root
@pytest.mark.registry
def test_t6_a_stranger_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    listen = (
        "import os, socket, time\n"
        f"os.setuid({NOBODY})\n"
        "one = socket.socket(); one.bind(('127.0.0.1', 0)); one.listen(1)\n"
        "print(one.getsockname()[1], flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", listen], stdout=subprocess.PIPE, text=True
    ) as stranger:
        assert stranger.stdout
        port = stranger.stdout.readline().strip()
        asks = f". ci/quickstart-user.sh; listens_here {port}"
        done = subprocess.run(["bash", "-c", asks], cwd=REPO, check=False)
        stranger.kill()
    assert done.returncode == 1
