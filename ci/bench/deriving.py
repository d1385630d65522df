"""What a derived image costs: one pip package of about 50 MB on a base of 2.6 GB, beside a copy of
the base.

    ci/bench/derive [--rounds N] [--folder DIR] [--no-apptainer] [--json]

The testbed must be up: its registry has the stand-in of NVIDIA's PyTorch image, on which CUDA's
libraries are put (cuda_image.py). The base is imported before anything is measured. `rest` is all
of a build but the steps (pip in the container, with its guard, as the log says it). Peers: `cp` of
the base, on disk; hpcstack's own `--squash`, which is mksquashfs (zstd 1) of the merged tree;
`apptainer build` of the definition that hpcstack renders. As root also on an XFS whose files share
blocks, in a loop-mounted file.

Bars: on a disk without shared blocks at most 1.5 times `cp`; with them 2 s; memory of a splice
under 300 MB. Besides, ALL of a build whose one step writes 50 MB (the recipe `write-1`: that step,
the last one and the splice): 1.5 times `cp --reflink=never` of the base, and 2 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import building
import cuda_image

HPCSTACK = (sys.executable, "-m", "hpcstack")
PACKAGE = "pyarrow==18.1.0"
NAME = "hpcstack/derive:1"
RECIPE = f"""\
apiVersion: hpcstack/v1
name: derive
version: "1"
summary: One pip package
base: {{image: "nvcr.io/{NAME}"}}
packages: {{pip: ["{PACKAGE}"]}}
"""
WRITES = f"""\
apiVersion: hpcstack/v1
name: write
version: "1"
summary: One step that writes 50 MB
base: {{image: "nvcr.io/{NAME}"}}
run: [{{name: write, command: "head -c 50000000 /dev/urandom >/opt/written", network: false}}]
"""
TOOK = re.compile(
    r"^== hpcstack took ([0-9.]+) s: [0-9]", re.MULTILINE
)  # of the steps: the image has no number
ALONE = """\
import json, resource, sys, time
from pathlib import Path
from hpcstack.squashfs.splice import splice_image
def written():
    return int(dict(x.split(": ") for x in Path("/proc/self/io").read_text().splitlines())["write_bytes"])
base, output, *layers = map(Path, sys.argv[1:])
began, before = time.monotonic(), written()
done = splice_image(base, layers, output, 0, always=True, rooted=True)
print(json.dumps({"s": time.monotonic() - began, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
                  "written": written() - before, "how": done.how, "new": done.new}))
"""


def push_base(folder: Path, address: str) -> None:
    """The stand-in with CUDA's libraries over it, in the testbed's registry."""
    cuda, mine = cuda_image.image(folder), folder / "derive"
    if not (mine / "index.json").exists():
        subprocess.run(["skopeo", "copy", "--quiet", "--src-tls-verify=false",
                        f"docker://{address}/nvidia/pytorch:24.11-py3", f"oci:{mine}:latest"], check=True)  # fmt: skip
        manifest, config = documents(mine)
        more, about = documents(cuda)
        for layer, plain in list(zip(more["layers"], about["rootfs"]["diff_ids"], strict=True))[
            2:-1
        ]:
            blob = Path("blobs/sha256") / layer["digest"].removeprefix("sha256:")
            with contextlib.suppress(FileExistsError):
                os.link(cuda / blob, mine / blob)
            manifest["layers"].append({**layer, "mediaType": cuda_image.GZIP})
            config["rootfs"]["diff_ids"].append(plain)
            config.setdefault("history", []).append({"created_by": "ci/bench/deriving.py"})
        manifest["config"].update(cuda_image.text(mine, config))
        index = json.loads((mine / "index.json").read_text())
        index["manifests"][0].update(cuda_image.text(mine, manifest))
        (mine / "index.json").write_text(json.dumps(index))
    subprocess.run(["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{mine}:latest",
                    f"docker://{address}/{NAME}"], check=True)  # fmt: skip


def documents(layout: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    def read(digest: str) -> dict[str, Any]:
        blob = layout / "blobs/sha256" / digest.removeprefix("sha256:")
        found: dict[str, Any] = json.loads(blob.read_text())
        return found

    manifest = read(json.loads((layout / "index.json").read_text())["manifests"][0]["digest"])
    return manifest, read(manifest["config"]["digest"])


def mirror() -> str:
    return (
        (building.TESTBED / "etc/registry.yml")
        .read_text()
        .partition('addr: "')[2]
        .partition('"')[0]
    )


class Place(building.Bench):
    """One filesystem with a site, and the base imported."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "builtin")
        site = folder / "site.yaml"
        if bundle := re.search(
            r"^ *ca_bundle: (\S+)$", (building.TESTBED / "etc/site.yaml").read_text(), re.MULTILINE
        ):
            site.write_text(
                site.read_text().replace("build: {", f"build: {{ca_bundle: {bundle[1]}, ")
            )
        (folder / "derive-1.yaml").write_text(RECIPE)
        (folder / "write-1.yaml").write_text(WRITES)
        self.hpcstack("lock", "derive-1", "write-1")
        self.base = next((folder / "cache").glob("*/sha256-*.sqsh"))

    def build(self, *words: str, stack: str = "derive-1") -> tuple[float, float]:
        """Seconds of a build with nothing kept but the base, and of its steps alone."""
        for kept in (self.folder / "store", *(self.folder / "cache").glob("*/steps")):
            as_builder = (
                ["unshare", "--user", "--map-root-user"] if os.geteuid() else []
            )  # root may remove another's
            subprocess.run([*as_builder, "rm", "-rf", str(kept)], check=True)
        os.sync()
        with self.base.open("rb") as base:  # into memory: a `cp` that shares blocks reads nothing
            while base.read(8 << 20):
                pass
        seconds = self.hpcstack("build", stack, *words)
        log = max(
            (self.folder / "store/logs").glob(f"{stack}-*.log"),
            key=lambda path: path.stat().st_mtime,
        )
        return seconds, sum(map(float, TOOK.findall(log.read_text())))

    def lent(self) -> Path:
        """A folder with the certificates that the testbed's site names, as a build is lent them."""
        folder = self.folder / "lent"
        folder.mkdir(exist_ok=True)
        if bundle := re.search(
            r"^ *ca_bundle: (\S+)$", (building.TESTBED / "etc/site.yaml").read_text(), re.MULTILINE
        ):
            shutil.copyfile(bundle[1].strip('"'), folder / "ca.pem")
            (folder / "hpcstack-site.sh").write_text("export PIP_CERT=/mnt/ca.pem\n")
        return folder

    def copy(self) -> float:
        """Seconds of `cp` of the base, on disk."""
        os.sync()
        target = self.folder / "copy"
        seconds = self.timed(
            [
                "sh",
                "-c",
                'cp --reflink=never "$1" "$2" && sync "$2"',
                "sh",
                str(self.base),
                str(target),
            ]
        )
        target.unlink()
        return seconds

    def alone(self) -> dict[str, float]:
        """The splice of kept layers, in a process of its own."""
        shutil.rmtree(self.folder / "store")
        self.hpcstack("build", "derive-1")  # its layers are kept
        layers = sorted(
            (self.folder / "cache").glob("*/steps/*.sqsh"), key=lambda path: path.stat().st_ctime
        )
        output = self.folder / "alone.sqsh"
        os.sync()
        done = subprocess.run([sys.executable, "-c", ALONE, str(self.base), str(output), *map(str, layers)],
                              check=True, capture_output=True, text=True)  # fmt: skip
        output.unlink()
        found: dict[str, float] = json.loads(done.stdout)
        return found


@contextlib.contextmanager
def shared_blocks(folder: Path) -> Iterator[Path | None]:
    """An XFS whose files can share blocks, in a loop-mounted file; None where that cannot be had."""
    disk, where = folder / "xfs.img", folder / "xfs"
    where.mkdir()
    if os.geteuid() or not shutil.which("mkfs.xfs"):
        yield None
        return
    subprocess.run(["truncate", "-s", "24G", disk], check=True)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", disk], check=True)
    subprocess.run(["mount", "-o", "loop", disk, where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=False)
        disk.unlink()


def one_round(folder: Path, apptainer: bool) -> dict[str, float]:
    out: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="hpcstack-derive-", dir=folder) as name:
        place = Place(Path(name))
        out["base GB"] = place.base.stat().st_size / 1e9
        out["cp"] = min(place.copy() for _ in range(2))
        total, steps = place.build()
        out |= {"build": total, "step": steps, "rest": total - steps}
        total, steps = place.build(stack="write-1")
        out |= {"write": total, "write steps": steps}
        out |= {f"splice {what}": value for what, value in place.alone().items()}
        total, steps = place.build("--squash")
        out |= {"squash": total, "squash rest": total - steps}
        if apptainer and shutil.which("apptainer"):
            place.hpcstack("render", "derive-1", "--output", f"{name}/rendered")
            out["apptainer"] = place.apptainer(place.lent())
        subprocess.run(["chmod", "-R", "u+rwX", name], check=False)
    with (
        tempfile.TemporaryDirectory(prefix="hpcstack-derive-", dir=folder) as name,
        shared_blocks(Path(name)) as where,
    ):
        if where:
            place = Place(where)
            total, steps = place.build()
            out |= {"shared build": total, "shared step": steps, "shared rest": total - steps}
            out |= {f"shared splice {what}": value for what, value in place.alone().items()}
    return out


def rows(median: dict[str, float]) -> list[tuple[str, float, str, bool]]:
    """(what, value, bar, kept)."""
    whole = 1.5 * median["cp"] + 2
    out = [
        (
            "all of a build that writes 50 MB, s",
            median["write"],
            f"<= {whole:.1f}",
            median["write"] <= whole,
        ),
        (
            "all but the step, of cp of the base",
            median["rest"] / median["cp"],
            "<= 1.5",
            median["rest"] <= 1.5 * median["cp"],
        ),
        (
            "memory of the splice, MB",
            median["splice memory"] / 1e6,
            "< 300",
            median["splice memory"] < 300e6,
        ),
    ]
    if "shared rest" in median:
        out.append(
            (
                "all but the step, with shared blocks, s",
                median["shared rest"],
                "<= 2",
                median["shared rest"] <= 2,
            )
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build/bench").resolve())
    parser.add_argument("--no-apptainer", action="store_true", help="apptainer build takes minutes")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    push_base(chosen.folder, mirror())
    rounds = [one_round(chosen.folder, not chosen.no_apptainer) for _ in range(chosen.rounds)]
    median = {what: statistics.median(one[what] for one in rounds) if not isinstance(rounds[0][what], str)
              else rounds[0][what] for what in rounds[0]}  # fmt: skip
    judged = rows(median)
    if chosen.json:
        print(json.dumps({"rounds": rounds, "median": median}, indent=1))
    else:
        for what, value in median.items():
            print(f"{what:20} {value if isinstance(value, str) else f'{value:.2f}'}")
        print("| what | value | bar | |\n|---|---|---|---|")
        for what, value, bar, kept in judged:
            print(f"| {what} | {value:.2f} | {bar} | {'ok' if kept else 'MISSED'} |")
    sys.exit(0 if all(kept for _, _, _, kept in judged) else 1)


if __name__ == "__main__":
    main()
