"""Examine: the doctor's probe on this machine and on compute nodes, and what only the login side can see."""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict
from pathlib import Path

from hpcstack import doctor
from hpcstack.credentials import credentials
from hpcstack.doctor import Finding
from hpcstack.errors import InputError, SlurmError
from hpcstack.launch.cluster import partitions, read_pmi
from hpcstack.process import Runner
from hpcstack.publish import LMOD
from hpcstack.registry import Registry
from hpcstack.render.template import plain
from hpcstack.runtimes import choose
from hpcstack.site import Site
from hpcstack.talk import Talk

LABELLED = re.compile(r"^\s*(\d+): (.*)$")


def examine(site: Site, runner: Runner, nodelist: str, job: str, partition: str, talk: Talk) -> list[Finding]:
    """All that is right and wrong with this machine, with the cluster as seen from it, and with the nodes named."""
    script = plain("launchers", "doctor.sh")
    paths = [str(site.store)]
    askable = runner.has("srun") or runner.has("apptainer")
    runtime = choose(site.runtime, runner)[0].name if askable else "apptainer"
    talk("looking at this machine")
    mine = doctor.read(runner.output(["/bin/sh", "-c", script, "doctor", *paths], timeout=60).stdout)
    found = doctor.machine(mine, runtime, None, compute=False)
    found += _cluster(site, runner, mine.get("host", "?"), runtime)
    found += _registries(site, mine.get("host", "?"))
    found += _places(site, mine.get("host", "?"))
    if nodelist or job:
        began = time.monotonic()
        probes = _on_nodes(runner, script, paths, nodelist, job, partition, talk)
        spent = time.monotonic() - began
        node = site.node_type(partition)
        for probe in probes:
            found += doctor.machine(probe, runtime, node, compute=True)
        found += doctor.clocks([mine, *probes], spent)
    return found


def _on_nodes(
    runner: Runner, script: str, paths: list[str], nodelist: str, job: str, partition: str, talk: Talk
) -> list[dict[str, str]]:
    """The probe of each node, as one step with a task a node."""
    where = ["--jobid", job, "--overlap"] if job else [f"--nodelist={nodelist}", "--time=5"]
    count = _count(runner, nodelist, job)
    argv = [
        "srun",
        *where,
        *([f"--partition={partition}"] if partition and not job else []),
        f"--nodes={count}",
        "--ntasks-per-node=1",
        "--label",
        "--export=ALL",
        "/bin/sh",
        "-c",
        script,
        "doctor",
        *paths,
    ]
    talk(f"looking at {count} node(s)")
    done = runner.output(argv, timeout=300)
    lines: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if match := LABELLED.match(line):
            lines[match[1]].append(match[2])
    probes = [doctor.read("\n".join(one)) for one in lines.values()]
    if not probes:
        raise SlurmError(f"the nodes were not reached: {' '.join(done.tail[-3:])}", "sinfo -R; scontrol show node")
    return probes


def _count(runner: Runner, nodelist: str, job: str) -> int:
    if job:
        done = runner.output(["squeue", "--noheader", "--jobs", job, "--format", "%D"])
        if done.status or not done.stdout.strip().isdigit():
            raise InputError(f"job {job} does not run", "squeue --me")
        return int(done.stdout)
    plain_list = re.fullmatch(r"[A-Za-z0-9_.,\[\]-]+", nodelist)
    done = runner.output(["scontrol", "show", "hostnames", nodelist])
    if not plain_list or done.status or not done.stdout.split():
        raise InputError(f"--nodelist {nodelist}: no list of nodes", "e.g. --nodelist node[1-4]")
    return len(done.stdout.split())


def _cluster(site: Site, runner: Runner, where: str, runtime: str) -> list[Finding]:
    """Slurm as seen from here."""
    if not runner.has("srun"):
        return [Finding("slurm", where, "SKIP", "there is no srun on this machine")]
    out = []
    known = partitions(runner)
    if not known:
        said = runner.output(["sinfo"], timeout=20)
        out.append(
            Finding(
                "slurm",
                where,
                "FAIL",
                f"sinfo does not answer: {' '.join(said.tail[-1:])}",
                "nothing can be launched",
                "systemctl status slurmctld munge; scontrol ping",
            )
        )
        return out
    out.append(Finding("slurm", where, "OK", f"{len(known)} partition(s): {', '.join(known)}"))
    for name in site.partitions:
        if name not in known:
            out.append(
                Finding(
                    "partition",
                    where,
                    "FAIL",
                    f"site.yaml names partition {name}, Slurm has none",
                    "launches to it are refused",
                    f"Slurm has: {', '.join(known)}",
                )
            )
        elif not known[name].up:
            out.append(
                Finding("partition", where, "WARN", f"partition {name} is not up", "jobs wait", f"sinfo -p {name}")
            )
    reasons = runner.output(
        ["sinfo", "--noheader", "--list-reasons", "--format", "%n %E"], timeout=20
    ).stdout.splitlines()
    if reasons:
        out.append(
            Finding(
                "nodes",
                where,
                "WARN",
                f"{len(reasons)} node(s) down or drained: {reasons[0].strip()}",
                "fewer nodes than the site has",
                "sinfo -R",
            )
        )
    pmi = read_pmi("\n".join(runner.output(["srun", "--mpi=list"], timeout=20).tail))
    if any(name.startswith("pmi") for name in pmi):
        out.append(Finding("pmi", where, "OK", f"srun --mpi: {', '.join(pmi)}"))
    else:
        out.append(
            Finding(
                "pmi",
                where,
                "WARN",
                "srun has neither PMIx nor PMI-2",
                "MPI programs would each be alone",
                "install Slurm's PMIx plugin and libpmix, restart slurmd",
            )
        )
    if runtime != "pyxis" and runner.has("enroot"):
        out.append(
            Finding(
                "pyxis",
                where,
                "WARN",
                "Enroot is here, srun has no --container-image",
                "users who write srun --container-image get an error",
                "plugstack.conf: required .../spank_pyxis.so",
            )
        )
    elif runtime == "pyxis":
        out.append(Finding("pyxis", where, "OK", "srun knows --container-image"))
    return out


def _registries(site: Site, where: str) -> list[Finding]:
    """Each registry that the site names: does it answer, and is there a login for it?"""
    out, registry = [], Registry(site, timeout=5)
    for name in dict.fromkeys([*site.registries, "nvcr.io"]):
        status, who = registry.ping(name)
        if status in (200, 401):
            user, _ = credentials(who, site.registry(name).credentials)
            login = f"as {user}" if user and user != "$oauthtoken" else "with a key" if user else "without a login"
            out.append(Finding("registry", where, "OK", f"{name} answers at {who}, {login}"))
        else:
            said = f"answered {status}" if status else who
            out.append(
                Finding(
                    "registry",
                    where,
                    "FAIL" if name in site.registries else "WARN",
                    f"{name}: {said}",
                    "no base can be looked up or fetched",
                    "registries and build.proxy in site.yaml; curl -I https://.../v2/",
                )
            )
    return out


def _places(site: Site, where: str) -> list[Finding]:
    """The store and the module tree: there, open for their readers, with room."""
    out = []
    for what, path in (("store", site.store), ("modules", site.module_root)):
        if not path.exists():
            out.append(
                Finding(
                    what,
                    where,
                    "WARN",
                    f"{path} is not there yet",
                    "the first build or publish makes it",
                    f"mkdir -p {path}",
                )
            )
            continue
        closed = [one for one in (path, *path.parents) if not one.stat().st_mode & 0o001]
        if closed and not _below_home(path):
            out.append(
                Finding(
                    what,
                    where,
                    "FAIL",
                    f"{closed[-1]} is closed for others",
                    "users cannot read what lies below",
                    f"chmod o+x {closed[-1]}",
                )
            )
        free = shutil.disk_usage(path).free / (1 << 30)
        out.append(
            Finding(
                what,
                where,
                "OK" if free > doctor.TMP_GIB else "WARN",
                f"{path}: {free:.0f} GiB free",
                "" if free > doctor.TMP_GIB else "an image of NVIDIA's PyTorch takes 10 to 20",
                "hpcstack gc --dry-run",
            )
        )
    if not any(Path(path).exists() for path in LMOD):
        out.append(
            Finding(
                "lmod",
                where,
                "WARN",
                "Lmod is not found",
                "publish cannot try a module before users see it",
                "install lmod, or set LMOD_CMD",
            )
        )
    else:
        out.append(Finding("lmod", where, "OK", "Lmod is there"))
    return out


def _below_home(path: Path) -> bool:
    return path.is_relative_to(Path.home())
