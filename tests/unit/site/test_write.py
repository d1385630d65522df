"""site init: what the tools say, and a file that loads as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcstack.core.process import Completed, Runner
from hpcstack.site import load as site
from hpcstack.site.discover import Nodes, Probe, probe_site, read_node_kinds
from hpcstack.site.write import render_site_text
from hpcstack.slurm.query import read_pmi

SINFO = "gpu*|16|112|gpu:h100:8(S:0-1)\ncpu|4|64|(null)\nmixed|2|64+|gpu:a100:4(S:0),gpu:a100:4(S:1)\nmixed|1|32|(null)\n"
MPI_22 = (
    "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions "
    "available: pmix_v4\n"
)
MPI_20 = "srun: MPI types are...\nsrun: none\nsrun: pmi2\n"


class Said(Runner):
    """A machine whose tools say what is in a table, and has no others."""

    def __init__(self, table: Mapping[tuple[str, ...], str]) -> None:
        self.table = table

    def has(self, tool: str) -> bool:
        return any(argv[0] == tool for argv in self.table)

    def output(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        **_: object,
    ) -> Completed:
        text = self.table.get(tuple(argv))
        return Completed(
            tuple(argv), 0 if text is not None else 1, tuple((text or "").splitlines()), text or ""
        )


def dgx(root: Path) -> Probe:
    for device, link in (("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet")):
        port = root / f"sys/class/infiniband/{device}/ports/1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{link}\n")
        (port / "state").write_text("4: ACTIVE\n")
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release "
        "Build\nGCC version: 12\n"
    )
    said = {
        ("sinfo", "--noheader", "--all", "--format", "%P|%D|%c|%G"): SINFO,
        ("srun", "--help"): "      --container-image=[USER@]...",
        ("srun", "--mpi=list"): MPI_22,
        ("srun", "--version"): "slurm 23.11.4",
        (
            "scontrol",
            "show",
            "config",
        ): "ClusterName             = my cluster\nMpiDefault              = pmix\n",
        ("enroot", "version"): "4.1.2",
        ("nvidia-smi", "topo", "-m"): "GPU0 X NV18 NV18\n",
    }
    return probe_site(Said(said), root)


def load(folder: Path, text: str) -> site.Site:
    path = folder / "site.yaml"
    path.write_text(text)
    return site.load_site(str(path), {"HOME": str(folder)}).site


def test_a_gpu_cluster(tmp_path: Path) -> None:
    found = dgx(tmp_path)
    assert (found.driver, found.nvlink, found.pyxis, found.versions["enroot"]) == (
        "550.54.15",
        True,
        True,
        "4.1.2",
    )
    loaded = load(tmp_path, render_site_text(found, "ignored"))
    assert (loaded.name, loaded.runtime) == ("my-cluster", "pyxis")
    assert load(tmp_path, render_site_text(found, "ignored", "asked-for")).name == "asked-for"
    kind = loaded.node_type()
    assert kind
    assert kind.gpus
    assert (kind.gpus.model, kind.gpus.count, kind.gpus.nvlink, kind.cpus, kind.driver) == (
        "H100",
        8,
        True,
        112,
        "550.54.15",
    )
    assert kind.hcas == ("mlx5_0", "mlx5_1")
    assert loaded.partitions["cpu"].node_type == "cpu64"
    assert loaded.node_types["a100x8"].cpus == 64
    assert loaded.fabric.kind == "infiniband"
    assert loaded.fabric.settings["NCCL_IB_HCA"].value == "mlx5_0"
    assert loaded.fabric.settings["NCCL_IB_HCA"].reason == "the other devices are Ethernet"


def test_a_machine_with_nothing(tmp_path: Path) -> None:
    text = render_site_text(probe_site(Said({}), tmp_path), "box")
    loaded = load(tmp_path, text)
    assert (loaded.name, loaded.runtime, loaded.node_types, loaded.fabric.kind) == (
        "box",
        "auto",
        {},
        "",
    )
    assert "Slurm was not there to ask" in text
    assert "No InfiniBand" in text


def test_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    text = render_site_text(dgx(tmp_path), "x")
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("    ") and not line.lstrip().startswith("#")
    ]
    assert all("#" in line or "reason:" in line for line in lines), lines


def test_sinfo_and_mpi_of_several_releases() -> None:
    assert read_node_kinds(SINFO)[0] == Nodes("gpu", True, 16, 112, 8, "h100")
    assert read_node_kinds("not|a row\n") == []
    assert read_node_kinds("dyn*|0|0|(null)\n") == [], "a partition that has no nodes now"
    assert read_pmi(MPI_22) == ("pmix", "cray_shasta", "pmi2")
    assert read_pmi(MPI_20) == ("pmi2",)


SINFO_MIG = """\
gpu*|2|96|gpu:nvidia_h100_80gb_hbm3:2,gpu:nvidia_h100_80gb_hbm3_4g.40gb:2
mig|4|64|gpu:a100_1g.5gb:14(S:0),gpu:a100_1g.5gb:14(S:1)
long@night|2|96|gpu:nvidia_h100_80gb_hbm3:2,gpu:nvidia_h100_80gb_hbm3_4g.40gb:2
own|1|64|gpu:nvidia_geforce_rtx_4090:4
odd|1|64|gpu:a:b:c:4
two|1|128|gpu:a100:2(S:0-1),gpu:h100:2(S:1)
"""


def test_slices_are_no_gpus_and_what_is_not_understood_is_said(tmp_path: Path) -> None:
    text = render_site_text(Probe(nodes=tuple(read_node_kinds(SINFO_MIG))), "x")
    loaded = load(tmp_path, text)
    whole, slices = loaded.node_types["h100x2mig2"].gpus, loaded.node_types["a100mig28"].gpus
    assert whole
    assert slices
    assert (whole.model, whole.count) == ("H100", 2)
    assert whole.mig == {"nvidia_h100_80gb_hbm3_4g.40gb": 2}
    assert (slices.model, slices.count, slices.mig) == ("A100", 0, {"a100_1g.5gb": 28})
    assert loaded.partitions["long@night"].node_type == "h100x2mig2"
    assert "RTX 40xx" in text
    assert "'gpu:a:b:c:4', which is not understood" in text
    assert "'gpu:a100:2(S:0-1),gpu:h100:2(S:1)', which is not understood, or of several" in text
    assert not loaded.without_gpus


@pytest.mark.parametrize(
    "said",
    [
        {
            (
                "sinfo",
                "--noheader",
                "--all",
                "--format",
                "%P|%D|%c|%G",
            ): "gpu*|x|112|gpu:h100:8\n||||\nnull|1|8|gpu:null:1\na|99999999999|1|gpu:²\n"
        },
        {
            (
                "nvidia-smi",
                "--query-gpu=name,driver_version",
                "--format=csv,noheader",
            ): "H100, [N/A]\n"
        },
        {
            (
                "nvidia-smi",
                "--query-gpu=name,driver_version",
                "--format=csv,noheader",
            ): "no devices were found\n"
        },
        {("apptainer", "--version"): "no version\nname: evil\u0085name: evil\n"},
        {("scontrol", "show", "config"): 'ClusterName = "x\\ny: z"\n'},
    ],
    ids=range(5),
)
def test_tools_that_talk_nonsense_give_a_file_that_loads(
    tmp_path: Path, said: dict[tuple[str, ...], str]
) -> None:
    text = render_site_text(probe_site(Said(said), tmp_path), "box")
    loaded = load(tmp_path, text)
    assert "evil" not in loaded.name


def test_a_program_that_cannot_be_run_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("sinfo", "#!/no/such/interpreter\n"), ("srun", "")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe_site(Runner(), tmp_path).nodes == ()


@pytest.mark.parametrize(
    ("gres", "is_arm"),
    [("gpu:gh200:4", True), ("gpu:nvidia_gb200:4", True), ("gpu:h100:8", False)],
)
def test_a_superchip_has_a_cpu_of_arms(tmp_path: Path, gres: str, is_arm: bool) -> None:
    nodes = tuple(read_node_kinds(f"gpu*|4|288|{gres}\n"))
    text = render_site_text(replace(dgx(tmp_path), nodes=nodes), "x")
    assert ("architecture: aarch64" in text) is is_arm
