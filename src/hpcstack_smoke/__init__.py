"""The smoke-test suite: it runs inside an image and says whether GPUs, fabric and training work.

It needs only Python's standard library. A check that needs a framework, such as torch or
DeepSpeed, says so where the image does not have it.

Tested in tests/unit/smoke/test_select.py.
"""

import sys

if sys.version_info < (3, 9):
    raise SystemExit(
        "the smoke-test suite needs Python 3.9 or newer; this is " + sys.version.split()[0]
    )

__version__ = "0.4.0"
