"""An image service of a test's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def own_service(folder: Path, registries: str, ca_bundle: Path | None = None) -> Iterator[Path]:
    """The site.yaml of a service of this test's own, which runs, with its cache in FOLDER."""
    site = folder / "site.yaml"
    site.write_text(
        f"apiVersion: hpcstack/site/v1\nname: own\nstore: {folder}/store\nlock_dir: "
        f"{folder}/locks\n"
        f"module_root: {folder}/modules\nregistries: {{{registries}}}\n"
        f"image_cache: {{folder: {folder}/cache, socket: {folder}/s, account: root}}\n"
        + (f"build: {{ca_bundle: {ca_bundle}}}\n" if ca_bundle else "")
    )
    argv = [sys.executable, "-m", "hpcstack", "--site", str(site), "cache", "serve"]
    with (folder / "service.log").open("w") as log:
        service = subprocess.Popen(argv, start_new_session=True, stderr=log)
    try:
        for _ in range(200):
            if "serving" in (folder / "service.log").read_text():
                break
            time.sleep(0.1)
        yield site
    finally:
        os.killpg(service.pid, signal.SIGKILL)
        service.wait()
