"""hpcstack, called from Python by a clock that begins at a given moment.

    dated.py PIDFILE MOMENT ARGUMENTS...

It stands in a file of its own, which the testbed's user runs with the Python of the installed
hpcstack.
"""

PROGRAM = '''\
"""hpcstack at another time: its clock is handed in here, in Python."""

import os
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from hpcstack.cli import main
from hpcstack.core.clock import using_clock

pid_file, moment, *arguments = sys.argv[1:]
Path(pid_file).write_text(str(os.getpid()))
begin, since = datetime.fromisoformat(moment), time.monotonic()
sys.argv = ["hpcstack", *arguments]
with using_clock(lambda: begin + timedelta(seconds=time.monotonic() - since)):
    main(arguments)
'''
