"""The smoke-test suite: what runs inside an image and says whether GPU, fabric, NCCL and training
work.

It needs the standard library alone; checks that need torch or DeepSpeed say SKIP where those are
missing.
"""

import sys

if sys.version_info < (3, 9):
    raise SystemExit(
        "the smoke-test suite needs Python 3.9 or newer; this is " + sys.version.split()[0]
    )

__version__ = "0.3.0"
