"""What a push uploads, beside the bytes that an image adds to its base.

    ci/bench/push [--folder DIR] [--json]

The testbed must be up: its registry has the stand-in of NVIDIA's PyTorch image, on which a stack
with a large package and many small ones is built, and to which it is pushed. The base is imported
and the stack built before anything is measured.

The peer is GNU tar with gzip: base and image are unpacked by unsquashfs, and every file that
differs between them (by content, mode or time) goes into one tar, compressed by gzip at its default
level. Bar: all that a push uploads, with the SBOM, the lock, the provenance and the signatures, is
at most 1.1 times that. Beside it, what an upload of the whole squashfs would be.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HPCSTACK = (sys.executable, "-m", "hpcstack")
BAR = 1.1
BASE = "nvcr.io/nvidia/pytorch:24.11-py3"
RECIPE = f"""\
apiVersion: hpcstack/v1
name: pushed
version: "1"
summary: One large package and some small ones
base: {{image: "{BASE}"}}
packages: {{pip: [pyarrow==18.1.0, rich==13.9.4, sympy==1.13.3]}}
run: [{{name: remove, command: "rm -rf /usr/share/doc/bash", network: false}}]
"""


def registry_of(testbed: Path) -> str:
    """HOST:PORT of the testbed's registry."""
    return (testbed / "etc/registry.yml").read_text().partition('addr: "')[2].partition('"')[0]


def write_site(folder: Path, testbed: Path) -> None:
    address = registry_of(testbed)
    (folder / "recipes").mkdir(parents=True, exist_ok=True)
    (folder / "recipes/pushed-1.yaml").write_text(RECIPE)
    (folder / "site.yaml").write_text(
        f"store: {folder}/store\nlock_dir: {folder}/locks\nmodule_root: {folder}/modules\n"
        f"recipe_dirs: [{folder}/recipes]\nregistries:\n"
        f"  nvcr.io: {{mirror: '{address}', plain_http: true}}\n  '{address}': {{plain_http: true}}\n"
        f"build: {{engine: builtin, cachedir: {folder}/cache, ca_bundle: {testbed}/etc/ca-bundle.pem}}\n"
    )


def run(folder: Path, *words: str) -> Any:
    argv = [*HPCSTACK, "--site", str(folder / "site.yaml"), *words, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def unpack(image: Path, folder: Path) -> Path:
    subprocess.run(
        ["unsquashfs", "-q", "-n", "-d", str(folder), str(image)], check=True, capture_output=True
    )
    return folder


def described(path: Path) -> tuple[object, ...]:
    about = path.lstat()
    if path.is_symlink():
        return ("link", str(path.readlink()))
    if path.is_dir():
        return ("folder", about.st_mode)
    with path.open("rb") as file:
        return (about.st_mode, int(about.st_mtime), hashlib.file_digest(file, "sha256").digest())


def list_changed(base: Path, image: Path) -> list[str]:
    """The paths of IMAGE that BASE does not have in the same way."""
    out = []
    for here, folders, files in os.walk(image):
        for name in (*folders, *files):
            path = Path(here) / name
            there = base / path.relative_to(image)
            if not os.path.lexists(there) or described(there) != described(path):
                out.append(str(path.relative_to(image)))
    return sorted(out)


def pack_by_tar(image: Path, paths: list[str], output: Path) -> float:
    """PATHS of IMAGE as OUTPUT by GNU tar and gzip; how many seconds that took."""
    began = time.monotonic()
    tar = subprocess.Popen(["tar", "-c", "--no-recursion", "--numeric-owner", "-C", str(image), "-T", "-"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    with output.open("wb") as file:
        gzip = subprocess.Popen(["gzip", "-c"], stdin=tar.stdout, stdout=file)
        assert tar.stdin
        tar.stdin.write("\n".join(paths).encode())
        tar.stdin.close()
        if tar.wait() or gzip.wait():
            sys.exit("tar or gzip failed")
    return time.monotonic() - began


def measure(folder: Path, testbed: Path) -> dict[str, Any]:
    write_site(folder, testbed)
    image = Path(run(folder, "build", "pushed-1")["image"])
    subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256",
                    "-out", str(folder / "key.pem")], check=True, capture_output=True)  # fmt: skip
    name = f"{registry_of(testbed)}/bench/pushed-{time.monotonic_ns()}"
    began = time.monotonic()
    pushed = run(folder, "push", "pushed-1", name, "--key", str(folder / "key.pem"))
    seconds = time.monotonic() - began
    began = time.monotonic()
    again = run(folder, "push", "pushed-1", name, "--key", str(folder / "key.pem"))
    seconds_again = time.monotonic() - began

    (base,) = (folder / "cache").rglob("sha256-*.sqsh")
    trees = [unpack(base, folder / "base"), unpack(image, folder / "image")]
    changed = list_changed(*trees)
    tar_s = pack_by_tar(trees[1], changed, folder / "peer.tar.gz")
    peer = (folder / "peer.tar.gz").stat().st_size
    return {
        "base_bytes": base.stat().st_size,
        "squashfs_bytes": image.stat().st_size,
        "changed_files": len(changed),
        "tar_gzip_bytes": peer,
        "tar_gzip_s": round(tar_s, 2),
        "layer_bytes": pushed["delta_bytes"],
        "uploaded_bytes": pushed["sent"],
        "uploaded_of_base": pushed["uploaded_base"],
        "push_s": round(seconds, 2),
        "uploaded_again": again["sent"],
        "push_again_s": round(seconds_again, 2),
        "ratio": round(pushed["sent"] / peer, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="work here (by default a new folder)")
    parser.add_argument("--testbed", type=Path,
                        default=Path(os.environ.get("HPCSTACK_TESTBED", "/opt/hpcstack-testbed")))  # fmt: skip
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-push-"))
    try:
        found = measure(folder, given.testbed)
    finally:
        if not given.folder:
            shutil.rmtree(folder, ignore_errors=True)

    if given.json:
        print(json.dumps(found, indent=1))
    else:
        for name, value in found.items():
            print(f"{name:<18} {value:>16,}")
    verdict = "met" if found["ratio"] <= BAR and not found["uploaded_of_base"] else "MISSED"
    print(
        f"bar: uploaded at most {BAR} times tar and gzip, nothing of the base: {verdict}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
