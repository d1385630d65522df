"""Rank 3 sleeps in the middle of a check, and the others wait for it."""

import os
import time
from typing import Any

from hpcstack_smoke.training import ddp

check = ddp.check_ddp_fp32


def asleep_here(context: Any) -> Any:
    if os.environ.get("RANK") == "3":
        time.sleep(600)
    return check(context)


ddp.check_ddp_fp32 = asleep_here
