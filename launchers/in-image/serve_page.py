"""Runs JupyterLab, TensorBoard or a kernel of Jupyter's, in a folder that nobody but its user can open.

JupyterLab and TensorBoard listen on a Unix socket there, and not on the network: `hpcstack tunnel`
reaches the socket through a step of the job. The file `page` says what a browser has to ask for.
The folder goes with the program.

Arguments: jupyter|tensorboard|kernel COMMAND... HPCSTACK_SERVED names the folder; JOB in it stands
for the job's number. It is no argument, since everybody on the node can read those: whoever knew
the name could take it first.

Needs Python 3.6, as images have it.
"""

import contextlib
import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import sys
import time
import traceback

KIND, *COMMAND = sys.argv[1:]
FOLDER = os.environ.pop("HPCSTACK_SERVED").replace("JOB", os.environ.get("SLURM_JOB_ID", ""))
SOCKET = f"{FOLDER}/socket"
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def write_private(name, text):
    """Write TEXT into the file NAME of the folder, complete from the moment that it is there."""
    with open(f"{FOLDER}/{name}.part", "w") as file:
        file.write(text)
    os.rename(f"{FOLDER}/{name}.part", f"{FOLDER}/{name}")
    return f"{FOLDER}/{name}"


def find_version(package):
    """Return the first two numbers of the version of PACKAGE in this image; (0, 0) without it."""
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7 and older
        import pkg_resources

        find, missing = (
            lambda name: pkg_resources.get_distribution(name).version,
            pkg_resources.DistributionNotFound,
        )
    else:
        find, missing = metadata.version, metadata.PackageNotFoundError
    try:
        numbers = re.findall(r"\d+", find(package))
    except missing:
        return (0, 0)
    return tuple(int(one) for one in [*numbers, "0"][:2])


def hide_debugger():
    """Keep kernels from offering a debugger: debugpy listens on a port of the node, without a login.

    Whoever is on the node could run programs as this user by it.
    """
    os.mkdir(f"{FOLDER}/hidden", 0o700)
    write_private("hidden/debugpy.py", 'raise ImportError("hpcstack: debugpy is open to others")\n')
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{FOLDER}/hidden" + (f":{others}" if others else "")


def write_jupyter_config(server, token):
    """Write settings that hold whatever the user's own say; those are for a server on a port.

    https://jupyter.readthedocs.io/en/stable/use/jupyter-directories.html
    """
    settings = {
        server: {"token": token, "port": 8888, "certfile": "", "keyfile": ""},
        "IdentityProvider": {"token": token},
    }
    os.mkdir(f"{FOLDER}/config", 0o700)
    for name in ("jupyter_lab", "jupyter_server", "jupyter_notebook"):
        write_private(f"config/{name}_config.json", json.dumps(settings))
    others = os.environ.get("JUPYTER_CONFIG_PATH")
    os.environ["JUPYTER_CONFIG_PATH"] = f"{FOLDER}/config" + (f":{others}" if others else "")
    for name in ("JUPYTER_TOKEN", "JUPYTER_PORT"):  # they would win over the settings
        os.environ.pop(name, None)


def become_jupyter(command):
    """Become JupyterLab, by COMMAND.

    Its kernels talk through sockets in the same folder. By default they would listen on ports of
    the node, and what they print can be read there by anybody.
    """
    # JupyterLab 2 is served by the classic notebook. What is too old for a socket would listen on a
    # port instead, without a word.
    if find_version("jupyterlab") >= (3, 0):
        server, package, oldest = "ServerApp", "jupyter-server", (1, 7)
    else:
        server, package, oldest = "NotebookApp", "notebook", (6, 1)
    found = find_version(package)
    if found < oldest:
        wanted = ".".join(map(str, oldest))
        raise OSError(
            f"it needs {package} {wanted} or newer, and the image has {found[0]}.{found[1]}"
        )

    hide_debugger()
    token = secrets.token_hex(24)
    write_jupyter_config(server, token)
    os.environ["JUPYTER_RUNTIME_DIR"] = FOLDER
    write_private("page", f"jupyter /lab?token={token}\n")

    options = ["--no-browser", f"--{server}.sock={SOCKET}", "--KernelManager.transport=ipc"]
    options.append(f"--{server}.port=8888")  # another one and a socket exclude each other
    if os.getuid() == 0:  # a container's root, who is an ordinary user outside
        options.append("--allow-root")
    # What the user has typed comes last, and wins.
    os.execvp(command[0], [*command[:2], *options, *command[2:]])


def become_tensorboard(command):
    """Become TensorBoard, with the arguments of COMMAND, which is `tensorboard ARGUMENTS...`."""
    from tensorboard import default, program
    from werkzeug import serving

    class SocketServer(program.TensorBoardServer):
        """TensorBoard's pages on the socket. Of its own it serves on a port, without a login."""

        def __init__(self, wsgi_app, _flags):
            self.server = serving.make_server(f"unix://{SOCKET}", 0, wsgi_app, threaded=True)

        def serve_forever(self):
            write_private("page", "tensorboard /\n")
            self.server.serve_forever()

        def get_url(self):
            return "http://localhost:6006/"  # where the tunnel ends

    # Where it keeps what tells other TensorBoards of this one.
    os.environ["TMPDIR"] = FOLDER
    # Its faster reader of logs is a server on a port, which everybody on the node can ask.
    slow = ["--load_fast=false"] if find_version("tensorboard") >= (2, 5) else []
    arguments = [*slow, *command[1:]]
    board = program.TensorBoard(default.get_plugins(), server_class=SocketServer)
    board.configure([command[0], *arguments])
    return board.main()


def become_kernel(command):
    """Become a kernel, by COMMAND, that is connected as HPCSTACK_KERNEL_KEY says.

    That is a connection file of Jupyter's. It holds a key, so it is in no argument.
    """
    file = write_private("connection.json", os.environ.pop("HPCSTACK_KERNEL_KEY"))
    hide_debugger()
    end_with_parent()  # it is in no group that somebody else ends
    # Jupyter has started it, so it need not say how it is reached; 1 is no process to watch.
    os.environ["JPY_PARENT_PID"] = "1"
    # It interrupts its whole process group where it leads one, so also what a cell has started.
    os.setpgid(0, 0)
    os.execvp(command[0], [*command, "-f", file])


def end_with_parent():
    """Have the kernel kill this process when the one that waits for it is gone."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, prctl(2)


BECOME = {"jupyter": become_jupyter, "tensorboard": become_tensorboard, "kernel": become_kernel}


def start():
    """Start the command as a process of its own, and return its number."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    child = os.fork()
    if child == 0:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        become()

    def end(_number, _frame):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)

    for number in ENDING:
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return child


def become():
    """Turn this process into the command; it does not return."""
    status = 127
    try:
        if not os.access(os.path.expanduser("~"), os.W_OK):
            for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
                os.environ[name] = f"{FOLDER}/{name.lower()}"
        os.environ.pop("JPY_PARENT_PID", None)  # of a Jupyter that this was started from
        status = BECOME[KIND](COMMAND)
    except (OSError, ImportError) as error:
        sys.stderr.write(f"hpcstack: {COMMAND[0]}: {error}\n")
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:  # what stands around the call in main() is the other process's
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status or 0)


def wait_for(child):
    """Wait until CHILD ends; return its status as a shell says it.

    HPCSTACK_KERNEL_OF is a process of this machine without which a kernel is nobody's: Apptainer
    itself does not end with it.
    """
    owner = os.environ.get("HPCSTACK_KERNEL_OF")
    ended, status = os.waitpid(child, os.WNOHANG if owner else 0)
    while not ended:
        time.sleep(0.2)
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended and not os.path.exists(f"/proc/{owner}"):
            os.kill(child, signal.SIGKILL)
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def make_folder():
    """Make the folder. One of this user's that is there is of a job that was killed and came back."""
    with contextlib.suppress(OSError):
        if os.lstat(FOLDER).st_uid == os.getuid():
            shutil.rmtree(FOLDER)
    try:
        os.mkdir(FOLDER, 0o700)
    except OSError as error:
        sys.stderr.write(f"hpcstack: {FOLDER} cannot be made: {error.strerror}\n")
        sys.exit(1)


def main():
    os.umask(0o077)
    make_folder()
    try:
        sys.exit(wait_for(start()))
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    main()
