"""A node on which every collective takes longer: the one that HPCSTACK_SMOKE_SLOW names."""

import os
import socket
import time
from typing import Any

import torch.distributed as dist

if socket.gethostname() == os.environ.get("HPCSTACK_SMOKE_SLOW"):
    reduce = dist.all_reduce

    def late(*args: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return reduce(*args, **options)

    dist.all_reduce = late
