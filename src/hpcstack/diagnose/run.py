"""Examine: the doctor's probe on this machine and on compute nodes, and what only the login side
can see.
"""

from __future__ import annotations

import contextlib
import grp
import pwd
import re
import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError, InputError, LoginRefused, SlurmError, format_count
from hpcstack.diagnose import checks
from hpcstack.diagnose.advice import Finding, report_fine, report_skipped, report_wrong
from hpcstack.diagnose.building import look_at_building
from hpcstack.diagnose.image_cache import look_at_image_cache
from hpcstack.diagnose.mounting import look_at_mounting, measure_mounting
from hpcstack.diagnose.pyxis import look_at_pyxis
from hpcstack.lock.file import LockFile
from hpcstack.oci.client import Registry
from hpcstack.oci.credentials import IDENTITY, find_login
from hpcstack.publish.load_test import LMOD
from hpcstack.render.template import read_data_file
from hpcstack.runtimes import choose_runtime
from hpcstack.slurm.query import query_partitions, read_pmi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.recipe.catalog import Catalog
    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

LABELLED = re.compile(r"^\s*(\d+): (.*)$")


def examine_machines(
    site: Site,
    runner: Runner,
    nodelist: str,
    job: str,
    partition: str,
    progress: Progress,
    bases: Iterable[Base] = (),
) -> list[Finding]:
    """All that is right and wrong with this machine, with the cluster as seen from it, and with the
    nodes named. Of the BASES that stacks are made from one is asked for at each registry.
    """
    script = read_data_file("launchers", "on-node/doctor.sh")
    paths = [str(site.store)] if site.store.exists() else []  # else `_places` says so
    askable = runner.has("srun") or runner.has("apptainer")
    runtime = choose_runtime(site.runtime, runner)[0].name if askable else "apptainer"
    progress("looking at this machine")
    mine = checks.parse_probe(
        runner.output(["/bin/sh", "-c", script, "doctor", *paths], timeout=60).stdout
    )
    found = checks.check_machine(mine, runtime, None, compute=False)
    count = _count(runner, nodelist, job) if nodelist or job else 0
    on: list[str] = []
    if job:
        on = ["--jobid", job, "--overlap"]
    elif nodelist:
        on = [f"--nodelist={nodelist}", "--time=5"]
        on += [f"--partition={partition}"] if partition else []
    found += _cluster(site, runner, mine.get("host", "?"), runtime, on, progress)
    found += look_at_registries(site, mine.get("host", "?"), list(bases))
    found += _places(site, mine.get("host", "?"))
    found += look_at_building(site, mine.get("host", "?"), runner)
    found += look_at_image_cache(site, mine.get("host", "?"))
    found += _named(site, mine.get("host", "?"), runner)
    if nodelist or job:
        began, now = time.monotonic(), f"{time.time()}"  # what was read above may be minutes old
        probes = _on_nodes(runner, script, paths, on, count, progress)
        spent = time.monotonic() - began
        node = site.node_type(partition or (_job(runner, job)[1] if job else ""))
        for probe in probes:
            found += checks.check_machine(probe, runtime, node, compute=True)
        found += checks.check_clocks([{**mine, "epoch": now}, *probes], spent)
    return found


def find_locked_bases(catalog: Catalog, site: Site) -> list[Base]:
    """The bases of stacks that are locked: they are there, and somebody will build on them."""
    found = []
    for name in catalog.names():
        with contextlib.suppress(HpcstackError):  # `lint` says what is wrong with a recipe
            recipe = catalog.find(name)
            if LockFile(recipe, site).path.exists():
                found.append(recipe.stack.base)
    return found


def _on_nodes(
    runner: Runner, script: str, paths: list[str], on: list[str], count: int, progress: Progress
) -> list[dict[str, str]]:
    """The probe of each of COUNT nodes, which srun's words ON name, as one step with a task per
    node.
    """
    argv = [
        "srun",
        *on,
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--label",
        "--export=ALL",
    ]
    argv += ["/bin/sh", "-c", script, "doctor", *paths]
    progress(f"looking at {format_count(count, 'node')}")
    done = runner.output(argv, timeout=300)
    lines: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if match := LABELLED.match(line):
            lines[match[1]].append(match[2])
    probes = [checks.parse_probe("\n".join(one)) for one in lines.values()]
    if not probes:
        raise SlurmError(
            f"the nodes were not reached: {' '.join(done.tail[-3:])}",
            "sinfo -R; scontrol show node",
        )
    return probes


def _count(runner: Runner, nodelist: str, job: str) -> int:
    if job:
        return int(_job(runner, job)[0])
    plain_list = re.fullmatch(r"[A-Za-z0-9_.,\[\]-]+", nodelist)
    done = runner.output(["scontrol", "show", "hostnames", nodelist])
    if not plain_list or done.status or not done.stdout.split():
        raise InputError(f"--nodelist {nodelist}: no list of nodes", "e.g. --nodelist node[1-4]")
    return len(done.stdout.split())


def _job(runner: Runner, job: str) -> list[str]:
    """How many nodes a job has, and its partition; InputError for one that does not run."""
    done = runner.output(["squeue", "--noheader", "--jobs", job, "--format", "%D %P"])
    found = done.stdout.split()
    if done.status or len(found) != 2 or not found[0].isdigit():
        raise InputError(f"job {job} is not running", "squeue --me")
    return found


def _cluster(
    site: Site, runner: Runner, where: str, runtime: str, on: list[str], progress: Progress
) -> Iterator[Finding]:
    """Slurm as seen from here, and on a node of those that srun's words ON name."""
    if not runner.has("srun"):
        yield report_skipped("slurm", where, "there is no srun on this machine")
        return
    known = query_partitions(runner)
    if not known:
        said = runner.output(["sinfo"], timeout=20).tail[-1:]
        yield report_wrong("slurm", where, f"sinfo does not answer: {' '.join(said)}")
        return
    yield report_fine(
        "slurm", where, f"{format_count(len(known), 'partition')}: {', '.join(known)}"
    )
    for name in site.partitions:
        if name not in known:
            yield report_wrong(
                "partition",
                where,
                f"site.yaml names partition {name}, Slurm has none",
                known=", ".join(known),
            )
        elif not known[name].up:
            yield report_wrong(
                "partition.down", where, f"partition {name} is not up", partition=name
            )
    why = runner.output(
        ["sinfo", "--noheader", "--list-reasons", "--format", "%n %E"], timeout=20
    ).stdout.splitlines()
    if why:
        yield report_wrong(
            "nodes", where, f"{format_count(len(why), 'node')} down or drained: {why[0].strip()}"
        )
    yield from _plugins(site, runner, where, runtime, on, progress)


def _plugins(
    site: Site, runner: Runner, where: str, runtime: str, on: list[str], progress: Progress
) -> Iterator[Finding]:
    """What srun can start."""
    pmi = read_pmi("\n".join(runner.output(["srun", "--mpi=list"], timeout=20).tail))
    if any(name.startswith("pmi") for name in pmi):
        yield report_fine("pmi", where, f"srun --mpi: {', '.join(pmi)}")
    else:
        yield report_wrong("pmi", where, "srun has neither PMIx nor PMI-2")
    measured = measure_mounting(runner, site, on, progress)
    yield from look_at_mounting(measured, where)
    if runtime == "pyxis":
        yield from look_at_pyxis(runner, site, where, on, measured)
    elif runner.has("enroot") and "--container-image" not in "\n".join(
        runner.output(["srun", "--help"], timeout=20).tail
    ):
        yield report_wrong("pyxis", where, "Enroot is here, srun has no --container-image")


def look_at_registries(site: Site, where: str, bases: list[Base]) -> Iterator[Finding]:
    """Each registry that the site names: does it answer, is there a login for it, and can its
    layers be had?
    """
    if site.build.ca_bundle and not Path(site.build.ca_bundle).is_file():
        return  # `_named` says so: without it nothing can be asked
    registry = Registry(site, timeout=5, tries=1)
    for name in dict.fromkeys([*site.registries, "nvcr.io"]):
        ping = registry.ping(name)
        if ping.status in (200, 401):
            try:
                found = find_login(ping.host, site.registry(name).credentials)
            except InputError as error:
                yield report_wrong("registry.login", where, f"{name}: {error.message}")
                continue
            login = "without a login"
            if found:
                login = (
                    "with a key" if found.user in ("$oauthtoken", IDENTITY) else f"as {found.user}"
                )
            yield report_fine("registry", where, f"{name} answers at {ping.host}, {login}")
            base = next((one for one in bases if one.registry == name), None)
            if base:
                yield _layers(registry, base, where)
            if ignored := registry.ignored.get(ping.host):
                yield report_wrong(
                    "registry.login", where, f"{name} refuses the login in {ignored.source}"
                )
        else:
            mirror = "" if ping.host == name else f" {ping.host}:"
            said = f"{name}:{mirror} {ping.error or f'answered {ping.status}'}"
            yield report_wrong(
                "registry", where, said, "FAIL" if name in site.registries else "WARN"
            )


def _layers(registry: Registry, base: Base, where: str) -> Finding:
    """Whether layers of BASE can be had: a registry sends on to another host for them, that a
    firewall may not know.
    """
    try:
        host = registry.reach_layers(base)
    except LoginRefused as error:
        return report_skipped("registry.layers", where, f"not looked at: {error.message}")
    except HpcstackError as error:
        return report_wrong("registry.layers", where, error.message)
    return report_fine("registry.layers", where, f"{host} gives the layers of {base.image}")


def _places(site: Site, where: str) -> Iterator[Finding]:
    """The store and the module tree, there, open for their readers, with room; and Lmod."""
    for what, path in (("store", site.store), ("modules", site.module_root)):
        yield from _place(what, path, where)
    if any(Path(path).exists() for path in LMOD):
        yield report_fine("lmod", where, "Lmod is there")
    else:
        yield report_wrong("lmod", where, "Lmod is not found")


def _place(what: str, path: Path, where: str) -> Iterator[Finding]:
    try:
        if not path.exists():
            yield report_wrong("place", where, f"{what}: {path} does not exist yet", path=str(path))
            return
        free = shutil.disk_usage(path).free / (1 << 30)
    except OSError as error:
        yield report_wrong("store", where, f"{what}: {path} cannot be looked at: {error.strerror}")
        return
    if (shut := _closed(path)) and not path.is_relative_to(Path.home()):
        yield report_wrong(
            "place.closed", where, f"{what}: {shut} is closed to others", path=str(shut)
        )
    judge = report_fine if free > checks.TMP_GIB else report_wrong
    yield judge("place.room", where, f"{what}: {path} has {free:.0f} GiB free")


def _named(site: Site, where: str, runner: Runner) -> Iterator[Finding]:
    """What site.yaml names and this machine or Slurm does not have."""
    build = site.build
    folders = [("build.tmpdir", build.tmpdir), ("build.cachedir", build.cachedir)]
    folders += [("recipe_dirs", str(path)) for path in site.recipe_dirs]
    folders += [("mounts", mount.partition(":")[0]) for mount in site.mounts]
    for key, path in folders:
        if path and not Path(path).exists():
            yield report_wrong("named", where, f"{key}: {path} does not exist", key=key)
    if build.ca_bundle and not Path(build.ca_bundle).is_file():
        yield report_wrong(
            "named",
            where,
            f"build.ca_bundle: {build.ca_bundle} does not exist",
            "FAIL",
            key="build.ca_bundle",
        )
    key = site.signatures.sign_with
    if key and not Path(key).expanduser().is_file():
        yield report_wrong(
            "named",
            where,
            f"signatures.sign_with: {key} does not exist",
            key="signatures.sign_with",
        )
    for key, group in (("group", site.group), ("modules.group", site.modules.group)):
        if group and not _known(grp.getgrnam, group):
            yield report_wrong("named", where, f"{key}: there is no group {group}", "FAIL", key=key)
    if site.modules.check_as and not _known(pwd.getpwnam, site.modules.check_as):
        yield report_wrong(
            "named",
            where,
            f"modules.check_as: there is no user {site.modules.check_as}",
            "FAIL",
            key="modules.check_as",
        )
    for name in site.modules.publishers:
        if not name.isdecimal() and not _known(pwd.getpwnam, name):
            said = (
                f"modules.publishers: there is no user {name}, so releases that {name} published "
                f"are refused"
            )
            yield report_wrong("named", where, said, "FAIL", key="modules.publishers")
    slurms = query_partitions(runner)
    for name, partition in site.partitions.items():
        node, has = site.node_types[partition.node_type], slurms.get(name)
        promised = node.gpus.count if node.gpus else 0
        if has and promised > has.gpus:  # of one that Slurm has not, `_cluster` tells
            said = (
                f"node_types.{partition.node_type}: {promised} GPUs per node, Slurm has {has.gpus} "
                f"in {name}"
            )
            yield report_wrong(
                "named", where, said, "FAIL", key=f"node_types.{partition.node_type}.gpus.count"
            )


def _known(look: Callable[[str], object], name: str) -> bool:
    try:
        look(name)
    except KeyError:
        return False
    return True


def _closed(path: Path) -> Path | None:
    """The uppermost folder on the way to PATH that others may not enter."""
    for folder in [*reversed(path.parents), path]:
        if not folder.stat().st_mode & 0o001:
            return folder
    return None
