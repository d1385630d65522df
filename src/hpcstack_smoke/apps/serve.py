"""Serving stacks: that the server starts on each node and is seen from the others, or that it knows its platform."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

from hpcstack_smoke.node.host import open_gpus
from hpcstack_smoke.result import Result, Skip, judge
from hpcstack_smoke.store import address
from hpcstack_smoke.tasks import Task, free_port

READY_S = 60.0


def triton(task: Task) -> Result:
    """Triton without a model on each task's own port; each task asks the next one's whether it is ready."""
    server = shutil.which("tritonserver")
    if not server:
        return _missing(task, "tritonserver")
    port, folder = free_port(), tempfile.mkdtemp(prefix="hpcstack-triton-")
    argv = [
        server,
        f"--model-repository={folder}",
        f"--http-port={port}",
        "--allow-grpc=false",
        "--allow-metrics=false",
    ]
    with open(os.path.join(folder, "log"), "wb") as log:
        child = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        places = task.all("place", f"http://{address()}:{port}/v2/health/ready")
        ready = _ready(places[(task.rank + 1) % task.world])
        task.wait("asked", READY_S + 10)
    finally:
        child.terminate()
        child.wait(20)
        shutil.rmtree(folder, ignore_errors=True)
    return judge(ready, "ready" if ready else f"not ready in {READY_S:.0f} s", "ready, seen from another task",
                 "KServe v2 health", remedy="look at tritonserver's log in the image")  # fmt: skip


def _ready(url: str) -> bool:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    return False


def _missing(task: Task, name: str) -> Result:
    if task.named:
        raise RuntimeError(f"no {name} in the image")
    raise Skip(f"the image has no {name}")


def vllm(task: Task) -> Result:
    """vLLM starts and knows what it runs on. A model is not in the image: generation is not proven."""
    return _imported(task, "vllm")


def tensorrt_llm(task: Task) -> Result:
    """The same of TensorRT-LLM."""
    return _imported(task, "tensorrt_llm")


def _imported(task: Task, name: str) -> Result:
    if not importlib.util.find_spec(name):
        return _missing(task, name)
    if not open_gpus():
        raise Skip(f"no GPU: {name} is not started without one")
    module: Any = importlib.import_module(name)
    versions = task.all("version", str(module.__version__))
    return judge(len(set(versions)) == 1, f"{name} {versions[0]} on {task.world} tasks", "the same on all tasks")
