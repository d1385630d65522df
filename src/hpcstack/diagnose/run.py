"""The doctor: examine this machine, compute nodes, and what is seen of the cluster from here.

A probe (launchers/on-node/doctor.sh) is run on each machine; checks.py judges what it prints.

Tested in tests/unit/cli/test_admins_day.py and tests/unit/oci/test_ngc.py.
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
from hpcstack.diagnose.filesystem import look_at_filesystems
from hpcstack.diagnose.image_cache import look_at_image_cache
from hpcstack.diagnose.mounting import look_at_mounting, measure_mounting
from hpcstack.diagnose.pyxis import look_at_pyxis
from hpcstack.diagnose.slurm_config import (
    look_at_domains,
    look_at_pmi,
    look_at_slurm_config,
)
from hpcstack.lock.file import LockFile
from hpcstack.oci.client import Registry
from hpcstack.oci.credentials import IDENTITY, find_login
from hpcstack.publish.load_test import LMOD
from hpcstack.render.template import read_data_file
from hpcstack.runtimes import RUNTIMES, choose_runtime
from hpcstack.slurm.client import Client
from hpcstack.slurm.nodelist import NodelistError, expand_typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.recipe.catalog import Catalog
    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site
    from hpcstack.slurm.client import QueuedJob

LABELLED = re.compile(r"^\s*(\d+): (.*)$")  # a line of `srun --label`: the task, what it printed


def examine_machines(
    site: Site,
    runner: Runner,
    nodelist: str,
    job: str,
    partition: str,
    progress: Progress,
    bases: Iterable[Base] = (),
) -> list[Finding]:
    """Examine this machine, the cluster as it is seen from here, and the nodes that are named.

    The nodes are NODELIST's, in PARTITION, or those of JOB; without either none is examined. BASES
    are those that stacks are made from: at each registry, the layers of one of them are asked for.
    """
    script = read_data_file("launchers", "on-node/doctor.sh")
    paths = [str(site.store)] if site.store.exists() else []  # else `_check_places` says so
    runtime = "apptainer"
    if runner.has("srun") or runner.has("apptainer"):
        runtime = choose_runtime(site.runtime, runner)[0].name

    progress("looking at this machine")
    probe_here = ["/bin/sh", "-c", script, "doctor", *paths]
    mine = checks.parse_probe(runner.output(probe_here, timeout=60).stdout)
    here = mine.get("host", "?")
    found = checks.check_machine(mine, runtime, None, compute=False)

    count = _count_nodes(runner, nodelist, job) if nodelist or job else 0
    on: list[str] = []  # words that tell srun on which nodes
    if job:
        on = ["--jobid", job, "--overlap"]
    elif nodelist:
        on = [f"--nodelist={nodelist}", "--time=5"]
        if partition:
            on.append(f"--partition={partition}")

    found += _check_cluster(site, runner, here, runtime, on, progress)
    found += look_at_registries(site, here, list(bases))
    found += _check_places(site, here)
    places = {"store": site.store, "modules": site.module_root}
    found += look_at_filesystems(places, here, runner)
    found += look_at_building(site, here, runner)
    found += look_at_image_cache(site, here)
    found += _check_named(site, here, runner)
    if not nodelist and not job:
        return found

    # this machine's time, to compare with the nodes': the probe of it may be minutes old
    began = time.monotonic()
    now = f"{time.time()}"
    probes = _probe_nodes(runner, script, paths, on, count, progress)
    spent = time.monotonic() - began
    if job and not partition:
        partition = _find_job(runner, job).partition
    node = site.node_type(partition)
    for probe in probes:
        found += checks.check_machine(probe, runtime, node, compute=True)
    found += checks.check_clocks([{**mine, "epoch": now}, *probes], spent)
    return found


def find_locked_bases(catalog: Catalog, site: Site) -> list[Base]:
    """Return the bases of the stacks that are locked: somebody will build on these."""
    found = []
    for name in catalog.names():
        with contextlib.suppress(HpcstackError):  # `lint` says what is wrong with a recipe
            recipe = catalog.find(name)
            if LockFile(recipe, site).path.exists():
                found.append(recipe.stack.base)
    return found


def _probe_nodes(
    runner: Runner, script: str, paths: list[str], on: list[str], count: int, progress: Progress
) -> list[dict[str, str]]:
    """Run the probe on each of COUNT nodes, which srun's words ON name. Return what each said.

    It is one step with a task on each node. SlurmError where no node answers.
    """
    options = [*on, f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    options += ["--label", "--export=ALL"]
    progress(f"looking at {format_count(count, 'node')}")
    done = Client(runner).run_step(options, ["/bin/sh", "-c", script, "doctor", *paths], 300)

    lines: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        match = LABELLED.match(line)
        if match:
            lines[match[1]].append(match[2])
    probes = [checks.parse_probe("\n".join(one)) for one in lines.values()]
    if not probes:
        raise SlurmError(
            f"the nodes were not reached: {' '.join(done.tail[-3:])}",
            "sinfo -R; scontrol show node",
            page="check-a-machine",
        )
    return probes


def _count_nodes(runner: Runner, nodelist: str, job: str) -> int:
    """Return how many nodes JOB has, or NODELIST.

    InputError where Slurm does not know it, or for what is no list.
    """
    if job:
        return _find_job(runner, job).nodes
    return len(expand_typed("--nodelist", nodelist))


def _find_job(runner: Runner, job: str) -> QueuedJob:
    """Return the running JOB as the queue has it; InputError where it does not run."""
    for queued in Client(runner).query_queue([job]) or ():
        if queued.state.word == "RUNNING":
            return queued
    raise InputError(f"job {job} is not running", "squeue --me", page="check-a-machine")


def _check_cluster(
    site: Site, runner: Runner, where: str, runtime: str, on: list[str], progress: Progress
) -> Iterator[Finding]:
    """Check Slurm as it is seen from here, and on one of the nodes that srun's words ON name."""
    if not runner.has("srun"):
        yield report_skipped("slurm", where, "there is no srun on this machine")
        return
    slurm = Client(runner)
    known = slurm.query_partitions()
    if not known:
        yield report_wrong("slurm", where, f"sinfo does not answer: {slurm.find_trouble()}")
        return

    names = ", ".join(known)
    yield report_fine("slurm", where, f"{format_count(len(known), 'partition')}: {names}")
    for name in site.partitions:
        if name not in known:
            said_none = f"site.yaml names partition {name}, Slurm has none"
            yield report_wrong("partition", where, said_none, known=names)
        elif not known[name].up:
            yield report_wrong(
                "partition.down", where, f"partition {name} is not up", partition=name
            )

    reasons = slurm.list_drain_reasons()
    if reasons:
        nodes = format_count(len(reasons), "node")
        yield report_wrong("nodes", where, f"{nodes} down or drained: {reasons[0].strip()}")
    yield from look_at_slurm_config(slurm.read_config(), where)
    with_gpus = [one.gpus for one in site.node_types.values() if one.gpus]
    domain = max((gpus.domain_nodes for gpus in with_gpus), default=0)
    if domain > 1:
        try:
            yield from look_at_domains(domain, slurm.query_blocks(), where)
        except NodelistError as error:
            yield report_wrong("domains", where, error.message)
    yield from _check_plugins(site, runner, where, runtime, on, progress)


def _check_plugins(
    site: Site, runner: Runner, where: str, runtime: str, on: list[str], progress: Progress
) -> Iterator[Finding]:
    """Check what srun can start: MPI by PMI, and images, and how fast nodes mount these."""
    yield from look_at_pmi(Client(runner).list_pmi_types(), where)
    measured = measure_mounting(runner, site, on, progress)
    yield from look_at_mounting(measured, where)
    if RUNTIMES[runtime].is_plugin_of_srun:
        yield from look_at_pyxis(runner, site, where, on, measured)
    elif runner.has("enroot") and not Client(runner).has_pyxis():
        yield report_wrong("pyxis", where, "Enroot is here, srun has no --container-image")


def look_at_registries(site: Site, where: str, bases: list[Base]) -> Iterator[Finding]:
    """Check each registry that the site names, and nvcr.io.

    Does it answer, is there a login for it, and can the layers of one of BASES be fetched?
    """
    if site.build.ca_bundle and not Path(site.build.ca_bundle).is_file():
        return  # `_check_named` says so: without it nothing can be asked
    registry = Registry(site, timeout=5, tries=1)
    for name in dict.fromkeys([*site.registries, "nvcr.io"]):
        ping = registry.ping(name)
        # 401: it answers, and wants a login
        if ping.status not in (200, 401):
            mirror = "" if ping.host == name else f" {ping.host}:"
            said = f"{name}:{mirror} {ping.error or f'answered {ping.status}'}"
            yield report_wrong(
                "registry", where, said, "FAIL" if name in site.registries else "WARN"
            )
            continue

        try:
            found = find_login(ping.host, site.registry(name).credentials)
        except InputError as error:
            yield report_wrong("registry.login", where, f"{name}: {error.message}")
            continue
        login = "without a login"
        if found:
            has_key = found.user in ("$oauthtoken", IDENTITY)
            login = "with a key" if has_key else f"as {found.user}"
        yield report_fine("registry", where, f"{name} answers at {ping.host}, {login}")

        base = next((one for one in bases if one.registry == name), None)
        if base:
            yield _check_layers(registry, base, where)
        ignored = registry.ignored.get(ping.host)
        if ignored:
            said = f"{name} refuses the login in {ignored.source}"
            yield report_wrong("registry.login", where, said)


def _check_layers(registry: Registry, base: Base, where: str) -> Finding:
    """Check whether layers of BASE can be fetched.

    A registry sends clients on to another host for them, which a firewall may not let through.
    """
    try:
        host = registry.reach_layers(base)
    except LoginRefused as error:
        return report_skipped("registry.layers", where, f"not looked at: {error.message}")
    except HpcstackError as error:
        return report_wrong("registry.layers", where, error.message)
    return report_fine("registry.layers", where, f"{host} gives the layers of {base.image}")


def _check_places(site: Site, where: str) -> Iterator[Finding]:
    """Check the store and the module tree, and whether Lmod is there."""
    for what, path in (("store", site.store), ("modules", site.module_root)):
        yield from _check_place(what, path, where)
    if any(Path(path).exists() for path in LMOD):
        yield report_fine("lmod", where, "Lmod is there")
    else:
        yield report_wrong("lmod", where, "Lmod is not found")


def _check_place(what: str, path: Path, where: str) -> Iterator[Finding]:
    """Check whether the folder PATH is there, open to others, and has room."""
    try:
        if not path.exists():
            yield report_wrong("place", where, f"{what}: {path} does not exist yet", path=str(path))
            return
        free = shutil.disk_usage(path).free / (1 << 30)
    except OSError as error:
        yield report_wrong("store", where, f"{what}: {path} cannot be looked at: {error.strerror}")
        return

    # below a home it is its owner's own business
    closed = _find_closed(path)
    if closed and not path.is_relative_to(Path.home()):
        yield report_wrong(
            "place.closed", where, f"{what}: {closed} is closed to others", path=str(closed)
        )
    judge = report_fine if free > checks.TMP_GIB else report_wrong
    yield judge("place.room", where, f"{what}: {path} has {free:.0f} GiB free")


def _check_named(site: Site, where: str, runner: Runner) -> Iterator[Finding]:
    """Report what site.yaml names and this machine, or Slurm, does not have."""
    build = site.build
    folders = [("build.tmpdir", build.tmpdir), ("build.cachedir", build.cachedir)]
    folders += [("recipe_dirs", str(path)) for path in site.recipe_dirs]
    folders += [("mounts", mount.partition(":")[0]) for mount in site.mounts]
    for key, path in folders:
        if path and not Path(path).exists():
            yield report_wrong("named", where, f"{key}: {path} does not exist", key=key)

    key = "build.ca_bundle"
    if build.ca_bundle and not Path(build.ca_bundle).is_file():
        said = f"{key}: {build.ca_bundle} does not exist"
        yield report_wrong("named", where, said, "FAIL", key=key)
    key = "signatures.sign_with"
    signing_key = site.signatures.sign_with
    if signing_key and not Path(signing_key).expanduser().is_file():
        yield report_wrong("named", where, f"{key}: {signing_key} does not exist", key=key)
    yield from _check_named_accounts(site, where)
    yield from _check_named_gpus(site, where, runner)


def _check_named_accounts(site: Site, where: str) -> Iterator[Finding]:
    """Report groups and users that site.yaml names and this machine does not know."""
    for key, group in (("group", site.group), ("modules.group", site.modules.group)):
        if group and not _is_known(grp.getgrnam, group):
            yield report_wrong("named", where, f"{key}: there is no group {group}", "FAIL", key=key)
    key = "modules.check_as"
    user = site.modules.check_as
    if user and not _is_known(pwd.getpwnam, user):
        yield report_wrong("named", where, f"{key}: there is no user {user}", "FAIL", key=key)
    key = "modules.publishers"
    for name in site.modules.publishers:
        if not name.isdecimal() and not _is_known(pwd.getpwnam, name):
            said = f"{key}: there is no user {name}, so releases that {name} published are refused"
            yield report_wrong("named", where, said, "FAIL", key=key)


def _check_named_gpus(site: Site, where: str, runner: Runner) -> Iterator[Finding]:
    """Report node types to which site.yaml gives more GPUs than Slurm has in their partitions."""
    in_slurm = Client(runner).query_partitions()
    for name, partition in site.partitions.items():
        has = in_slurm.get(name)
        if not has:
            continue  # `_check_cluster` says so
        # Of several types, the one with the most: Slurm's number is that of its largest nodes.
        counts = {
            kind: gpus.count for kind in partition.kinds if (gpus := site.node_types[kind].gpus)
        }
        most = max(counts, key=lambda kind: counts[kind], default=partition.kinds[0])
        node_type = f"node_types.{most}"
        promised = counts.get(most, 0)
        if has.gpus is None:
            said = f"{node_type}: what Slurm says of the GPUs in {name} is not understood"
            yield report_wrong("named", where, said, "WARN", key=f"{node_type}.gpus.count")
        elif promised > has.gpus:
            said = f"{node_type}: {promised} GPUs per node, Slurm has {has.gpus} in {name}"
            yield report_wrong("named", where, said, "FAIL", key=f"{node_type}.gpus.count")


def _is_known(look_up: Callable[[str], object], name: str) -> bool:
    """Whether LOOK_UP, which raises KeyError for unknown ones, knows the user or group NAME."""
    try:
        look_up(name)
    except KeyError:
        return False
    return True


def _find_closed(path: Path) -> Path | None:
    """Return the uppermost folder on the way to PATH that others may not enter, if there is one."""
    for folder in [*reversed(path.parents), path]:
        if not folder.stat().st_mode & 0o001:
            return folder
    return None
