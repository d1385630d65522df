"""Where libraries write when nobody tells them where: writable under every runtime, and on the
nodes' side of it.

Each place is the library's own default (docs/how-to/where-caches-go.md names where that is said).
The libraries themselves are not in the image but for torch and pip, which are asked.
"""

from __future__ import annotations

import json
import os

import pytest

from support.launching import RUNTIMES, STACK
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs("second"), pytest.mark.slurm]
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


# {library: (its packages, a program that makes the library itself write where it does by default,
# and prints where)}
LIBRARIES = {
    "matplotlib": (
        "matplotlib",
        "import matplotlib.font_manager; print(matplotlib.get_cachedir())",
    ),
    "numba": ("numba", "import kernel; print(kernel.add(1, 2) and kernel.add.stats.cache_path)"),
    "huggingface_hub": (
        "huggingface_hub",
        "from huggingface_hub import constants, file_download\n"
        "assert file_download.are_symlinks_supported()\nprint(constants.HF_HUB_CACHE)",
    ),
    "wandb": (
        "wandb",
        "import wandb\nrun = wandb.init(mode='offline', project='p')\nrun.finish()\nprint(run.dir)",
    ),
    "nltk": (
        "nltk",
        "import nltk, os\nplace = nltk.downloader.Downloader().default_download_dir()\n"
        "os.makedirs(place, exist_ok=True)\nprint(place)",
    ),
    "keras": (
        "keras",
        "import os\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras\n"
        "print(os.path.expanduser('~/.keras/keras.json'))",
    ),
    "ipython": ("ipython", "from IPython.paths import get_ipython_dir; print(get_ipython_dir())"),
    "jupyter_client": (
        "jupyter_client",
        (
            "from jupyter_client.connect import write_connection_file; "
            "print(write_connection_file()[0])"
        ),
    ),
    "torch.hub": (
        "",
        "import os, torch\ntorch.save({}, 'weights.pt')\n"
        "torch.hub.load_state_dict_from_url('file://' + os.path.abspath('weights.pt'))\n"
        "print(torch.hub.get_dir() + '/checkpoints/weights.pt')",
    ),
    "torch extensions": (
        "setuptools",
        (
            "from torch.utils.cpp_extension import _get_build_directory; "
            "print(_get_build_directory('x', False))"
        ),
    ),
    "inductor": ("", "from torch._inductor.codecache import write; print(write('text', 'txt')[1])"),
    "triton": (
        "triton",
        (
            "from triton.runtime.cache import get_cache_manager; print(get_cache_manager('ab' * "
            "32).put(b'x', 'f'))"
        ),
    ),
    "seaborn": ("seaborn", "from seaborn.utils import get_data_home; print(get_data_home())"),
    "scikit-learn": (
        "scikit-learn",
        "from sklearn.datasets import get_data_home; print(get_data_home())",
    ),
    "astropy": ("astropy", "from astropy.config import get_cache_dir; print(get_cache_dir())"),
    "torch_geometric": (
        "torch_geometric",
        "import os, torch_geometric.home as home\nplace = home.get_home_dir()\n"
        "os.makedirs(place, exist_ok=True)\nprint(place)",
    ),
    "tensorboard": (
        "tensorboard",
        "from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter()\n"
        "writer.add_scalar('a', 1)\nwriter.close()\nprint(writer.log_dir)",
    ),
    "joblib": (
        "joblib",
        (
            "import joblib, os\nprint(joblib.Memory('cache').cache(abs)(-1) and "
            "os.path.abspath('cache'))"
        ),
    ),
    "virtualenv": (
        "virtualenv",
        "import os, subprocess, sys\nsubprocess.run([sys.executable, '-m', 'virtualenv', "
        "'--quiet', 'env'], "
        "check=True)\nprint(os.path.abspath('env'))",
    ),
    "pooch": (
        "pooch",
        (
            "import pooch\nplace = "
            "pooch.os_cache('x')\npooch.utils.make_local_storage(place)\nprint(place)"
        ),
    ),
    "dask": (
        "dask",
        "import os, dask.config\ndask.config.ensure_file(__import__('dask').__file__)\n"
        "print(os.path.expanduser('~/.config/dask'))",
    ),
}
KERNEL = "import numba\n\n@numba.njit(cache=True)\ndef add(a, b):\n    return a + b\n"
ASK_EACH = """\
import json, os, subprocess, sys
found, failed = {}, {}
for name, (_, program) in json.load(open("libraries.json")).items():
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    place = done.stdout.splitlines()[-1] if done.stdout.strip() else ""
    if done.returncode == 0 and place and os.path.exists(place):
        found[name] = os.path.abspath(place)
    else:
        failed[name] = f"{place}: {(done.stderr.splitlines() or ['not there'])[-1]}"
print(json.dumps({"found": found, "failed": failed}))
"""


@pytest.mark.skipif(
    os.environ.get("HPCSTACK_TABLE") != "all",
    reason="HPCSTACK_TABLE=all asks the libraries themselves",
)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_libraries_themselves_write_by_default(
    testbed: Testbed, built: dict[str, str], runtime: str
) -> None:
    """Each is installed on top of the image (--with), and writes without having been told where."""
    folder = f"{FOLDER}-{runtime}"
    testbed.bash(f"rm -rf {folder} && mkdir -p {folder}")
    testbed.give(f"{folder}/libraries.json", json.dumps(LIBRARIES))
    testbed.give(f"{folder}/kernel.py", KERNEL)
    testbed.give(f"{folder}/ask.py", ASK_EACH)
    wanted = sorted({package for packages, _ in LIBRARIES.values() for package in packages.split()})
    packages = " ".join(f"--with {package}" for package in wanted)
    line = (
        f"hpcstack launch {STACK} -N1 --mode plain --runtime {runtime} {packages} -- python3 ask.py"
    )
    done = testbed.bash(f"cd {folder} && {line}", timeout=1800)
    found = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found, indent=1))
    assert found["failed"] == {}
    assert len(found["found"]) == len(LIBRARIES)


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
