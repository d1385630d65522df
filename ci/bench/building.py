"""How fast a stack is built: cold, again with nothing to do, and with the last of ten steps
changed.

    ci/bench/build [--rounds N] [--engine NAME] [--json]

The peer is `apptainer build` of the very definition that hpcstack renders, from the same registry.
The testbed must be up: its registry has the stand-in of NVIDIA's PyTorch image (0.3 GB compressed,
1.1 GB unpacked). Bars: nothing to do within 6 times `python -c "import click"`; a changed last step
runs that step only (and the last one, which writes the image's metadata).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTBED = Path(os.environ.get("HPCSTACK_TESTBED", "/opt/hpcstack-testbed"))
HPCSTACK = (sys.executable, "-m", "hpcstack")
HEAD = """\
apiVersion: hpcstack/v1
name: bench
version: "1"
summary: Ten steps
base: {image: "nvcr.io/nvidia/pytorch:24.11-py3"}
run:
"""


def recipe(folder: Path, last: str) -> None:
    steps = [
        f"  - {{name: step-{n}, command: 'head -c 2000000 /dev/urandom >/opt/step-{n}'}}\n"
        for n in range(1, 10)
    ]
    (folder / "bench-1.yaml").write_text(
        HEAD + "".join(steps) + f"  - {{name: step-10, command: 'echo {last} >/opt/last'}}\n"
    )


class Bench:
    """One place with empty caches, and what is run there."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder, self.engine = folder, engine
        mirror = (
            (TESTBED / "etc/registry.yml").read_text().partition('addr: "')[2].partition('"')[0]
        )
        (folder / "site.yaml").write_text(
            f"apiVersion: hpcstack/site/v1\nname: bench\nstore: {folder}/store\nlock_dir: "
            f"{folder}/locks\n"
            f"module_root: {folder}/modules\n"
            f'registries: {{nvcr.io: {{mirror: "{mirror}", plain_http: true}}}}\n'
            f"build: {{engine: {engine}, cachedir: {folder}/cache, tmpdir: {folder}/tmp}}\n"
        )
        (folder / "tmp").mkdir()
        (folder / "home/.config/containers").mkdir(parents=True)
        (folder / "home/.config/containers/registries.conf").write_text(
            '[[registry]]\nlocation = "nvcr.io"\ninsecure = true\n'
            f'[[registry.mirror]]\nlocation = "{mirror}"\ninsecure = true\n'
        )
        recipe(folder, "one")

    def hpcstack(self, *words: str) -> float:
        argv = [
            *HPCSTACK,
            "--site",
            f"{self.folder}/site.yaml",
            "--recipes",
            str(self.folder),
            *words,
        ]
        return self.timed(argv)

    def apptainer(self, lent: Path | None = None) -> float:
        """Seconds of `apptainer build` of what was rendered; LENT is bound where steps look for
        what a site lends.
        """
        rendered = self.folder / "rendered"
        env = {"HOME": str(self.folder / "home"), "APPTAINER_CACHEDIR": str(self.folder / "apptainer-cache"),
               "APPTAINER_TMPDIR": str(self.folder / "tmp")}  # fmt: skip
        # As an ordinary user: for root Apptainer wants every capability, which root has not in some
        # containers.
        own = (
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            if not os.geteuid()
            else []
        )
        for name in ("home", "apptainer-cache", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
            if own:
                shutil.chown(self.folder / name, 65534, 65534)
        if own:
            self.folder.chmod(0o755)
            shutil.chown(rendered, 65534, 65534)
        binds = ["--bind", f"{lent}:/mnt"] if lent else []
        return self.timed(
            [*own, "apptainer", "build", "--force", *binds, "out.sif", "apptainer.def"],
            env,
            rendered,
        )

    def timed(
        self, argv: list[str], env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> float:
        began = time.monotonic()
        with (self.folder / "log").open("a") as log:
            done = subprocess.run(
                argv,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                stdout=log,
                stderr=log,
                check=False,
            )
        if done.returncode:
            sys.exit(f"{argv} failed:\n{(self.folder / 'log').read_text()[-3000:]}")
        return time.monotonic() - began


def one_round(engine: str) -> dict[str, float]:
    out: dict[str, float] = {}
    with tempfile.TemporaryDirectory(
        prefix="hpcstack-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")
    ) as name:
        bench = Bench(Path(name), engine)
        bench.hpcstack("lock", "bench-1")
        bench.hpcstack("render", "bench-1", "--output", f"{name}/rendered")
        shutil.rmtree(Path(name) / "cache", ignore_errors=True)
        out["cold"] = bench.hpcstack("build", "bench-1")
        out["click"] = statistics.median(
            bench.timed([sys.executable, "-c", "import click"]) for _ in range(9)
        )
        out["no-op"] = statistics.median(bench.hpcstack("build", "bench-1") for _ in range(9))
        if shutil.which("apptainer"):
            out["apptainer cold"] = bench.apptainer()
            out["apptainer again"] = bench.apptainer()
        recipe(Path(name), "two")
        bench.hpcstack("lock", "bench-1")
        out["one step"] = bench.hpcstack("build", "bench-1")
        if shutil.which("apptainer"):
            bench.hpcstack("render", "bench-1", "--output", f"{name}/rendered")
            out["apptainer one step"] = bench.apptainer()
        subprocess.run(["chmod", "-R", "u+rwX", name], check=False)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="builtin")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rounds = [one_round(chosen.engine) for _ in range(chosen.rounds)]
    median = {what: statistics.median(one[what] for one in rounds) for what in rounds[0]}
    ratio = median["no-op"] / median["click"]
    document = {
        "engine": chosen.engine,
        "rounds": rounds,
        "median": median,
        "no-op, of import click": ratio,
        "bar": 6,
    }
    rows = [
        ("cold, base imported and all", "cold", "apptainer cold"),
        ("last of ten steps changed", "one step", "apptainer one step"),
    ]
    lines = [
        f"| what | hpcstack ({chosen.engine}) s | apptainer build s | times faster |",
        "|---|---|---|---|",
    ]
    for title, mine, theirs in rows:
        peer = median.get(theirs)
        faster = f"{peer / median[mine]:.1f}" if peer else "-"
        lines.append(
            f"| {title} | {median[mine]:.1f} | {f'{peer:.1f}' if peer else 'not installed'} | "
            f"{faster} |"
        )
    lines.append(f"| nothing to do | {median['no-op']:.2f} | {median.get('apptainer again', 0):.1f} (builds again) | "
                 f"{ratio:.1f} times `import click` ({'ok' if ratio < 6 else 'NOT'} < 6) |")  # fmt: skip
    print(json.dumps(document, indent=1) if chosen.json else "\n".join(lines))
    sys.exit(0 if ratio < 6 else 1)


if __name__ == "__main__":
    main()
