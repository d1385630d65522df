"""Where libraries write when nobody tells them where: writable under every runtime, and on the nodes' side of it.

Each place is the library's own default (docs/launching.md names where that is said). The libraries themselves are not in
the image but for torch and pip, which are asked.
"""

from __future__ import annotations

import json

import pytest

from support.launching import RUNTIMES, STACK
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs, pytest.mark.slurm]
FOLDER = "tests/caches"
PLACES = {
    "huggingface": "~/.cache/huggingface/hub",
    "datasets": "~/.cache/huggingface/datasets",
    "torch.hub": "~/.cache/torch/hub",
    "torch extensions": "~/.cache/torch_extensions",
    "inductor": "/tmp/torchinductor_$USER",
    "triton": "~/.triton/cache",
    "matplotlib, configuration": "~/.config/matplotlib",
    "matplotlib, fonts": "~/.cache/matplotlib",
    "numba": "~/.cache/numba",
    "cupy": "~/.cupy/kernel_cache",
    "wandb": "~/.cache/wandb",
    "wandb, configuration": "~/.config/wandb",
    "wandb, a run": "./wandb",
    "pip": "~/.cache/pip",
    "pyg": "~/.cache/pyg",
    "nltk": "~/nltk_data",
    "keras": "~/.keras",
    "jupyter": "~/.local/share/jupyter",
    "ipython": "~/.ipython",
    "fontconfig": "~/.cache/fontconfig",
    "CUDA's compiler": "~/.nv/ComputeCache",
    "temporary files": "/tmp",
    "shared memory": "/dev/shm",
}
PROGRAM = """\
import json, os, subprocess, sys, tempfile
import torch
places = json.load(open("places.json"))
places["torch, as it says"] = torch.hub.get_dir()
places["pip, as it says"] = subprocess.run(
    [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
closed = {}
for name, place in places.items():
    folder = os.path.expanduser(os.path.expandvars(place))
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        closed[name] = f"{folder}: {error}"
print(json.dumps({"looked_at": len(places), "closed": closed, "home": os.path.expanduser("~")}))
"""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_library_can_write_where_it_does_by_default(
    testbed: Testbed, built: dict[str, str], runtime: str
) -> None:
    """researcher 8: ~/.triton was read-only under Pyxis, and the same program ran by Apptainer."""
    testbed.bash(f"rm -rf {FOLDER} && mkdir -p {FOLDER}")
    testbed.give(f"{FOLDER}/places.json", json.dumps(PLACES))
    testbed.give(f"{FOLDER}/caches.py", PROGRAM)
    line = f"hpcstack launch {STACK} -N1 --mode plain --runtime {runtime} -- python3 caches.py"
    done = testbed.bash(f"cd {FOLDER} && {line}", timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["closed"] == {} and found["looked_at"] == len(PLACES) + 2, found
    home = testbed.bash("echo $HOME").stdout.strip()
    assert found["home"] == home, "the home directory of the node, which outlives the container"
