"""Serving stacks: a server starts on each node, and the next node's clients get the answers that its model has.

One server a node, by its first task, over all GPUs of the step there; the tasks of the node before ask it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack_smoke.apps import alphabet, completions, kserve
from hpcstack_smoke.apps.completions import Exercise, WrongAnswer
from hpcstack_smoke.apps.servers import Server
from hpcstack_smoke.node.host import open_gpus
from hpcstack_smoke.result import FAIL, PASS, SKIP, Result, Skip
from hpcstack_smoke.store import address
from hpcstack_smoke.tasks import Task, free_port

if TYPE_CHECKING:
    from collections.abc import Callable

READY_S, ASKED_S = 300.0, 180.0  # an engine that is compiled first takes minutes
LOOK = "look at {} log in the run's folder: task-serve.*-server.log"
SOURCE = "a model of the suite's own, whose answers are known"


@dataclass(frozen=True)
class Serving:
    """How one kind of server is started and asked.

    `prepare` makes its model in a folder and says whether there is one to ask; `argv` is made of (folder, host, port,
    GPUs); `warm` is the first request, on the server's node, alone; `exercise` what the next node's task asks. Both
    are given (host, port, model's folder).
    """

    name: str
    prepare: Callable[[str], bool]
    argv: Callable[[str, str, int, int], list[str]]
    ready: str
    warm: Callable[[str, int, str], None]
    exercise: Callable[[str, int, str], Exercise]


@dataclass(frozen=True)
class Place:
    """Where the server of a node is to be asked; `trouble`: why it is not there; `model`: empty where it has none."""

    host: str = ""
    port: int = 0
    model: str = ""
    trouble: str = ""
    node: str = ""


def _alphabet(folder: str) -> bool:
    alphabet.make(folder)
    return True


def _first_completion(host: str, port: int, model: str) -> None:
    completions.warm(host, port, model, ASKED_S)


def _first_request(host: str, port: int, _: str) -> None:
    kserve.infer(host, port, 0)


def _transformers_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    device = ["--device", "auto" if gpus else "cpu"]
    return ["transformers", "serve", "--host", host, "--port", str(port), "--force-model", folder, *device]


def _vllm_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    split = ["--tensor-parallel-size", str(spread(gpus)), "--max-model-len", "1024", "--enforce-eager"]
    return ["vllm", "serve", folder, "--host", host, "--port", str(port), "--gpu-memory-utilization", "0.5", *split]


def _tensorrt_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    split = ["--backend", "pytorch", "--tp_size", str(spread(gpus)), "--max_seq_len", "1024"]
    return ["trtllm-serve", folder, "--host", host, "--port", str(port), *split]


def _triton_argv(folder: str, host: str, port: int, gpus: int) -> list[str]:
    where = [f"--http-address={host}", f"--http-port={port}"]
    return ["tritonserver", f"--model-repository={folder}", *where, "--allow-grpc=false", "--allow-metrics=false"]


TRANSFORMERS = Serving(
    "transformers", _alphabet, _transformers_argv, "/health", _first_completion, completions.exercise
)
VLLM = Serving("vllm", _alphabet, _vllm_argv, "/health", _first_completion, completions.exercise)
TENSORRT_LLM = Serving("trtllm-serve", _alphabet, _tensorrt_argv, "/health", _first_completion, completions.exercise)
TRITON = Serving(
    "tritonserver",
    kserve.make,
    _triton_argv,
    "/v2/health/ready",
    _first_request,
    lambda host, port, _: kserve.exercise(host, port),
)


def spread(gpus: int) -> int:
    """Over how many of a node's GPUs the model goes: as many as divide its heads."""
    return max(n for n in (1, 2, 4, 8) if n <= max(gpus, 1) and alphabet.HEADS % n == 0)


def transformers(task: Task) -> Result:
    """`transformers serve` of the Hugging Face stack, on GPUs or CPUs."""
    missing = [name for name in ("transformers", "fastapi", "uvicorn", "openai") if not importlib.util.find_spec(name)]
    if missing:
        return _missing(task, f"{missing[0]} (transformers[serving])")
    return serve(task, TRANSFORMERS)


def vllm(task: Task) -> Result:
    """`vllm serve`, its tensors split over the node's GPUs."""
    return _on_gpus(task, VLLM)


def tensorrt_llm(task: Task) -> Result:
    """`trtllm-serve` with its PyTorch back end."""
    return _on_gpus(task, TENSORRT_LLM)


def triton(task: Task) -> Result:
    """Triton with a model of its Python back end; where the image has none, that it gets ready."""
    return serve(task, TRITON)


def _on_gpus(task: Task, kind: Serving) -> Result:
    if not shutil.which(kind.name):
        return _missing(task, kind.name)
    if not open_gpus():
        raise Skip(f"no GPU: {kind.name} is not started without one")
    return serve(task, kind)


def _missing(task: Task, name: str) -> Result:
    if task.named:
        raise RuntimeError(f"no {name} in the image")
    raise Skip(f"the image has no {name}")


def serve(task: Task, kind: Serving) -> Result:
    """The server of this node, if this is its first task, and what the next node's answers."""
    if not shutil.which(kind.name):
        return _missing(task, kind.name)
    each = task.world // task.nodes
    node, local = divmod(task.rank, each)
    if local:
        return _ask(task, kind, (node + 1) % task.nodes * each)
    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="hpcstack-serve-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            server, place, ready_s = _start(task, kind, folder)
        except Exception as error:
            task.post("place", vars(Place(trouble=str(error))))  # nobody waits for it
            task.post("asked", 1)
            raise
        asked = _ask(task, kind, (node + 1) % task.nodes * each, place)
        return _end(server, place, asked, ready_s)


def _start(task: Task, kind: Serving, folder: str) -> tuple[Server, Place, float]:
    """(the server, where it is to be asked, seconds until it was ready)."""
    model = kind.prepare(folder)
    host = "127.0.0.1" if task.nodes == 1 else "0.0.0.0"
    log = os.path.join(task.output, f"task-{task.code}-{task.rank}-server.log")
    began = time.monotonic()
    for _ in range(3):  # a port that was free may be another one's now
        port = free_port()
        server = Server(kind.argv(folder, host, port, len(open_gpus())), folder, log)
        trouble = server.ready(port, kind.ready, began + READY_S)
        if not trouble or not server.address_taken():
            break
        server.stop()
    if model and not trouble:
        try:
            kind.warm("127.0.0.1", port, folder)
        except WrongAnswer as wrong:
            trouble = str(wrong)
    seen = "127.0.0.1" if task.nodes == 1 else address()
    return server, Place(seen, port, folder if model else "", trouble, socket.gethostname()), time.monotonic() - began


def _ask(task: Task, kind: Serving, of: int, own: Place | None = None) -> Result:
    """The first task of a node asks the server of task OF; the others only see that it got ready."""
    task.post("place", vars(own) if own else {})
    place = Place(**task.read("place", of, READY_S + ASKED_S))
    try:
        if place.trouble:
            return Result(SKIP, evidence="the next node's server did not start")
        return _judge(kind, place) if own else Result(PASS, f"{kind.name} of the next node is ready", "ready")
    finally:
        task.wait("asked", READY_S + ASKED_S)


def _judge(kind: Serving, place: Place) -> Result:
    want = "ready, each answer as the model has it"
    if not place.model:
        return Result(PASS, f"{kind.name} is ready", "ready", evidence="no back end for the suite's model")
    try:
        found = kind.exercise(place.host, place.port, place.model)
    except WrongAnswer as trouble:
        return Result(FAIL, f"{place.node}'s server: {trouble}", want, SOURCE, remedy=LOOK.format(f"{kind.name}'s"))
    return Result(PASS, found.measured, want, SOURCE, figures=found.figures, informational=not open_gpus())


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
    return replace(found, status=FAIL, measured=said, expected="it starts, serves and ends", remedy=LOOK.format("its"))
