"""The script of `hpcstack site health`, by real shells: programs that hang, fail and lie, and what
it says of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcstack.render.launchers import render_health
from hpcstack.site.load import Site
from support.journal import as_journal

SITE = {
    "name": "demo", "node_types": {
        "gpu": {"gpus": {"model": "H100", "count": 2, "nvlink": True}, "driver": "550.54.15", "hcas": ["mlx5_0"], "hca_rate": 400},
        "cpu": {"cpus": 4}, "odd": {"hcas": ["$(touch /tmp/no);'\"x"]},
    },
    "partitions": {"g": {"node_type": "gpu", "default": True}, "c": {"node_type": "cpu"}},
}  # fmt: skip
GOOD = {
    "index,uuid,mig.mode.current": "0, GPU-aa, Disabled\n1, GPU-bb, Disabled\n",
    "ecc.errors.uncorrected.volatile.sram": "0, 0\n1, 0\n",
    # of long ago, which nothing takes back: no reason
    "ecc.errors.uncorrected.aggregate.sram": "0, 0\n1, 4\n",
    "remapped_rows.failure": "0, No\n1, No\n",
    "gpu_recovery_action": "0, None\n1, None\n",
}
LINKS = (
    "GPU 0: NVIDIA H100 (UUID: GPU-aa)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\nGPU 1: "
    "NVIDIA H100 (UUID: GPU-bb)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n"
)
REFUSED = 'Field "%s" is not a valid field to query.\n\n'


def smi(
    folder: Path,
    query: dict[str, str] | None = None,
    links: str = LINKS,
    hangs: str = "",
    status: int = 0,
    slices: int = 0,
    slow: float = 0,
) -> None:
    """An nvidia-smi that answers GOOD but for QUERY ({field: text, or None for a driver that does
    not know it}).
    """
    answers = folder / "answers"
    answers.mkdir(exist_ok=True)
    for old in answers.iterdir():
        old.unlink()
    for field, text in {**GOOD, **(query or {})}.items():
        if not text.startswith(
            "Field "
        ):  # what a driver does not know, it refuses, and says so by its exit status
            (answers / field).write_text(text)
    (folder / "links").write_text(links)
    (folder / "slices").write_text(
        "GPU 0: A100 (UUID: GPU-aa)\n" + "  MIG 1g.10gb Device 0: (UUID: MIG-x)\n" * slices
    )
    tool = folder / "bin/nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    # A process that heeds no signal but KILL, as one that waits for a broken device
    tool.write_text(f"""#!/bin/sh
sleep {slow}
case $1 in
{hangs or "nothing"}*) trap '' TERM INT HUP; sleep 20 ;;
--query-gpu=index,uuid,mig.mode.current) cat {answers}/index,uuid,mig.mode.current; exit {status} ;;
--query-gpu=index,*)
    if [ -e "{answers}/${{1#--query-gpu=index,}}" ]; then cat "{answers}/${{1#--query-gpu=index,}}"; exit 0; fi
    printf 'Field "%s" is not a valid field to query.\\n\\n' "${{1#--query-gpu=index,}}"
    exit 2 ;;
nvlink) cat {folder}/links ;;
-L) cat {folder}/slices ;;
esac
""")
    tool.chmod(0o755)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with two GPUs and one port, all well."""
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (tmp_path / "proc/uptime").write_text("100000.00 1.00\n")
    smi(tmp_path)
    clock = tmp_path / "bin/date"
    clock.write_text(
        f'#!/bin/sh\nif [ "$*" = +%s ]; then exec cat {tmp_path}/clock; fi\nexec /usr/bin/date "$@"\n'
    )
    clock.chmod(0o755)
    pass_time(tmp_path, 0)
    return tmp_path


def pass_time(node: Path, seconds: int) -> None:
    """SECONDS pass for the script: it reads its clock by `date +%s`."""
    clock = node / "clock"
    now = int(clock.read_text()) if clock.exists() else int(time.time())
    clock.write_text(f"{now + seconds}\n")


def told(
    folder: Path, shell: str = "dash", site: dict[str, Any] | None = None, **env: str
) -> tuple[int, dict[str, Any], float]:
    """(status, what was printed, seconds) of the script on the node in FOLDER."""
    paths = {"store": str(folder), "lock_dir": str(folder), "module_root": str(folder)}
    script = folder / "health.sh"
    own = {"health": {"folder": str(folder / "health.d"), "ignore": ["kernel"]}}
    script.write_text(render_health(Site.model_validate({**SITE, **own, **paths, **(site or {})})))
    text = script.read_text().replace(
        "PATH=/usr/sbin", f"PATH={folder}/bin:/usr/sbin", 1
    )  # before the machine's own
    script.write_text(text)
    base = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    base |= {
        "PATH": f"{base['PATH']}:{folder}/bin",
        "HPCSTACK_HEALTH_ROOT": str(folder),
        "HPCSTACK_NODE_TYPE": "gpu",
    }
    began = time.monotonic()
    done = subprocess.run(
        [shell, str(script)], env={**base, **env}, capture_output=True, text=True, timeout=60
    )
    took = time.monotonic() - began
    assert done.stderr == "" or env, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document, took


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_node_that_is_well(node: Path, shell: str) -> None:
    own = node / "bin/mktemp"  # says where the script works: others may do so beside it
    own.write_text(f'#!/bin/sh\n/usr/bin/mktemp "$@" | tee -a {node}/made\n')
    own.chmod(0o755)
    status, found, took = told(node, shell)
    assert status == 0 and found["healthy"] and found["checks"] == 6, found
    assert took < 2
    (made,) = (node / "made").read_text().splitlines()
    assert made.startswith("/dev/shm/hpcstack-health.")
    assert not Path(made).exists()


@pytest.mark.parametrize(("change", "says"), [
    ({"query": {"index,uuid,mig.mode.current": "0, GPU-aa, Disabled\n"}}, "1 of 2 GPUs"),
    ({"query": {"ecc.errors.uncorrected.volatile.sram": "0, 0\n1, 3\n"}}, ("GPU 1: 3 uncorrectable errors in SRAM since the driver " "was")),
    ({"query": {"ecc.errors.uncorrected.aggregate.sram": "0, 0\n1, 5\n"}}, ("GPU 1: 5 uncorrectable errors in SRAM since it was " "made")),
    ({"query": {"remapped_rows.failure": "0, Yes\n1, No\n"}}, "GPU 0: a row could not be remapped"),
    ({"query": {"gpu_recovery_action": "0, Reset\n1, None\n"}}, "GPU 0: the driver asks for Reset"),
    ({"query": {"index,uuid,mig.mode.current": ("0, GPU-aa, Disabled\n1, GPU-bb, [GPU requires " "reset]\n")}}, ("GPU 1 does not " "answer")),
    # what a GPU does not say is no fault
    ({"query": dict.fromkeys(list(GOOD)[1:], "0, [N/A]\n1, [N/A]\n")}, ""),
    # c: nor what a driver does not know
    ({"query": {name: REFUSED % name for name in list(GOOD)[1:]}}, ""),
    ({"query": {"index,uuid,mig.mode.current": ("NVML: Driver/library version " "mismatch\n")}, "status": 18}, ("nvidia-smi failed: NVML: " "Driver/library")),
    ({"query": {"index,uuid,mig.mode.current": "$(id) `id` \"; drop\n"}, "status": 1}, ("nvidia-smi failed: $(id) " "`id`")),
    ({"links": LINKS.replace(("Link 1: 26.562 " "GB/s"), "Link 1: <inactive>", 1)}, ("GPU 0: NVLink 1 is " "inactive")),
    # f: H100 NVL has 12 of 18
    ({"links": LINKS.replace("Link 1: 26.562 GB/s", "Link 1: <inactive>")}, ""),
    ({"links": LINKS.replace("26.562 GB/s", "<inactive>")}, "GPU 0: no NVLink is active"),
    ({"links": ("NVML: Unable to retrieve Nvlink information as all links are " "inActive\n")}, ("no NVLink is " "active")),
    ({"links": "Nvlink queries are not supported for Devices in MIG mode\n"}, ""),
    # e: slices count
    ({"query": {"index,uuid,mig.mode.current": "0, GPU-aa, Enabled\n"}, "slices": 2}, ""),
    ({"query": {"index,uuid,mig.mode.current": ("0, GPU-aa, " "Enabled\n")}, "slices": 1}, "1 of 2 GPUs"),
    ({"slow": 0.4}, ""),  # d: a busy node is no broken one
])  # fmt: skip
def test_what_is_wrong_with_its_gpus(node: Path, change: dict[str, Any], says: str) -> None:
    smi(node, **change)
    status, found, _ = told(node)
    assert status == (1 if says else 0), found
    assert found["healthy"] is (not says), found
    assert not says or says in "; ".join(one["why"] for one in found["failed"])


@pytest.mark.parametrize("hangs", ["--query", "nvlink"])
def test_by_hand_what_does_not_answer_is_unknown(node: Path, hangs: str) -> None:
    smi(node, hangs=hangs)
    status, found, took = told(node)
    assert (
        status == 0
        and found["healthy"] is None
        and "nvidia-smi has not answered yet" in found["unknown"]
    ), found
    assert took < 8


CORPORA = yaml.safe_load((Path(__file__).parents[2] / "data/corpora.yaml").read_text())


@pytest.mark.parametrize("capture", CORPORA["captures"], ids=lambda one: str(one["name"]))
def test_the_boards_of_two_public_corpora(node: Path, capture: dict[str, Any]) -> None:
    """Values that real boards gave, with 17 drivers; all but one are healthy, idle and loaded, with
    MIG and without.
    """
    gpus = [{**capture.get("common", {}), **gpu} for gpu in capture["gpus"]]
    unknown = capture.get("unknown_fields", [])
    query = {
        name: "".join(f"{n}, {gpu[name]}\n" for n, gpu in enumerate(gpus))
        if name not in unknown and name in gpus[0]
        else REFUSED % name
        for name in list(GOOD)[1:]
    }
    mig = capture["mig"]
    query["index,uuid,mig.mode.current"] = "".join(
        f"{n}, GPU-{n}, {'Enabled' if mig else 'Disabled'}\n" for n in range(len(gpus))
    )
    smi(node, query, slices=7 if mig else 0)
    promised = {"model": "any", "count": 7 if mig else len(gpus)}
    site = {"node_types": {"gpu": {"gpus": promised, "driver": "550.54.15"}}, "partitions": {}}
    status, found, _ = told(node, site=site)
    assert (status, found["failed"]) == (0, []), (capture.get("why"), found)


def log_of(node: Path, *messages: str) -> dict[str, Any]:
    """What the script says on a node whose kernel has logged MESSAGES."""
    (node / "journal").write_text(as_journal(list(messages)))
    (node / "bin/journalctl").write_text(
        f"#!/bin/sh\ncase $* in *short-unix*) cat {node}/journal ;; *) exit 1 ;; esac\n"
    )
    (node / "bin/journalctl").chmod(0o755)
    _, found, _ = told(node, site={"health": {"folder": "/nowhere"}}, HPCSTACK_NODE_TYPE="2")
    return found


FATAL = [
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    (
        "NVRM: Xid (PCI:0000:3b:00): 95, pid=12, name=python, Uncontained: LTC (0x1). RST: Yes, "
        "D-RST: No"
    ),
    (
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU "
        "Reset Required)"
    ),
    "NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=x, DBE",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    (
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 "
        "page:0x1 offset:0x0 grain:32)"
    ),
    "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:00:01.0",
    (
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory "
        "lblock 0"
    ),
    (
        "XFS (sda1): Corruption of in-memory data (0x8) detected at xfs_trans_cancel. Shutting "
        "down filesystem."
    ),
]
HARMLESS = [
    # g
    (
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset "
        "Required) to 0x0 (None)"
    ),
    "NVRM: Xid (PCI:0000:3b:00): 63, pid=1, name=x, Row Remapper: New row marked for remapping",
    # what a program of any user brings about: NVIDIA's catalogue says to restart that
    (
        "NVRM: Xid (PCI:0000:3b:00): 69, pid=12, name=python3, Class Error: ChId 0005, Class "
        "0000a097, Offset 00000d9c"
    ),
    "NVRM: Xid (PCI:0000:3b:00): 68, pid=12, name=ffmpeg, NVDEC0 Exception",
    "NVRM: Xid (PCI:0000:3b:00): 80, pid=12, name=python3, PBDMA: pushbuffer CRC mismatch",
    "NVRM: Xid (PCI:0000:3b:00): 94, pid=12, name=python3, Contained: SM (0x1)",
    "NVRM: Xid (PCI:0000:3b:00): 92, High single-bit ECC error rate",
    "NVRM: Xid (PCI:0000:3b:00): 155, NVLINK: SW Defined Error",
    "NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=x): 79, y, Graphics Exception",
    "NVRM: Xid (PCI:0000:3b:00): 31, pid=12, name=python3, Ch 00000008, intr 10000000. MMU Fault",
    "pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:00:01.0",
    "EDAC MC0: 0 UE on any memory ( page:0x0 offset:0x0 grain:32)",
    "EDAC MC0: 3 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)",
    # N13: processes of 15 characters, which segfault
    (
        "EXT4-fs error [4711]: segfault at 0 ip 0000 sp 0000 error 4 in x[400000+1000] likely on "
        "CPU 3 (core 1, socket 0)"
    ),
    (
        "EDAC MC0: 1 UE [4711]: segfault at 0 ip 0000 sp 0000 error 4 in x[400000+1000] likely on "
        "CPU 3 (core 1, socket 0)"
    ),
    "NVRM: Xid : 79,[4711]: segfault at 0 ip 0000 sp 0000 error 4",
    "XFS Corruption[4711]: segfault at 0 ip 0000 sp 0000 error 4",
    "nvidia-nvswitch0: SXid [4711]: segfault at 0 ip 0000 sp 0000 error 4",
    # an image file of a user's, mounted
    (
        "EXT4-fs error (device loop0): ext4_find_entry:1455: inode #2: comm ls: reading directory "
        "lblock 0"
    ),
    (
        "XFS (loop1): Corruption of in-memory data (0x8) detected at xfs_trans_cancel. Shutting "
        "down filesystem."
    ),
    "traps: EXT4-fs error[4711] general protection fault ip:0 sp:0 error:0",
]


@pytest.mark.parametrize("line", FATAL)
def test_what_the_kernel_logs_of_a_broken_node(node: Path, line: str) -> None:
    found = log_of(node, "usb 1-1: new device", line)
    assert found["healthy"] is False and line[:40] in found["failed"][0]["why"], found


def test_what_the_kernel_logs_of_a_healthy_one_and_what_users_make_it_log(node: Path) -> None:
    found = log_of(node, *HARMLESS)
    assert found["healthy"] is True, found


@pytest.mark.parametrize("line", FATAL)
def test_no_user_writes_what_drains_a_node(node: Path, line: str) -> None:
    """N13: the kernel names the program that failed, and the file in which it did: these are the
    user's to choose.
    """
    of_program = (
        f"{line[:15]}[4711]: segfault at 0 ip 0000 sp 0000 error 4 in x[400000+1000] likely on CPU "
        f"3"
    )
    of_file = f"a[4711]: segfault at 0 ip 0000 sp 0000 error 6 in {line}[1132,400000+1000]"
    over_two_lines = (
        f"a[4711]: segfault at 0 ip 0000 sp 0000 error 6 in a\n{line}[1132,400000+1000]"
    )
    found = log_of(node, of_program, of_file, over_two_lines)
    assert found["healthy"] is True, found


def test_without_a_journal_dmesg_is_read_and_what_is_old_there_is_no_reason(node: Path) -> None:
    now = 100_000.0
    (node / "proc/uptime").write_text(f"{now} 1\n")
    for age, healthy in ((60, False), (3 * 3600, True)):
        (node / "bin/dmesg").write_text(f"#!/bin/sh\necho '[{now - age:12.6f}] {FATAL[3]}'\n")
        (node / "bin/dmesg").chmod(0o755)
        assert log_of(node)["healthy"] is healthy, age


@pytest.mark.parametrize(("file", "text", "says"), [
    ("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN", "mlx5_0 is DOWN"),
    ("sys/class/infiniband/mlx5_0/ports/1/rate", ("200 Gb/sec (4X " "HDR)"), ("mlx5_0 has 200 of 400 " "Gb/s")),
    ("proc/driver/nvidia/version", "NVRM version: Module  535.1  x", "the driver is not 550.54.15"),
    ("sys/class/infiniband/mlx5_0", None, "mlx5_0 is not here"),
    ("proc/driver/nvidia/version", None, "no NVIDIA driver"),
])  # fmt: skip
def test_what_is_missing_on_it(node: Path, file: str, text: str | None, says: str) -> None:
    place = node / file
    if text is None:
        place.rename(node / "gone")
    else:
        place.write_text(f"{text}\n")
    status, found, _ = told(node)
    assert status == 1 and says in "; ".join(one["why"] for one in found["failed"]), found


@pytest.mark.parametrize(("hca", "files", "healthy"), [
    ("mlx5_0:1", {}, True),  # b
    ("mlx5_0:2", {}, False),
    ("mlx5_0", {"infiniband/mlx5_0/ports/2/state": "1: DOWN", "infiniband/mlx5_0/ports/2/rate": ("10 Gb/sec (4X " "SDR)")}, True),
    ("cxi0", {"cxi/cxi0/device/net/hsn0/operstate": "up"}, True),  # a
    ("cxi0", {"cxi/cxi0/device/net/hsn0/operstate": "down"}, False),
    ("cxi0", {}, False),
])  # fmt: skip
def test_ports_as_sites_name_them(
    node: Path, hca: str, files: dict[str, str], healthy: bool
) -> None:
    for path, text in files.items():
        place = node / "sys/class" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}\n")
    site = {"node_types": {"gpu": {"hcas": [hca], "hca_rate": 400}}, "partitions": {}}
    _, found, _ = told(node, site=site)
    assert found["healthy"] is healthy, found


def test_another_kind_of_node_needs_none_of_it(node: Path) -> None:
    smi(node, hangs="-")
    status, found, _ = told(node, HPCSTACK_NODE_TYPE="2")
    assert status == 0
    assert found["checks"] == 3


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is slurmd's health check")
MIXED = {
    "node_types": {
        "a100x4": {"gpus": {"model": "A100", "count": 4}},
        "a10x4": {"gpus": {"model": "A10", "count": 4}},
        "a100x8": {"gpus": {"model": "A100", "count": 8}},
        "rtx": {"gpus": {"model": "RTX 40xx", "count": 2}},
        "cpu": {"cpus": 64},
        "mig": {"cpus": 48, "gpus": {"model": "A100", "count": 0, "mig": {"1g.5gb": 28}}},
        "h100": {"cpus": 96, "gpus": {"model": "H100", "count": 8}},
        "h100big": {"cpus": 192, "gpus": {"model": "H100", "count": 8}},
    },
    "partitions": {
        "gpu": {"node_types": ["a10x4", "a100x8", "a100x4", "rtx", "cpu", "mig", "h100", "h100big"]},
        "other": {"node_type": "cpu"},
    },
}  # fmt: skip


@needs_root
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("gpu|64|gpu:a100:4(S:0-1)", "a100x4"),
        ("gpu|64|gpu:a100:4(S:0-1),shard:8", "a100x4"),
        ("gpu|64|nic:8,gpu:A100:4(S:0,1)", "a100x4"),
        ("gpu|64|gpu:a100:4(S:0),gpu:a100:4(S:1)", "a100x8"),
        ("gpu|64|gpu:nvidia_a100-sxm4-80gb:8", "a100x8"),
        ("gpu|64|gpu:a10:4", "a10x4"),
        ("gpu|64|gpu:nvidia_geforce_rtx_4090:2", "rtx"),
        ("gpu|64|(null)", "cpu"),
        ("gpu|64|tmpfs:1", "cpu"),
        ("gpu|48|gpu:1g.5gb:28(S:0-3)", "mig"),
        ("gpu|192+|gpu:h100:8", "h100big"),
        ("other|1|gpu:a100:4", "cpu"),  # the site says that these nodes have none
        ("gpu|64|gpu:h100:4", ""),  # a kind that the site does not name
        ("gpu|64|gpu:a100:40", ""),
        ("gpu|64|gpu:4", ""),  # it may be one of two
        ("gpu|128|gpu:h100:8", ""),
    ],
)
def test_which_kind_a_node_of_a_mixed_partition_is(node: Path, said: str, kind: str) -> None:
    """A node of another type than the partition's first would be drained for what it never had."""
    (node / "bin/sinfo").write_text(f"#!/bin/sh\necho '{said}'\n")
    (node / "bin/sinfo").chmod(0o755)
    (node / "state").mkdir()
    own = {"HPCSTACK_HEALTH_STATE": f"{node}/state", "SLURMD_NODENAME": "n1"}
    _, found, _ = told(node, site=MIXED, HPCSTACK_NODE_TYPE="", **own)
    known = node / "state/kind"
    number = int(known.read_text()) if known.exists() else 0
    assert (["", *MIXED["node_types"]][number]) == kind
    if not kind:
        assert found["healthy"] is not True, "that it is well is not known"


def test_a_site_has_checks_of_its_own(node: Path) -> None:
    own = node / "health.d"
    own.mkdir()
    for name, text in (
        ("good", "exit 0"),
        ("bad.sh", "echo the clock is wrong; exit 1"),
        ("odd name", "exit 0"),
    ):
        (own / name).write_text(f"#!/bin/sh\n{text}\n")
        (own / name).chmod(0o755)
    (own / "notes.txt").write_text("not a program")
    status, found, _ = told(node)
    assert status == 1 and [one["why"] for one in found["failed"]] == ["the clock is wrong"], found
    assert found["checks"] == 9


def test_what_the_site_writes_is_text(node: Path) -> None:
    status, found, _ = told(node, HPCSTACK_NODE_TYPE="3")
    assert status == 1
    assert "is not here" in found["failed"][0]["why"]
    assert not Path("/tmp/no").exists()


class Slurm:
    """sinfo and scontrol of a made-up cluster of 100 nodes, as `n1` sees it."""

    def __init__(self, node: Path) -> None:
        self.node = node
        self.calls = node / "calls"
        self.state("idle|root|none", [])

    def state(self, own: str, others: list[str]) -> None:
        """OWN is `STATE|USER|REASON` of n1; OTHERS are `NODE|TIME|REASON` of others."""
        state, user, reason = own.split("|")
        rows = "\n".join(
            [*others, *(f"n{number}|Unknown|none" for number in range(len(others) + 1, 101))]
        )
        (self.node / "bin/sinfo").write_text(f"""#!/bin/sh
case "$*" in
*%T*%u*) echo '{state}|{user}|{reason}' ;;
*%T*) echo '{state}|{reason}' ;;
*) cat <<'END'
{rows}
END
;;
esac
""")
        (self.node / "bin/scontrol").write_text(f'#!/bin/sh\necho "$@" >>{self.calls}\n')
        for name in ("sinfo", "scontrol"):
            (self.node / "bin" / name).chmod(0o755)

    def told(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


def rounds(node: Path, count: int, apart: int = 2, **more: Any) -> list[dict[str, Any]]:
    """What slurmd's health check program says, COUNT times, its probes having had time between.

    APART are the seconds between two rounds by the script's clock: its answers have whole ones.
    """
    found = []
    for _ in range(count):
        status, said, took = told(
            node,
            SLURMD_NODENAME="n1",
            HPCSTACK_HEALTH_STATE=str(node / "state"),
            HPCSTACK_HEALTH_LIMIT="1",
            **more,
        )
        assert status == 0
        assert took < (6.0 if "drain" in said["action"] or said["action"] == "brake" else 1.5), (
            "slurmd waits for it"
        )
        found.append(said)
        until = time.monotonic() + 3
        while (
            time.monotonic() < until
            and subprocess.run(
                ["pgrep", "-f", f"{node}/health.sh --probes"], capture_output=True
            ).returncode
            == 0
        ):
            time.sleep(0.05)
        pass_time(node, apart)
    return found


@needs_root
def test_slurmd_is_told_nothing_at_first_and_then_that_all_is_well(node: Path) -> None:
    slurm = Slurm(node)
    first, second = rounds(node, 2)
    assert first["healthy"] is None
    assert "has not answered yet" in first["unknown"]
    assert second["healthy"] is True and second["action"] == "none", second
    assert slurm.told() == []


@needs_root
def test_evidence_drains_once_and_what_somebody_else_has_drained_stays_his(node: Path) -> None:
    slurm = Slurm(node)
    smi(node, {"index,uuid,mig.mode.current": "0, GPU-aa, Disabled\n"})
    assert rounds(node, 2)[-1]["action"] == "drain"
    assert slurm.told() == ["update nodename=n1 state=drain reason=hpcstack: 1 of 2 GPUs"]
    for own, action in (
        ("drained|root|hpcstack: 1 of 2 GPUs", "drain"),
        ("draining|alice|new memory", "none"),
    ):
        slurm.state(own, [])
        assert rounds(node, 1)[-1]["action"] == action
    assert len(slurm.told()) == 1, "and no reason of somebody else is written over"
    slurm.state("down|alice|RMA 123", [])
    assert rounds(node, 1)[-1]["action"] == "none"
    assert len(slurm.told()) == 1


@needs_root
def test_one_miss_is_a_note_and_the_last_in_a_row_drains(node: Path) -> None:
    slurm = Slurm(node)
    smi(node, hangs="nvlink")
    found = rounds(node, 4, site={"health": {"folder": "/none", "ignore": ["kernel"], "misses": 3}})
    assert [one["action"] for one in found] == ["none", "none", "none", "drain"], found
    assert "(1 of 3)" in found[1]["unknown"]
    assert found[1]["healthy"] is None
    assert "nvidia-smi does not answer" in slurm.told()[0]


@needs_root
def test_a_query_that_waits_in_the_kernel_is_evidence(node: Path) -> None:
    """D state, where no signal ends it, so that the probe itself never ends either: the first miss
    drains.
    """
    slurm = Slurm(node)
    waits = node / "bin/timeout"
    waits.write_text(
        '#!/bin/sh\ncase $* in *nvlink*) sleep 20 ;; esac\nexec /usr/bin/timeout "$@"\n'
    )
    waits.chmod(0o755)
    (node / "proc/4711").mkdir()
    (node / "proc/4711/stat").write_text("4711 (nvidia-smi) D 1 1 1 0 -1 4194304\n")
    (node / "proc/4711/status").write_text("Name:\tnvidia-smi\nUid:\t0\t0\t0\t0\n")
    site = {"health": {"folder": "/none", "ignore": ["kernel"], "misses": 5}}
    found = rounds(node, 3, apart=4, site=site)
    assert [one["action"] for one in found] == ["none", "none", "drain"], found
    assert "hangs in the kernel" in slurm.told()[0]


@needs_root
@pytest.mark.parametrize(
    ("users", "said", "is_evidence"),
    [
        ("0 0 0 0", "4711 (nvidia-smi) D 1 1", True),
        ("1000 1000 1000 1000", "4711 (nvidia-smi) D 1 1", False),
        ("1000 0 0 0", "4711 (nvidia-smi) D 1 1", False),
        ("0 0 0 0", "4711 ((nvidia-smi) D ) S 1 1", False),
        ("0 0 0 0", "4711 (x) (nvidia-smi) D 1 1", False),
        ("0 0 0 0", "4711 (nvidia-smi) S 1 1", False),
        ("0 0 0 0", "4711 (nvidia-smi\n) D ) S 1 1", False),
    ],
)
def test_t14_a_process_that_any_user_can_name_is_no_evidence(
    node: Path, users: str, said: str, is_evidence: bool
) -> None:
    told(node)
    text = (node / "health.sh").read_text()
    function = text[text.index("stuck() {") :].partition("\n}\n")[0] + "\n}\n"
    process = node / "proc/4711"
    process.mkdir()
    (process / "stat").write_text(f"{said}\n")
    numbers = users.replace(" ", "\t")
    (process / "status").write_text(f"Name:\tnvidia-smi\nUid:\t{numbers}\nGid:\t0\t0\t0\t0\n")
    done = subprocess.run(["sh", "-c", f"root={node}\n{function}stuck"], check=False)
    assert (done.returncode == 0) == is_evidence


@needs_root
def test_what_several_nodes_miss_is_a_servers_fault(node: Path) -> None:
    """A file server that stalls all nodes would drain as many as the brake lets: two stay, the
    others are well.
    """
    slurm = Slurm(node)
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    smi(node, hangs="nvlink")
    why = "hpcstack: nvidia-smi does not answer"
    slurm.state("idle|root|none", [f"n{number}|{now}|{why}" for number in (2, 3)])
    site = {"health": {"folder": "/none", "ignore": ["kernel"], "misses": 2, "max_drains": "50%"}}
    assert rounds(node, 3, site=site)[-1]["action"] == "brake"
    assert slurm.told() == []
    slurm.state("idle|root|none", [f"n2|{now}|{why}", f"n3|{now}|hpcstack: /home does not answer"])
    assert rounds(node, 1, site=site)[-1]["action"] == "drain"


@needs_root
def test_no_more_nodes_are_drained_at_a_time_than_the_site_says(node: Path) -> None:
    slurm = Slurm(node)
    smi(node, {"index,uuid,mig.mode.current": "0, GPU-aa, Disabled\n"})
    slurm.state(
        "idle|root|none",
        [f"n{number}|2020-01-01T00:00:00|hpcstack: long ago" for number in range(2, 12)],
    )
    assert rounds(node, 2)[-1]["action"] == "brake"
    assert slurm.told() == []
    slurm.state(
        "idle|root|none",
        [f"n{number}|2020-01-01T00:00:00|hpcstack: long ago" for number in range(2, 11)],
    )
    assert rounds(node, 1)[-1]["action"] == "drain"


@needs_root
def test_what_a_node_finds_when_it_has_just_come_up_is_not_yet_evidence(node: Path) -> None:
    """A port is INIT and GPUs come one by one for the first minutes."""
    slurm = Slurm(node)
    port = node / "sys/class/infiniband/mlx5_0/ports/1/state"
    port.write_text("2: INIT\n")
    (node / "proc/uptime").write_text("75.20 300.10\n")
    found = rounds(node, 2)[-1]
    assert found["action"] == "none"
    assert found["healthy"] is None
    assert "mlx5_0 is INIT" in found["unknown"]
    port.write_text("4: ACTIVE\n")
    assert rounds(node, 2)[-1]["healthy"] is True
    assert slurm.told() == []
    port.write_text("2: INIT\n")
    (node / "proc/uptime").write_text("7500.20 300.10\n")
    assert rounds(node, 2)[-1]["action"] == "drain"


@needs_root
def test_what_was_there_before_somebody_gave_a_node_back_does_not_drain_it_again(
    node: Path,
) -> None:
    """A line of the kernel's log of the last two hours, of a GPU that was replaced meanwhile."""
    slurm = Slurm(node)
    lines = node / "log"
    lines.write_text(
        as_journal(["NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."])
    )
    journal = node / "bin/journalctl"  # as the real one: nothing of before --since
    journal.write_text(f"""#!/bin/sh
for word; do case $word in --since=@*) since=${{word#--since=@}} ;; esac; done
if [ "$(stat -c %Y {lines})" -ge "$since" ]; then cat {lines}; fi
""")
    journal.chmod(0o755)
    site = {"health": {"folder": "/none", "clean": 2}}
    assert rounds(node, 2, site=site)[-1]["action"] == "drain"
    slurm.state("drained|root|hpcstack: NVRM: Xid", [])
    assert rounds(node, 1, site=site)[-1]["action"] == "drain"
    slurm.state("idle|root|none", [])
    found = rounds(node, 4, site=site)
    assert [one["action"] for one in found] == ["none"] * 4
    assert found[-1]["healthy"]
    assert len(slurm.told()) == 1
    assert "reset:" not in (node / "state/kept").read_text(), (
        "and what it finds next may be given back"
    )


@needs_root
def test_the_brake_holds_for_the_whole_cluster(node: Path) -> None:
    slurm = Slurm(node)
    smi(node, {"index,uuid,mig.mode.current": "0, GPU-aa, Disabled\n"})
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    slurm.state(
        "idle|root|none",
        [f"n{number}|{now}|hpcstack: nvidia-smi does not answer" for number in (2, 3)],
    )
    found = rounds(node, 2)[-1]
    assert found["action"] == "brake"
    assert found["healthy"] is False
    assert slurm.told() == []
    slurm.state(
        "idle|root|none", [f"n{number}|2020-01-01T00:00:00|hpcstack: long ago" for number in (2, 3)]
    )
    assert rounds(node, 1)[-1]["action"] == "drain"


@needs_root
def test_it_gives_back_what_it_has_drained_itself_when_it_was_clean_three_times(node: Path) -> None:
    slurm = Slurm(node)
    smi(node, {"index,uuid,mig.mode.current": "0, GPU-aa, Disabled\n"})
    rounds(node, 2)
    slurm.state("drained|root|hpcstack: 1 of 2 GPUs", [])
    smi(node)
    found = rounds(node, 4)
    actions = [one["action"] for one in found]
    assert actions == ["drain", "none", "none", "undrain"], found
    assert slurm.told()[-1] == "update nodename=n1 state=resume"
    slurm.state("drained|alice|new memory", [])
    assert rounds(node, 1)[-1]["action"] == "none"


@needs_root
def test_of_nodes_that_drain_themselves_together_the_first_stay(node: Path) -> None:
    """Slurm starts the check on all nodes at once: each has looked before the others have acted."""
    slurm = Slurm(node)
    smi(node, {"index,uuid,mig.mode.current": "0, GPU-aa, Disabled\n"})
    rounds(node, 1)
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    others = "\n".join(f"{now}|n0{number}|hpcstack: no NVIDIA driver" for number in range(3))
    text = (node / "bin/sinfo").read_text()
    (node / "bin/sinfo").write_text(text.replace('case "$*" in', f"""case "$*" in
*%H\\|%N*) printf '%s\\n' '{others}' '{now}|n1|hpcstack: 1 of 2 GPUs' ;;"""))  # fmt: skip
    assert rounds(node, 1)[-1]["action"] == "brake"
    assert slurm.told()[-1] == "update nodename=n1 state=resume"


@needs_root
def test_a_slurm_that_does_not_answer_brakes(node: Path) -> None:
    slurm = Slurm(node)
    smi(node, {"index,uuid,mig.mode.current": "0, GPU-aa, Disabled\n"})
    (node / "bin/sinfo").write_text("#!/bin/sh\nexit 1\n")
    assert rounds(node, 2)[-1]["action"] == "brake"
    assert slurm.told() == []


@needs_root
def test_a_full_run_is_unknown_and_forgets_nothing(node: Path) -> None:
    slurm = Slurm(node)
    state = node / "state"
    state.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(state)], check=True
    )
    try:
        smi(node, {"gpu_recovery_action": "0, Reset\n1, None\n"})
        rounds(node, 2)
        slurm.state("drained|root|hpcstack: GPU 0: the driver asks for Reset", [])
        assert "reset:n1" in (state / "kept").read_text()
        smi(node)
        for _ in range(2):
            subprocess.run(["sh", "-c", f"cat /dev/zero >>{state}/fill 2>/dev/null"], check=False)
            told(
                node,
                SLURMD_NODENAME="n1",
                HPCSTACK_HEALTH_STATE=str(state),
                HPCSTACK_HEALTH_LIMIT="1",
            )
            assert "reset:n1" in (state / "kept").read_text()
            time.sleep(1)
        subprocess.run(["pkill", "-f", f"{node}/health.sh --probes"], check=False)
        time.sleep(0.5)
        subprocess.run(["mount", "-o", "remount,ro", str(state)], check=True)
        _, found, _ = told(
            node, SLURMD_NODENAME="n1", HPCSTACK_HEALTH_STATE=str(state), HPCSTACK_HEALTH_LIMIT="1"
        )
        assert found["healthy"] is None
        assert "cannot be written" in found["unknown"]
    finally:
        subprocess.run(["pkill", "-f", f"{node}/health.sh --probes"], check=False)
        subprocess.run(["umount", "-l", str(state)], check=True)


@needs_root
def test_what_wants_a_reset_is_never_given_back(node: Path) -> None:
    slurm = Slurm(node)
    smi(node, {"gpu_recovery_action": "0, Reset\n1, None\n"})
    rounds(node, 2)
    slurm.state("drained|root|hpcstack: GPU 0: the driver asks for Reset", [])
    smi(node)
    assert "undrain" not in {one["action"] for one in rounds(node, 5)}


@needs_root
def test_probes_never_run_two_at_a_time(node: Path) -> None:
    Slurm(node)
    smi(node, hangs="--query")
    for _ in range(3):
        told(
            node,
            SLURMD_NODENAME="n1",
            HPCSTACK_HEALTH_STATE=str(node / "state"),
            HPCSTACK_HEALTH_LIMIT="15",
        )
        time.sleep(0.3)
    running = subprocess.run(
        ["pgrep", "-cf", f"{node}/bin/nvidia-smi --query"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert running.stdout.strip() in ("1", "2"), "timeout and what it started"
    subprocess.run(["pkill", "-KILL", "-f", str(node)], check=False)


@needs_root
def test_a_prolog_ends_with_the_last_verdict(node: Path) -> None:
    slurm = Slurm(node)
    smi(node, {"index,uuid,mig.mode.current": "0, GPU-aa, Disabled\n"})
    rounds(node, 2)
    before = slurm.told()
    env = {
        "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
        "SLURMD_NODENAME": "n1",
        "HPCSTACK_HEALTH_STATE": str(node / "state"),
    }
    done = subprocess.run(
        ["dash", str(node / "health.sh")], env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "hpcstack: 1 of 2 GPUs\n"
    assert slurm.told() == before


def test_it_is_good_shell(node: Path) -> None:
    told(node)
    done = subprocess.run(
        ["shellcheck", "--exclude=SC3067", str(node / "health.sh")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
