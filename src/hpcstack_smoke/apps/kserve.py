"""Triton by KServe's v2 protocol: a model of its Python back end that doubles numbers, asked by
several at once.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from hpcstack_smoke.apps.completions import (
    ANSWER_S,
    CLIENTS,
    MOST,
    Exercise,
    Target,
    WrongAnswer,
    open_connection,
)

MODEL = "double"
BACKENDS = "/opt/tritonserver/backends"
CONFIG = """\
backend: "python"
max_batch_size: 0
input [{name: "IN", data_type: TYPE_FP32, dims: [-1]}]
output [{name: "OUT", data_type: TYPE_FP32, dims: [-1]}]
instance_group [{kind: KIND_CPU, count: 2}]
"""
PROGRAM = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        out = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", (numbers * 2).astype("float32"))]))
        return out
"""


def make_adder_model(folder: str) -> bool:
    """The model below FOLDER, a repository of Triton's; False where the image has no Python back
    end for it.
    """
    if not os.path.isdir(os.path.join(BACKENDS, "python")):
        return False
    os.makedirs(os.path.join(folder, MODEL, "1"))
    for name, text in (("config.pbtxt", CONFIG), ("1/model.py", PROGRAM)):
        with open(os.path.join(folder, MODEL, name), "w") as file:
            file.write(text)
    return True


def warm_inference(target: Target) -> None:
    """The first request."""
    request_inference(target, 0)


def exercise_inference(target: Target) -> Exercise:
    """CLIENTS at once, each with numbers of its own. WrongAnswer: the first that is not right."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        took = list(
            pool.map(lambda number: request_inference(target, number), range(1, 1 + CLIENTS))
        )
    figures = {"answer_s": round(statistics.median(took), 4)}
    return Exercise(f"a request in {figures['answer_s']:.2f} s, {CLIENTS} clients at once", figures)


def request_inference(target: Target, number: int) -> float:
    """Seconds of a request whose answer is right."""
    numbers = [float(number), float(number) + 0.5, -1.0, 1024.0]
    question = {
        "inputs": [{"name": "IN", "shape": [len(numbers)], "datatype": "FP32", "data": numbers}]
    }
    began = time.monotonic()
    with open_connection(target, ANSWER_S) as line:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {target.key}"}
        line.request("POST", f"/v2/models/{MODEL}/infer", json.dumps(question), headers)
        answer = line.getresponse()
        text = answer.read(MOST).decode(errors="replace")
    if answer.status != 200:
        raise WrongAnswer(f"HTTP {answer.status}: {text[:200]}")
    try:
        found = [float(one) for one in json.loads(text)["outputs"][0]["data"]]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise WrongAnswer(f"what came is no answer to a request: {text[:200]!r}") from None
    if found != [2 * one for one in numbers]:
        raise WrongAnswer(f"{numbers} doubled are {found[:8]}")
    return time.monotonic() - began
