"""What must never be written down: variables whose names look like secrets, and logins in URLs."""

from __future__ import annotations

import re

SECRET = re.compile(
    r"TOKEN|SECRET|PASS|_KEY\b|_KEY$|APIKEY|API_KEY|CREDENTIAL|AUTH|COOKIE|SESSION", re.IGNORECASE
)
LOGIN = re.compile(r"://[^/\s@]+@")  # a URL that holds a login
HIDDEN = "(not kept)"
