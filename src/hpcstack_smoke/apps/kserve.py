"""A client of Triton, by KServe's v2 protocol, and a model for its Python back end.

The model doubles numbers; several clients ask it at once.

Tested in tests/unit/smoke/test_serving.py.
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
            doubled = pb_utils.Tensor("OUT", (numbers * 2).astype("float32"))
            out.append(pb_utils.InferenceResponse([doubled]))
        return out
"""


def make_adder_model(folder: str) -> bool:
    """Write the model into FOLDER, a model repository of Triton's. Return whether it can run.

    Nothing is written where the image does not have Triton's Python back end.
    """
    if not os.path.isdir(os.path.join(BACKENDS, "python")):
        return False
    os.makedirs(os.path.join(folder, MODEL, "1"))
    for name, text in (("config.pbtxt", CONFIG), ("1/model.py", PROGRAM)):
        with open(os.path.join(folder, MODEL, name), "w") as file:
            file.write(text)
    return True


def warm_inference(target: Target) -> None:
    """Send the first request, alone. WrongAnswer where the answer is not right."""
    request_inference(target, 0)


def exercise_inference(target: Target) -> Exercise:
    """Let CLIENTS ask at once, each with numbers of its own. WrongAnswer if one is not right."""
    numbers = range(1, 1 + CLIENTS)
    with ThreadPoolExecutor(CLIENTS) as pool:
        took = list(pool.map(lambda number: request_inference(target, number), numbers))
    figures = {"answer_s": round(statistics.median(took), 4)}
    return Exercise(f"a request in {figures['answer_s']:.2f} s, {CLIENTS} clients at once", figures)


def request_inference(target: Target, number: int) -> float:
    """Let the model double some numbers. Return the seconds that it took.

    WrongAnswer where the answer is not right.
    """
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
