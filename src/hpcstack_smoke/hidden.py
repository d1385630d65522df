"""How secrets are recognized, so that no report keeps one: by a variable's name, or in a URL.

Tested in tests/unit/smoke/test_bundle.py.
"""

from __future__ import annotations

import re

SECRET = re.compile(
    r"TOKEN|SECRET|PASS|_KEY\b|_KEY$|APIKEY|API_KEY|CREDENTIAL|AUTH|COOKIE|SESSION", re.IGNORECASE
)
LOGIN = re.compile(r"://[^/\s@]+@")  # the login in a URL
HIDDEN = "(not kept)"  # written in place of a secret
