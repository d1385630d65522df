"""One bit of one value of one product in a burn, on one rank, is another one than the hardware
gave. HPCSTACK_PLANT_RANK: on which, by default on rank 1.
"""

import os
from typing import Any

import torch

from hpcstack_smoke.gpu import burn

multiply, calls = burn.multiply_matrices, 0


def flipped(a: Any, b: Any) -> Any:
    global calls
    calls += 1
    out = multiply(a, b)
    if os.environ.get("RANK") == os.environ.get("HPCSTACK_PLANT_RANK", "1") and calls == 40:
        bits = out.view(torch.int32).reshape(-1)
        bits[12345] ^= 1 << 3
    return out


burn.multiply_matrices = flipped
