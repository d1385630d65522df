"""Node2's server, ready as it should be, is then killed, stopped, or has another model than it
should have.
"""

import os
import signal
import threading
from dataclasses import replace

from hpcstack_smoke.apps import alphabet, completions, serve
from hpcstack_smoke.apps.servers import Server

FAULT = "killed"  # the test gives one of: killed, slow, nonsense
completions.ANSWER_S = 6.0
make, warm, children = alphabet.make_alphabet_model, completions.warm_completions, []


class Watched(Server):
    def __init__(self, *words):
        super().__init__(*words)
        children.append(self.child.pid)


def warm_and_then(*words):
    warm(*words)
    if FAULT in ("killed", "slow"):
        sign = signal.SIGKILL if FAULT == "killed" else signal.SIGSTOP
        threading.Timer(0.2, os.kill, (children[-1], sign)).start()


def make_another(folder):
    alphabet.CIRCLE = alphabet.CIRCLE[::-1]
    try:
        make(folder)
    finally:
        alphabet.CIRCLE = alphabet.CIRCLE[::-1]


if os.environ.get("RANK") == "2":
    serve.Server, serve.TRANSFORMERS = Watched, replace(serve.TRANSFORMERS, warm=warm_and_then)
    if FAULT == "nonsense":
        alphabet.make_alphabet_model = make_another
