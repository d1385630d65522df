"""Runs Slurm's own commands on this node for programs in a container of the same user's.

A client in the container (in-image/slurm_client.py) connects to SOCKET, an abstract Unix socket,
and says what was typed there. Its standard streams come with it, as descriptors; so nothing of what
it reads and writes passes through here. Only this user is served. The helper ends with the step:
with the slurmstepd that is an ancestor of PARENT.

Arguments: SOCKET PARENT STEP. STEP is a file that says how the container was started.

Needs Python 3.6, as nodes have it.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from slurm_lines import (  # beside this file, which -I leaves out
    IN_STEP,
    ImageInserter,
    RefusedError,
    Spelling,
    extract_wrap,
    find_folder,
    is_on_host,
    join_options,
    leave_job,
    list_directives,
    make_environment,
    names_an_image,
    read_options,
    split_job,
    write_batch_script,
)

ABOUT_ITSELF = ("--help", "-h", "--usage", "--version", "-V")
HELP_S = 20  # for the answer to --help
LONGEST = 64 << 20  # bytes of one message
SAME_S = 0.5  # a signal that comes twice within these seconds was sent to the whole step
STARTING = threading.Lock()  # umask and limits are the whole process's
RUNNING = set()  # the programs of all clients
HEARD = {}  # {signal: when it was heard here}


# -- text and bytes: a locale of the node's may know no more than ASCII


def encode(text):
    """Return the bytes that TEXT stands for."""
    return text.encode("utf-8", "surrogateescape")


def decode(data):
    """Return the text that stands for DATA."""
    return data.decode("utf-8", "surrogateescape")


def read_environment():
    """Return this program's own variables."""
    return {decode(name): decode(value) for name, value in os.environb.items()}


# -- one client


class Connection:
    """What is said between a client and the helper: JSON, a line each."""

    def __init__(self, connected):
        self.socket = connected
        self.rest = b""
        self.lock = threading.Lock()

    def receive(self):
        """Return the next message; None when the client has gone or sent something invalid."""
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
        try:
            message = json.loads(line.decode())
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

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
    path = encode(request["cwd"])
    try:
        there = os.stat(path)
    except OSError:
        return None
    return path if [there.st_dev, there.st_ino] == request["cwd_is"] else None


class ClientSession:
    """One client, and the program that runs for it."""

    def __init__(self, connected, step):
        self.connection = Connection(connected)
        self.step = step
        self.streams = []
        self.request = {}
        self.cwd = None  # the client's, where it is a folder of the node's
        self.folder = ""  # made for it

    def serve(self):
        """Do what the client asks for, and say how it ended."""
        try:
            self.streams = receive_streams(self.connection.socket)
            self.request = self.connection.receive()
            if self.request:
                self.run()
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

    def run(self):
        """Run what was typed to its end, and hand on the client's signals meanwhile."""
        argv = self.request["argv"]
        if argv[0] not in self.step["commands"]:
            raise RefusedError(f"{argv[0]} is not a Slurm command")
        if not shutil.which(argv[0]):
            raise RefusedError(f"{argv[0]} is not installed on this node")
        self.cwd = find_cwd(self.request)
        argv, environ = self.prepare(argv)
        # From here on the client hands signals on. Before, they end it.
        self.connection.send(starting=True)
        if self.connection.receive() is None:
            return
        program = self.start(argv, environ)
        self.close_streams()
        RUNNING.add(program)
        threading.Thread(target=self.forward_signals, args=(program,), daemon=True).start()
        status = program.wait()
        RUNNING.discard(program)
        self.connection.send(**({"signal": -status} if status < 0 else {"status": status}))

    def start(self, argv, environ):
        """Start ARGV with the client's streams, umask and limits."""
        with STARTING:
            umask = os.umask(self.request["umask"])
            wanted = self.request["limits"]
            own = {name: resource.getrlimit(getattr(resource, name)) for name in wanted}
            try:
                for name, soft in wanted.items():
                    set_limit(getattr(resource, name), soft)
                return subprocess.Popen(
                    [encode(word) for word in argv],
                    stdin=self.streams[0],
                    stdout=self.streams[1],
                    stderr=self.streams[2],
                    cwd=self.cwd,
                    env={encode(name): encode(value) for name, value in environ.items()},
                    start_new_session=True,
                )
            except OSError as error:
                raise RefusedError(f"{argv[0]} cannot be started: {error.strerror}") from None
            finally:
                os.umask(umask)
                for name, limit in own.items():
                    resource.setrlimit(getattr(resource, name), limit)

    def prepare(self, argv):
        """Return the line ARGV and its variables, so that what it starts is in the image."""
        theirs = self.request["environ"]
        environ, carried = make_environment(read_environment(), theirs, self.step["image"])
        program, words = argv[0], argv[1:]
        if program == "srun" and self.step["is_in_step"]:
            # The step that it is typed in has the resources, and would not end for it.
            environ.setdefault("SLURM_OVERLAP", "1")
        if is_on_host(theirs):
            return argv, leave_job(environ) if program == "sbatch" else environ

        if program == "salloc" and not {"--no-shell", *ABOUT_ITSELF}.intersection(words):
            raise RefusedError(
                "salloc would start its command outside the image\n"
                "  TIP: srun --pty bash, or salloc --no-shell"
            )
        if program == "sbatch":
            words, is_inside = self.prepare_batch(words)
            environ = leave_job(environ)
            return ["sbatch", *words], {**environ, **carried} if is_inside else environ
        if program == "srun":
            insertion = ImageInserter(self.step, self.load_spelling("srun"), theirs)
            words = insertion.insert_words(words)
            if insertion.is_made:
                folder = os.path.join(self.request["cwd"], insertion.folder or "")
                environ.update(carried)
                environ.update({"HPCSTACK_SLURM_PWD": folder.rstrip("/") or "/", IN_STEP: "yes"})
        return [program, *words], environ

    def load_spelling(self, program):
        """Return the options of PROGRAM, which itself says what plugins add."""
        options = self.step["options"][program]
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
        return Spelling(options["valued"], options["others"], said)

    def prepare_batch(self, words):
        """Return the WORDS behind `sbatch`, with a script that runs theirs in the image.

        Also return whether that script runs in the image.
        """
        spelling = self.load_spelling("sbatch")
        before, options, rest = split_job(words, spelling)
        if names_an_image(options) or {one.name for one in options}.intersection(ABOUT_ITSELF):
            return words, False

        text, options = extract_wrap(options)
        name = "wrap"
        if text is None:
            name = os.path.basename(rest[0]) if rest else "sbatch"
            text = self.ask_for_script(rest[0] if rest else "-")
        directives, _ = read_options(list_directives(text), spelling)
        is_inside = text.startswith("#!") and not names_an_image(directives)
        if is_inside:
            cwd = self.request["cwd"]
            folder = find_folder(options, find_folder(directives, cwd))
            text = write_batch_script(text, self.step, folder)
        if self.cwd is None:
            where = decode(os.getcwdb())
            says = f"{self.request['cwd']} is only in the image: the job's output goes to {where}"
            self.connection.send(says=says)
        path = self.write_script(name, text)
        return [*before, *join_options(options), path, *rest[1:]], is_inside

    def ask_for_script(self, path):
        """Return the text of the script at PATH in the container, - for the client's stdin."""
        self.connection.send(read=path)
        answer = self.connection.receive()
        if answer is None or "text" not in answer:
            raise RefusedError((answer or {}).get("error", "the script was not received"))
        return answer["text"]

    def write_script(self, name, text):
        """Return the path of a file called NAME, after which sbatch names the job, with TEXT."""
        self.folder = tempfile.mkdtemp(prefix="hpcstack-sbatch-")
        path = os.path.join(self.folder, name)
        with open(encode(path), "wb") as file:
            file.write(encode(text))
        return path

    def forward_signals(self, program):
        """Give PROGRAM the client's signals. End it when the client has gone."""
        while True:
            message = self.connection.receive()
            if message is None:
                break
            number = message.get("signal", 0)
            if number and program.poll() is None and not reached_whole_step(number):
                program.send_signal(number)
        for number, patience in ((signal.SIGHUP, 5), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            if program.poll() is not None:
                return
            program.send_signal(signal.SIGCONT)
            program.send_signal(number)
            until = time.monotonic() + patience
            while time.monotonic() < until and program.poll() is None:
                time.sleep(0.1)


def set_limit(number, soft):
    """Set the soft limit NUMBER to SOFT, or as far as the hard one allows."""
    hard = resource.getrlimit(number)[1]
    if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
        soft = hard
    resource.setrlimit(number, (soft, hard))


def reached_whole_step(number):
    """Return whether the signal NUMBER has just come here as well.

    It was sent to every process of the step then, and the program has got it.
    """
    time.sleep(0.05)
    return time.monotonic() - HEARD.get(number, -SAME_S) < SAME_S


# -- the helper

# Slurm sends a signal meant for the ranks to every process of the step. The helper survives it: ranks
# may still need Slurm.
UNHEEDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGURG, signal.SIGALRM,
)  # fmt: skip


def note_signal(number, _frame):
    """Note when a signal came. It is not ignored, which the programs started here would inherit."""
    HEARD[number] = time.monotonic()


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
        try:
            connected, _ = service.accept()
            if read_peer(connected) != os.getuid():
                connected.close()
                continue
            threading.Thread(target=ClientSession(connected, step).serve, daemon=True).start()
        except (OSError, RuntimeError):
            time.sleep(0.1)  # no descriptor or no thread is left: some will be free again


def read_step(path):
    """Return what the file PATH says of the step; mark it as used."""
    with open(path, encoding="utf-8") as file:
        step = json.load(file)
    with contextlib.suppress(OSError):
        os.utime(path)
    return {**step, "is_in_step": IN_STEP in os.environ}


def main():
    """Serve until the step has ended."""
    name, parent, path = sys.argv[1:4]
    for number in UNHEEDED:
        signal.signal(number, note_signal)
    os.setsid()
    os.closerange(3, 1024)
    stepd = find_stepd(int(parent)) or int(parent)
    step = read_step(path)
    service = socket.socket(socket.AF_UNIX)
    service.bind("\0" + name)
    service.listen(128)
    # From here on it holds nothing of the task's: slurmstepd waits for the end of its output.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    threading.Thread(target=accept_clients, args=(service, step), daemon=True).start()
    while is_running(stepd):
        time.sleep(1)
    end_programs()


def end_programs():
    """End what still runs for clients, and this program."""
    for number in (signal.SIGHUP, signal.SIGKILL):
        running = [program for program in list(RUNNING) if program.poll() is None]
        for program in running:
            program.send_signal(number)
        if running:
            time.sleep(2)
    os._exit(0)


if __name__ == "__main__":
    main()
