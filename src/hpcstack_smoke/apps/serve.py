"""Checks of serving stacks: a server starts on each node and gives the answers that its model has.

The first task of each node starts a server over all GPUs that the step has there. Then it asks the
server of the next node, through a front that requires a key (front.py). The model is the suite's
own, so that each right answer is known (alphabet.py, kserve.py).

Tested in tests/unit/smoke/test_serving.py and tests/integration/test_serving.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack_smoke.agent import A_NODE_S
from hpcstack_smoke.apps import alphabet, completions, kserve
from hpcstack_smoke.apps.completions import Exercise, Target, WrongAnswer
from hpcstack_smoke.apps.front import Front
from hpcstack_smoke.apps.servers import Server
from hpcstack_smoke.node.host import open_gpus
from hpcstack_smoke.result import ERROR, FAIL, PASS, SKIP, Result, Skip
from hpcstack_smoke.store import find_address
from hpcstack_smoke.tasks import Task, free_port

if TYPE_CHECKING:
    from collections.abc import Callable

# until a server is ready: all nodes may read its engine from a cold disk, and compile for minutes
READY_S = 600.0
# until the task of another node has something to say
WAIT_S = 900.0
LOOK = "look at {} log in the run's folder: task-serve.*-server.log"
SOURCE = "a model of the suite's own, whose answers are known"


@dataclass(frozen=True)
class Serving:
    """How one kind of server is started and asked."""

    name: str  # of its program
    prepare: Callable[[str], bool]  # makes its model in a folder; False: there is none to ask
    argv: Callable[[str, str, int, int], list[str]]  # of the folder, host, port and GPUs
    ready: str  # the path that answers 200 once it is ready
    warm: Callable[[Target], None]  # the first request, by the server's own node, alone
    exercise: Callable[[Target], Exercise]  # what the next node asks


@dataclass(frozen=True)
class Place:
    """The server of a node, and how it is reached."""

    node: str
    host: str = ""
    port: int = 0
    model: str = ""  # its name there; empty where there is none to ask
    key: str = ""
    trouble: str = ""  # why there is no server

    @property
    def target(self) -> Target:
        return Target(self.host, self.port, self.model, self.key)


def _make_alphabet_model(folder: str) -> bool:
    alphabet.make_alphabet_model(folder)
    return True


def _transformers_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    argv = ["transformers", "serve", "--host", host, "--port", str(port)]
    argv += ["--force-model", folder]
    argv += ["--device", "auto" if gpus else "cpu"]
    return argv


def _vllm_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    argv = ["vllm", "serve", folder, "--host", host, "--port", str(port)]
    argv += ["--gpu-memory-utilization", "0.5"]
    argv += ["--tensor-parallel-size", str(count_gpus_of_model(gpus))]
    argv += ["--max-model-len", "1024", "--enforce-eager"]
    return argv


def _tensorrt_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    argv = ["trtllm-serve", folder, "--host", host, "--port", str(port)]
    argv += ["--backend", "pytorch", "--tp_size", str(count_gpus_of_model(gpus))]
    argv += ["--max_seq_len", "1024"]
    return argv


def _triton_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    argv = ["tritonserver", f"--model-repository={folder}"]
    argv += [f"--http-address={host}", f"--http-port={port}"]
    argv += ["--allow-grpc=false", "--allow-metrics=false"]
    return argv


TRANSFORMERS = Serving(
    "transformers",
    _make_alphabet_model,
    _transformers_argv,
    "/health",
    completions.warm_completions,
    completions.exercise_completions,
)
VLLM = Serving(
    "vllm",
    _make_alphabet_model,
    _vllm_argv,
    "/health",
    completions.warm_completions,
    completions.exercise_completions,
)
TENSORRT_LLM = Serving(
    "trtllm-serve",
    _make_alphabet_model,
    _tensorrt_argv,
    "/health",
    completions.warm_completions,
    completions.exercise_completions,
)
TRITON = Serving(
    "tritonserver",
    kserve.make_adder_model,
    _triton_argv,
    "/v2/health/ready",
    kserve.warm_inference,
    kserve.exercise_inference,
)


def count_gpus_of_model(gpus: int) -> int:
    """Return over how many of a node's GPUS the model is split: a number that divides its heads."""
    return max(n for n in (1, 2, 4, 8) if n <= max(gpus, 1) and alphabet.HEADS % n == 0)


def count_gpus_here() -> int:
    """Return how many GPUs this step has on this node.

    Where no cgroup hides those of other steps, CUDA_VISIBLE_DEVICES says which are its own.
    """
    there = len(open_gpus())
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return there
    own = [one for one in said.split(",") if one.strip()]
    return min(len(own), there)


def check_serve_transformers(task: Task) -> Result:
    """Test `transformers serve` of the Hugging Face stack, on GPUs or CPUs."""
    missing = ""
    for name in ("transformers", "fastapi", "uvicorn", "openai"):
        if not importlib.util.find_spec(name):
            missing = f"{name} (transformers[serving])"
            break
    return serve_model(task, TRANSFORMERS, missing)


def check_serve_vllm(task: Task) -> Result:
    """Test `vllm serve`, with tensor parallelism over the node's GPUs."""
    return serve_model(task, VLLM, gpus=True)


def check_serve_tensorrt_llm(task: Task) -> Result:
    """Test `trtllm-serve` with its PyTorch back end."""
    return serve_model(task, TENSORRT_LLM, gpus=True)


def check_serve_triton(task: Task) -> Result:
    """Test Triton with a model for its Python back end.

    Where the image does not have that back end, only that Triton gets ready.
    """
    return serve_model(task, TRITON)


def serve_model(task: Task, kind: Serving, missing: str = "", *, gpus: bool = False) -> Result:
    """Run this node's server, if TASK is the node's first, and ask the next node's.

    MISSING is what the image lacks for this KIND of server; empty where it has all. GPUS: the
    server needs a GPU; where a node has none, no node starts one.
    """
    if not missing and not shutil.which(kind.name):
        missing = kind.name
    if missing:
        if task.named:
            raise RuntimeError(f"no {missing} in the image")
        raise Skip(f"the image has no {missing}")

    # all tasks decide the same: one that went on alone would wait for the others
    answers = task.all("gpus", [socket.gethostname(), count_gpus_here() > 0])
    without = sorted({host for host, has in answers if not has})
    if gpus and without:
        raise Skip(f"no GPU on {', '.join(without[:4])}: {kind.name} is not started without one")

    each = task.world // task.nodes
    node, local = divmod(task.rank, each)
    after = (node + 1) % task.nodes * each  # the first task of the next node, which is asked
    before = (node - 1) % task.nodes * each  # that of the node before, which asks this one
    if local:
        return _see_next_server(task, kind, after)

    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        try:
            server, place = _start_server(task, kind, stack)
        except Exception as error:
            # tell both neighbours, so that they do not wait for this one
            task.post("place", vars(Place(socket.gethostname(), trouble=str(error))))
            task.post("asked", 1)
            raise
        ready_s = time.monotonic() - began

        task.post("place", vars(place))
        asked = _ask_next_server(task, kind, after)
        # the server must live until it was asked; if the asking task is gone, it ends all the same
        with contextlib.suppress(TimeoutError, OSError):
            task.read("asked", before, WAIT_S)
        return _end_server(server, place, asked, ready_s)


def _start_server(task: Task, kind: Serving, stack: contextlib.ExitStack) -> tuple[Server, Place]:
    """Start this node's server and send it the first request. Return it and how it is reached.

    STACK ends it, and all that belongs to it, whatever happens.
    """
    folder = tempfile.mkdtemp(prefix="hpcstack-serve-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    has_model = kind.prepare(folder)
    key = secrets.token_hex(16)
    host = "127.0.0.1"
    log = os.path.join(task.output, f"task-{task.code}-{task.rank}-server.log")
    until = time.monotonic() + READY_S + A_NODE_S * task.nodes

    # a port that was free may have been taken when the server listens: try again
    for _ in range(3):
        port = free_port()
        server = Server(kind.argv(folder, host, port, count_gpus_here()), folder, log, key)
        stack.callback(server.stop)
        trouble = server.ready(host, port, kind.ready, until)
        if not trouble or not server.address_taken():
            break
        server.stop()

    # Most of these servers answer whoever asks. So they listen on loopback only, and other nodes
    # come through a front that requires the key.
    if task.nodes > 1 and not trouble:
        front = Front(find_address(), port, key)
        stack.callback(front.stop)
        host = find_address()
        port = front.port

    model = folder if has_model else ""
    place = Place(socket.gethostname(), host, port, model, key, trouble)
    if has_model and not trouble:
        try:
            kind.warm(place.target)
        except WrongAnswer as wrong:
            place = replace(place, trouble=str(wrong))
    return server, place


def _see_next_server(task: Task, kind: Serving, of: int) -> Result:
    """Report whether the server of task OF got ready: all that tasks beside a node's first do."""
    place = Place(**task.read("place", of, WAIT_S))
    if place.trouble:
        return Result(SKIP, evidence=f"{place.node}'s server did not start")
    return Result(PASS, f"{kind.name} of the next node is ready", "ready")


def _ask_next_server(task: Task, kind: Serving, of: int) -> Result:
    """Ask the server of task OF and judge its answers. Tell that task in any case when done."""
    want = "ready, each answer as the model has it"
    try:
        place = Place(**task.read("place", of, WAIT_S))
        if place.trouble:
            return Result(SKIP, evidence=f"{place.node}'s server did not start")
        if not place.model:
            nothing = "no back end for the suite's model"
            return Result(PASS, f"{kind.name} is ready", "ready", evidence=nothing)
        found = kind.exercise(place.target)
    except WrongAnswer as trouble:
        said = f"{place.node}'s server: {trouble}"
        return Result(FAIL, said, want, SOURCE, remedy=LOOK.format(f"{kind.name}'s"))
    except TimeoutError as error:
        return Result(ERROR, f"the next node's task said nothing of its server: {error}", want)
    finally:
        task.post("asked", 1)
    return Result(
        PASS, found.measured, want, SOURCE, figures=found.figures, informational=not open_gpus()
    )


def _end_server(server: Server, place: Place, asked: Result, ready_s: float) -> Result:
    """End this node's server. Return ASKED, the result for the next node's, if all went well.

    A FAIL says instead that this node's server did not start, ended by itself, or had to be killed.
    """
    ended = server.ended()
    last = server.last_line()
    left = server.stop()

    trouble = place.trouble
    if not trouble and ended:
        trouble = f"{ended} while it was asked: {last}"
    trouble = trouble or left
    found = replace(asked, figures={**asked.figures, "ready_s": round(ready_s, 2)})
    if not trouble:
        return found
    return replace(
        found,
        status=FAIL,
        measured=f"{place.node}'s server: {trouble}",
        expected="it starts, serves and ends",
        remedy=LOOK.format("its"),
    )
