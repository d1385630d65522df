"""One rank that never comes."""

import os
import time

if int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1:
    time.sleep(3600)
