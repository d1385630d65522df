"""What who writes a bundle and who reads it agree on."""

from __future__ import annotations

import re

FORMAT = "hpcstack/bundle/v1"
NAMES_ITS_BASE = "hpcstack/bundle/v2"  # and has none; who knows v1 only would apply it without one
FILE_NAME = re.compile(r"(?!\.|base-)[A-Za-z0-9._+~%:!-]{1,250}")  # of .deb files and wheels
