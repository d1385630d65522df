"""What the writer of a bundle and its reader agree on.

Tested in tests/hostile/test_gifts.py.
"""

from __future__ import annotations

import re

FORMAT = "hpcstack/bundle/v1"
# The format of a bundle that names its base but does not contain it. It needs a version of its own:
# a reader of v1 would apply the bundle without a base.
NAMES_ITS_BASE = "hpcstack/bundle/v2"
FILE_NAME = re.compile(
    r"(?!\.|base-)[A-Za-z0-9._+~^%:!-]{1,250}"
)  # of .deb and .rpm files and wheels
