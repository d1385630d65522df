"""Runs Slurm's own commands on this node for programs in a container of the same user's.

A client in the container (in-image/slurm_client.py) connects to SOCKET, an abstract Unix socket,
and says what was typed there. Its standard streams come with it, as descriptors; so nothing of what
it reads and writes passes through here. Only this user is served, and the helper ends with the
step: with the slurmstepd that is an ancestor of PARENT.

Arguments: SOCKET PARENT STEP. STEP is a file that says how the container was started, so that a
step or a batch job that is started from inside runs in the same image (runtimes/slurm_inside.py).

Needs Python 3.6, as nodes have it.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "sdiag",
    "sinfo", "sprio", "squeue", "sreport", "sshare", "sstat", "srun", "strigger",
)  # fmt: skip
HELP_S = 20  # for the answer to --help
LONGEST = 64 << 20  # bytes of one message
# Variables of the image that a program of the host's must not get. What it starts in the image gets
# them. A star stands for any end.
CARRIED = (
    "PATH", "LD_*", "PYTHON*", "PERL*", "BASH_ENV", "ENV", "GCONV_PATH", "GLIBC_*", "GETCONF_DIR",
    "LOCPATH", "MALLOC_*", "NLSPATH", "VIRTUAL_ENV*", "CONDA_*",
)  # fmt: skip
# Variables that are one thing on the node, and another in a container
OF_THE_NODE = (
    "HOME", "SHELL", "USER", "LOGNAME", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "HOSTNAME", "_",
    "SLURM_CONF", "APPTAINER*", "SINGULARITY*", "ENROOT_*", "PYXIS_*", "CH_*", "CONTAINER*",
    "container", "PODMAN_*", "XDG_*", "DBUS_*", "HPCSTACK_*", "BASH_FUNC_*",
)  # fmt: skip
# Slurm's own: as the caller has them, and none that it does not have.
OF_SLURM = re.compile(
    r"(SLURM|SBATCH|SALLOC|SACCT|SATTACH|SCANCEL|SCONTROL|SINFO|SPRIO|SQUEUE|SSHARE|SSTAT)_"
)
PREFIX = "HPCSTACK_INSIDE_"
OF_THE_LAUNCH = ("SLURM_EXIT_ERROR",)  # set for the step of the launch itself
# Meant for the container of the step that this helper is of
OF_THE_STEP = (PREFIX + "*", "HPCSTACK_SLURM_BATCH", "HPCSTACK_SLURM_PWD", "HPCSTACK_SLURM_SOCKET")
OF_NO_JOB = (
    "SLURM_CLUSTERS", "SLURM_CONF", "SLURM_DEBUG_FLAGS", "SLURM_JWT", "SLURM_TIME_FORMAT",
    "SLURM_UMASK",
)  # fmt: skip
ON_HOST = "HPCSTACK_ON_HOST"
# Set where the containers are those of a step that was started from inside, and holds resources
IN_STEP = "HPCSTACK_SLURM_STEP"
RUNNING = set()  # the programs of all clients


class RefusedError(Exception):
    """What was typed cannot be done."""


# -- what was typed


def list_valued(program, step):
    """Return the options of PROGRAM that a value follows, and all that are known.

    STEP has Slurm's own. Those of plugins are in PROGRAM's --help.
    """
    options = step["options"][program]
    valued = set(options["valued"])
    known = valued.union(options["others"])
    try:
        done = subprocess.run(
            [program, "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=HELP_S,
            check=False,
        )
        said = done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired:
        said = ""
    for name, sign in re.findall(r"^\s*(--[a-z][a-z0-9-]*)(=?)", said, re.MULTILINE):
        if name not in known and sign:
            valued.add(name)
        known.add(name)
    return valued, known


def count_options(words, valued, known):
    """Return how many of WORDS, from the first one on, are options and their values.

    As getopt_long(3) has it: VALUED are the options that a value follows, and a unique beginning of
    one of the KNOWN ones means that one.
    """
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return place + 1
        if not word.startswith("-") or word == "-":
            return place
        place += 1
        if word.startswith("--"):
            if "=" not in word and _resolve(word, known) in valued:
                place += 1
        elif _takes_next(word, valued):
            place += 1
    return len(words)


def _resolve(word, known):
    fitting = [name for name in known if name.startswith(word)]
    return word if word in known or len(fitting) != 1 else fitting[0]


def _takes_next(word, valued):
    """Return whether the value of the short options in WORD, such as -lN, is the next word."""
    for number, letter in enumerate(word[1:], 1):
        if "-" + letter in valued:
            return number == len(word) - 1
        if not letter.isalpha():
            return False
    return False


def names_a_container(options):
    """Return whether OPTIONS choose an image, or the host, themselves."""
    return any(word.startswith("--container") for word in options)


def insert_words(argv, step, valued, known):
    """Return the line ARGV of srun, whose command runs in the same image.

    It stays as it is where it has no command, or names a container of its own.
    """
    out = [argv[0]]
    components = [[]]
    for word in argv[1:]:
        if word == ":":
            components.append([])
        else:
            components[-1].append(word)
    for number, words in enumerate(components):
        if number:
            out.append(":")
        count = count_options(words, valued, known)
        options, command = words[:count], words[count:]
        if command and not names_a_container(options):
            _check_options(options, step)
            if options[-1:] == ["--"]:
                options.pop()
            if step["is_in_step"] and "--overlap" not in options:
                # The step that it is typed in has the resources, and would not end for it.
                options.append("--overlap")
            out += [*options, *step["words"], *command]
        else:
            out += words
    return out


def _check_options(options, step):
    """Raise RefusedError for options whose command is no command, but for a file of srun's."""
    for word in options:
        name = word.partition("=")[0]
        if name in ("--multi-prog", "--bcast") and not step["by_srun"]:
            raise RefusedError(
                f"{name} does not go with a container that srun does not start itself\n"
                f"  TIP: {ON_HOST}=yes srun ... starts it outside the image"
            )


def read_folder(options, folder):
    """Return the folder that OPTIONS say (--chdir, -D), or else FOLDER."""
    for number, word in enumerate(options):
        following = options[number + 1] if number + 1 < len(options) else ""
        if word.startswith("--chdir="):
            folder = os.path.join(folder, word.partition("=")[2])
        elif word in ("--chdir", "-D"):
            folder = os.path.join(folder, following)
        elif word.startswith("-D"):
            folder = os.path.join(folder, word[2:])
    return folder


# -- batch scripts

SAVE = """\
# The script is to see the job's own variables, and not those of the step that srun makes for it.
for name in $(env -0 | tr '\\n\\0' ' \\n' | sed -n 's/^\\(SLURM_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
    eval "export \\"HPCSTACK_INSIDE_$name=\\$$name\\""
    case $name in SLURM_CONF | SLURM_JOB_ID | SLURM_JOBID | SLURM_CLUSTERS) ;; *) unset "$name" ;; esac
done
export HPCSTACK_SLURM_BATCH=yes
"""
STEP_OF_THE_SCRIPT = (
    "srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mpi=none", "--mem=0",
    "--export=ALL", "--quiet", "--unbuffered", "--job-name=script",
)  # fmt: skip


def list_head(text):
    """Return the comments and empty lines at the head of the script TEXT, but for the first line."""
    out = []
    for line in text.split("\n")[1:]:
        if line.strip() and not line.lstrip().startswith("#"):
            break
        out.append(line)
    return out


def list_directives(text):
    """Return the words of the #SBATCH lines at the head of the script TEXT."""
    lines = [line for line in list_head(text) if line.startswith("#SBATCH")]
    return [word for line in lines for word in line.split()[1:]]


def write_batch_script(text, step, folder):
    """Return a batch script that runs the script TEXT in the same image, in FOLDER.

    The comments at the head of TEXT, with its #SBATCH lines, are at its head too.
    """
    head = [line + "\n" for line in list_head(text)]
    end = "END_OF_SCRIPT"
    while end in text:
        end += "_"
    lines = [
        "#!/bin/sh\n",
        *head,
        "# The script was submitted from inside an image, and runs in it; it is at the end of this file.\n",
    ]
    for name, value in sorted(step["environment"].items()):
        # lost where the job is submitted with --export=NONE
        lines.append(f'[ -n "${{{name}+set}}" ] || {name}={shlex.quote(value)}\nexport {name}\n')
    lines.append(f"export HPCSTACK_SLURM_PWD={shlex.quote(folder)}\n")
    words = list(step["words"])
    if step["by_srun"]:
        lines.append(SAVE)
        node = '--nodelist="$SLURMD_NODENAME"'
        words = [*STEP_OF_THE_SCRIPT, node, *map(shlex.quote, words)]
    else:
        words = [shlex.quote(word) for word in words]
    run = " ".join([*words, shlex.quote(step["script"])])
    lines.append(f"exec {run} \"$@\" <<'{end}'\n{text}")
    lines.append("" if text.endswith("\n") else "\n")
    lines.append(end + "\n")
    return "".join(lines)


# -- the environment


def begins(name, beginnings):
    """Return whether NAME is one of BEGINNINGS, or begins with one before its star."""
    return any(
        name.startswith(one[:-1]) if one.endswith("*") else name == one for one in beginnings
    )


def make_environment(own, theirs, image):
    """Return the variables for a program of the host's that somebody in the image has started.

    OWN are the node's and THEIRS the caller's; IMAGE names the image's own. What a program of the
    host's must not get, and what the image would override, comes under another name; it is there
    again where the program starts something in the image (in-image/slurm.sh).
    """
    out = {
        name: value
        for name, value in own.items()
        if (name in OF_THE_NODE or not OF_SLURM.match(name)) and not begins(name, OF_THE_STEP)
    }
    for name, value in theirs.items():
        if begins(name, OF_THE_NODE) or name in OF_THE_LAUNCH:
            continue
        is_carried = begins(name, CARRIED)
        if not is_carried:
            out[name] = value
        if is_carried or (name in image and not name.endswith("_VISIBLE_DEVICES")):
            out[PREFIX + name] = value
    return out


def leave_job(environ):
    """Take out of ENVIRON what is of the job that a new job is submitted from."""
    for name in list(environ):
        if name == IN_STEP or (name.startswith("SLURM_") and name not in OF_NO_JOB):
            del environ[name]


# -- one client


class Connection:
    """What is said between a client and the helper: JSON, a line each."""

    def __init__(self, connected):
        self.socket = connected
        self.rest = b""
        self.lock = threading.Lock()

    def receive(self):
        """Return the next message; None where the client has gone."""
        while b"\n" not in self.rest:
            if len(self.rest) > LONGEST:
                return None
            try:
                data = self.socket.recv(1 << 16)
            except OSError:
                return None
            if not data:
                return None
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line.decode())

    def send(self, **message):
        """Send MESSAGE. A client that has gone does not hear it."""
        try:
            with self.lock:
                self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass


def receive_streams(connected):
    """Return the three descriptors that come with the first byte."""
    space = socket.CMSG_SPACE(3 * struct.calcsize("i"))
    _, ancillary, _, _ = connected.recvmsg(1, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    found = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            count = len(data) // struct.calcsize("i")
            found += struct.unpack(f"{count}i", data[: count * struct.calcsize("i")])
    if len(found) != 3:
        for one in found:
            os.close(one)
        raise RefusedError("three streams are needed")
    return found


def read_peer(connected):
    """Return the user id of the process at the other end."""
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", data)[1]


def find_cwd(request):
    """Return the client's working directory if it is a folder of this node's too, else None."""
    try:
        there = os.stat(request["cwd"])
    except OSError:
        return None
    return request["cwd"] if [there.st_dev, there.st_ino] == request["cwd_is"] else None


class Caller:
    """One client, and the program that runs for it."""

    def __init__(self, connected, step):
        self.connection = Connection(connected)
        self.step = step
        self.streams = []
        self.folder = ""  # made for it

    def serve(self):
        """Do what the client asks for, and say how it ended."""
        try:
            self.streams = receive_streams(self.connection.socket)
            request = self.connection.receive()
            if request:
                self.run(request)
        except RefusedError as error:
            self.connection.send(error=str(error))
        except Exception as error:
            self.connection.send(error=f"the helper on this node failed: {error!r}")
        finally:
            self.close_streams()
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)
            self.connection.socket.close()

    def close_streams(self):
        while self.streams:
            os.close(self.streams.pop())

    def run(self, request):
        """Run what REQUEST asks for to its end, and hand on the client's signals meanwhile."""
        argv = request["argv"]
        if argv[0] not in COMMANDS:
            raise RefusedError(f"{argv[0]} is none of Slurm's commands")
        if not shutil.which(argv[0]):
            raise RefusedError(f"{argv[0]} is not installed on this node")
        cwd = find_cwd(request)
        environ = make_environment(os.environ, request["environ"], self.step["image"])
        environ["HPCSTACK_SLURM_PWD"] = request["cwd"]
        if ON_HOST not in request["environ"]:
            argv = self.prepare(argv, request, cwd, environ)
        try:
            program = subprocess.Popen(
                argv,
                stdin=self.streams[0],
                stdout=self.streams[1],
                stderr=self.streams[2],
                cwd=cwd,
                env=environ,
                start_new_session=True,
            )
        except OSError as error:
            raise RefusedError(f"{argv[0]} cannot be started: {error.strerror}") from None
        self.close_streams()
        RUNNING.add(program)
        threading.Thread(target=self.hand_on, args=(program,), daemon=True).start()
        status = program.wait()
        RUNNING.discard(program)
        self.connection.send(**({"signal": -status} if status < 0 else {"status": status}))

    def prepare(self, argv, request, cwd, environ):
        """Return the line ARGV as it is to be run, so that what it starts is in the image."""
        if argv[0] == "salloc" and "--no-shell" not in argv:
            raise RefusedError(
                "salloc would start a shell outside the image\n"
                "  TIP: srun --pty bash, or salloc --no-shell"
            )
        if argv[0] not in ("srun", "sbatch"):
            return argv
        valued, known = list_valued(argv[0], self.step)
        count = count_options(argv[1:], valued, known)
        options = argv[1 : count + 1]
        if argv[0] == "srun":
            environ["HPCSTACK_SLURM_PWD"] = read_folder(options, request["cwd"])
            environ[IN_STEP] = "yes"
            return insert_words(argv, self.step, valued, known)
        leave_job(environ)
        return self.prepare_batch(options, argv[count + 1 :], request["cwd"], cwd is not None)

    def prepare_batch(self, options, words, cwd, is_on_node):
        """Return a line of sbatch for the script that WORDS name, or that comes by stdin.

        IS_ON_NODE says whether CWD, the client's working directory, is a folder of the node's too.
        """
        if names_a_container(options):
            return ["sbatch", *options, *words]
        wrapped, options = take_wrapped(options)
        if wrapped is not None:
            name = "wrap"
            text = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrapped}\n"
        else:
            asks = any(word in ("--help", "-h", "--usage", "--version", "-V") for word in options)
            if asks:
                return ["sbatch", *options]
            name = os.path.basename(words[0]) if words else "sbatch"
            text = self.ask_for_script(words[0] if words else "-")
        directives = list_directives(text)
        if text.startswith("#!") and not names_a_container(directives):
            folder = read_folder(options, read_folder(directives, cwd))
            text = write_batch_script(text, self.step, folder)
        self.folder = tempfile.mkdtemp(prefix="hpcstack-sbatch-")
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
        if options[-1:] == ["--"]:
            options.pop()
        if not is_on_node:
            says = f"{cwd} is a folder of the image's: what the job prints goes to {os.getcwd()}"
            self.connection.send(says=says)
        return ["sbatch", *options, path, *words[1:]]

    def ask_for_script(self, path):
        """Return the text of the script at PATH in the container, - for the client's stdin."""
        self.connection.send(read=path)
        answer = self.connection.receive()
        if answer is None or "text" not in answer:
            raise RefusedError((answer or {}).get("error", "the script did not come"))
        return answer["text"]

    def hand_on(self, program):
        """Give PROGRAM the client's signals. End it when the client has gone."""
        while True:
            message = self.connection.receive()
            if message is None:
                break
            if "signal" in message and program.poll() is None:
                program.send_signal(message["signal"])
        for number, patience in ((signal.SIGHUP, 5), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            if program.poll() is not None:
                return
            program.send_signal(signal.SIGCONT)
            program.send_signal(number)
            until = time.monotonic() + patience
            while time.monotonic() < until and program.poll() is None:
                time.sleep(0.1)


def take_wrapped(options):
    """Return the command of --wrap in OPTIONS, None where there is none, and the others."""
    wrapped = None
    others = []
    following = False
    for word in options:
        if following:
            wrapped, following = word, False
        elif word == "--wrap":
            following = True
        elif word.startswith("--wrap="):
            wrapped = word.partition("=")[2]
        else:
            others.append(word)
    return wrapped, others


# -- the helper

# Slurm gives a signal for the ranks to every process of a step. They may still ask Slurm something.
UNHEARD = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGURG, signal.SIGALRM,
)  # fmt: skip


def find_stepd(pid):
    """Return the slurmstepd above the process PID; where /proc is hidden, what stands for it.

    Its children have its name until they become what they are to run. 0 where there is none.
    """
    found = 0
    while pid > 1:
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
                fields = dict(line.split(":", 1) for line in file if ":" in line)
        except OSError:
            return found or pid  # not this user's
        if fields["Name"].strip().startswith("slurmstepd"):
            found = pid
        pid = int(fields["PPid"])
    return found


def is_running(pid):
    """Return whether there is a process PID, whoever it belongs to."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def accept_clients(service, step):
    """Serve each client of this user's in a thread of its own."""
    while True:
        connected, _ = service.accept()
        if read_peer(connected) != os.getuid():
            connected.close()
            continue
        threading.Thread(target=Caller(connected, step).serve, daemon=True).start()


def main():
    """Serve until the step has ended."""
    name, parent, path = sys.argv[1:4]
    for number in UNHEARD:
        # not ignored, which the programs that are started here would inherit
        signal.signal(number, lambda *_: None)
    os.setsid()
    os.closerange(3, 1024)
    stepd = find_stepd(int(parent)) or int(parent)
    with open(path, encoding="utf-8") as file:
        step = json.load(file)
    step["is_in_step"] = IN_STEP in os.environ
    service = socket.socket(socket.AF_UNIX)
    service.bind("\0" + name)
    service.listen(128)
    # From here on it holds nothing of the task's: slurmstepd waits for the end of its output.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)

    threading.Thread(target=accept_clients, args=(service, step), daemon=True).start()
    while is_running(stepd):
        time.sleep(1)
    end_programs()


def end_programs():
    """End what still runs for clients."""
    for number in (signal.SIGHUP, signal.SIGKILL):
        for program in list(RUNNING):
            if program.poll() is None:
                program.send_signal(number)
        time.sleep(2)
    os._exit(0)


if __name__ == "__main__":
    main()
