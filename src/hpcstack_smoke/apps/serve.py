"""Serving stacks: a server starts on each node, and the next node's clients get the answers that
its model has.

One server a node, by its first task, over all GPUs of the step there; the tasks of the node before
ask it, through a front that wants a key (front.py).
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

READY_S, WAIT_S = (
    600.0,
    900.0,
)  # an engine that is read from a cold disk by all nodes, and compiled, takes minutes
LOOK = "look at {} log in the run's folder: task-serve.*-server.log"
SOURCE = "a model of the suite's own, whose answers are known"


@dataclass(frozen=True)
class Serving:
    """How one kind of server is started and asked.

    `prepare` makes its model in a folder and says whether there is one to ask; `argv` is made of
    (folder, host, port, GPUs); `warm` is the first request, on the server's node, alone; `exercise`
    what the next node's task asks.
    """

    name: str
    prepare: Callable[[str], bool]
    argv: Callable[[str, str, int, int], list[str]]
    ready: str
    warm: Callable[[Target], None]
    exercise: Callable[[Target], Exercise]


@dataclass(frozen=True)
class Place:
    """The server of a NODE: where it is to be asked, by whom its key is known; `trouble`: why it is
    not there.
    """

    node: str
    host: str = ""
    port: int = 0
    model: str = ""
    key: str = ""
    trouble: str = ""

    @property
    def target(self) -> Target:
        return Target(self.host, self.port, self.model, self.key)


def _alphabet(folder: str) -> bool:
    alphabet.make_alphabet_model(folder)
    return True


def _transformers_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    device = ["--device", "auto" if gpus else "cpu"]
    return [
        "transformers",
        "serve",
        "--host",
        host,
        "--port",
        str(port),
        "--force-model",
        folder,
        *device,
    ]


def _vllm_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    split = [
        "--tensor-parallel-size",
        str(count_gpus_of_model(gpus)),
        "--max-model-len",
        "1024",
        "--enforce-eager",
    ]
    return [
        "vllm",
        "serve",
        folder,
        "--host",
        host,
        "--port",
        str(port),
        "--gpu-memory-utilization",
        "0.5",
        *split,
    ]


def _tensorrt_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    split = [
        "--backend",
        "pytorch",
        "--tp_size",
        str(count_gpus_of_model(gpus)),
        "--max_seq_len",
        "1024",
    ]
    return ["trtllm-serve", folder, "--host", host, "--port", str(port), *split]


def _triton_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    where = [f"--http-address={host}", f"--http-port={port}"]
    return [
        "tritonserver",
        f"--model-repository={folder}",
        *where,
        "--allow-grpc=false",
        "--allow-metrics=false",
    ]


TRANSFORMERS = Serving(
    "transformers",
    _alphabet,
    _transformers_argv,
    "/health",
    completions.warm_completions,
    completions.exercise_completions,
)
VLLM = Serving(
    "vllm",
    _alphabet,
    _vllm_argv,
    "/health",
    completions.warm_completions,
    completions.exercise_completions,
)
TENSORRT_LLM = Serving(
    "trtllm-serve",
    _alphabet,
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
    """Over how many of a node's GPUs the model goes: as many as divide its heads."""
    return max(n for n in (1, 2, 4, 8) if n <= max(gpus, 1) and alphabet.HEADS % n == 0)


def gpus_here() -> int:
    """How many GPUs this step has: where no cgroup hides the others, CUDA_VISIBLE_DEVICES says
    which are its own.
    """
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    own = (
        len([one for one in said.split(",") if one.strip()])
        if said is not None
        else len(open_gpus())
    )
    return min(own, len(open_gpus()))


def transformers(task: Task) -> Result:
    """`transformers serve` of the Hugging Face stack, on GPUs or CPUs."""
    missing = [
        name
        for name in ("transformers", "fastapi", "uvicorn", "openai")
        if not importlib.util.find_spec(name)
    ]
    return serve_model(
        task, TRANSFORMERS, f"{missing[0]} (transformers[serving])" if missing else ""
    )


def vllm(task: Task) -> Result:
    """`vllm serve`, its tensors split over the node's GPUs."""
    return serve_model(task, VLLM, gpus=True)


def tensorrt_llm(task: Task) -> Result:
    """`trtllm-serve` with its PyTorch back end."""
    return serve_model(task, TENSORRT_LLM, gpus=True)


def triton(task: Task) -> Result:
    """Triton with a model of its Python back end; where the image has none, that it gets ready."""
    return serve_model(task, TRITON)


def serve_model(task: Task, kind: Serving, missing: str = "", *, gpus: bool = False) -> Result:
    """The server of this node, if this is its first task, and what the next node's answers.

    MISSING: what the image, one for all tasks, lacks. GPUS: it is not started without one; where a
    node has none, no node's is.
    """
    if missing := missing or ("" if shutil.which(kind.name) else kind.name):
        if task.named:
            raise RuntimeError(f"no {missing} in the image")
        raise Skip(f"the image has no {missing}")
    without = sorted(
        {host for host, has in task.all("gpus", [socket.gethostname(), gpus_here() > 0]) if not has}
    )
    if gpus and without:
        raise Skip(f"no GPU on {', '.join(without[:4])}: {kind.name} is not started without one")
    each = task.world // task.nodes
    node, local = divmod(task.rank, each)
    after = (node + 1) % task.nodes * each
    if local:
        return _see(task, kind, after)
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        try:
            server, place = _start(task, kind, stack)
        except Exception as error:
            task.post(
                "place", vars(Place(socket.gethostname(), trouble=str(error)))
            )  # nobody waits for it
            task.post("asked", 1)
            raise
        ready_s = time.monotonic() - began
        task.post("place", vars(place))
        asked = _ask(task, kind, after)
        with contextlib.suppress(
            TimeoutError, OSError
        ):  # who was to ask is gone: the server ends all the same
            task.read("asked", (node - 1) % task.nodes * each, WAIT_S)
        return _end(server, place, asked, ready_s)


def _start(task: Task, kind: Serving, stack: contextlib.ExitStack) -> tuple[Server, Place]:
    """The server, and where it is to be asked. STACK ends it, whatever happens."""
    folder = tempfile.mkdtemp(prefix="hpcstack-serve-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    model, key, host = kind.prepare(folder), secrets.token_hex(16), "127.0.0.1"
    log = os.path.join(task.output, f"task-{task.code}-{task.rank}-server.log")
    until = time.monotonic() + READY_S + A_NODE_S * task.nodes
    for _ in range(3):  # a port that was free may be another one's now
        port = free_port()
        server = Server(kind.argv(folder, host, port, gpus_here()), folder, log, key)
        stack.callback(server.stop)
        trouble = server.ready(host, port, kind.ready, until)
        if not trouble or not server.address_taken():
            break
        server.stop()
    if (
        task.nodes > 1 and not trouble
    ):  # most of these servers ask nobody for a key: they do not listen to the network
        front = Front(find_address(), port, key)
        stack.callback(front.stop)
        host, port = find_address(), front.port
    place = Place(socket.gethostname(), host, port, folder if model else "", key, trouble)
    if model and not trouble:
        try:
            kind.warm(place.target)
        except WrongAnswer as wrong:
            place = replace(place, trouble=str(wrong))
    return server, place


def _see(task: Task, kind: Serving, of: int) -> Result:
    """What the tasks beside a node's first say: only that the next node's server got ready."""
    place = Place(**task.read("place", of, WAIT_S))
    if place.trouble:
        return Result(SKIP, evidence=f"{place.node}'s server did not start")
    return Result(PASS, f"{kind.name} of the next node is ready", "ready")


def _ask(task: Task, kind: Serving, of: int) -> Result:
    """What the server of task OF answers; that it was asked is said in any case."""
    want = "ready, each answer as the model has it"
    try:
        place = Place(**task.read("place", of, WAIT_S))
        if place.trouble:
            return Result(SKIP, evidence=f"{place.node}'s server did not start")
        if not place.model:
            return Result(
                PASS, f"{kind.name} is ready", "ready", evidence="no back end for the suite's model"
            )
        found = kind.exercise(place.target)
    except WrongAnswer as trouble:
        return Result(
            FAIL,
            f"{place.node}'s server: {trouble}",
            want,
            SOURCE,
            remedy=LOOK.format(f"{kind.name}'s"),
        )
    except TimeoutError as error:
        return Result(ERROR, f"the next node's task said nothing of its server: {error}", want)
    finally:
        task.post("asked", 1)
    return Result(
        PASS, found.measured, want, SOURCE, figures=found.figures, informational=not open_gpus()
    )


def _end(server: Server, place: Place, asked: Result, ready_s: float) -> Result:
    """ASKED, unless this node's own server did not start, has ended by itself, or does not end."""
    ended = server.ended()
    last = server.last_line()
    left = server.stop()
    found = replace(asked, figures={**asked.figures, "ready_s": round(ready_s, 2)})
    trouble = place.trouble or (f"{ended} while it was asked: {last}" if ended else left)
    if not trouble:
        return found
    said = f"{place.node}'s server: {trouble}"
    return replace(
        found,
        status=FAIL,
        measured=said,
        expected="it starts, serves and ends",
        remedy=LOOK.format("its"),
    )
