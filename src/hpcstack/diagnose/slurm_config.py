"""What Slurm is set up to do, where that keeps a part of hpcstack from working as documented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.diagnose.advice import Finding, report_fine, report_wrong

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from hpcstack.slurm.topology import Block

# States in which the health check runs once, not every few minutes. Source: slurm.conf(5) of Slurm
# 25.11 (START_ONLY) and 26.05 (REBOOT_ONLY).
ONCE = ("START_ONLY", "REBOOT_ONLY")


def look_at_slurm_config(config: Mapping[str, str], where: str) -> Iterator[Finding]:
    """Judge CONFIG, which is what `scontrol show config` prints."""
    program = config.get("HealthCheckProgram", "(null)")
    when = config.get("HealthCheckNodeState", "")
    if program != "(null)" and any(state in when for state in ONCE):
        yield report_wrong("health.once", where, f"HealthCheckNodeState={when}", program=program)


def look_at_domains(domain: int, blocks: Sequence[Block], where: str) -> Iterator[Finding]:
    """Judge Slurm's BLOCKS, where the site's NVLink domains have DOMAIN nodes.

    A block with more nodes than the largest domain cannot be one. One with fewer may be: of some
    domains not all nodes are in service, or they are of another type.
    """
    if not blocks:
        yield report_wrong(
            "domains", where, f"NVLink domains have {domain} nodes, and Slurm shows no blocks"
        )
        return
    largest = max(len(block.nodes) for block in blocks)
    if largest > domain:
        said = f"NVLink domains have {domain} nodes, and a block of Slurm's has {largest}"
        yield report_wrong("domains.size", where, said)
        return
    yield report_fine(
        "domains", where, f"{format_count(len(blocks), 'block')} of up to {largest} nodes"
    )


def look_at_pmi(types: Collection[str], where: str) -> Iterator[Finding]:
    """Judge the TYPES of PMI that `srun --mpi=list` offers."""
    if any(name.startswith("pmix") for name in types):  # pmix_v4, say
        yield report_fine("pmi", where, f"srun --mpi: {', '.join(types)}")
    elif "pmi2" in types:
        yield report_wrong("pmi.pmix", where, "srun --mpi has PMI-2, and no PMIx")
    else:
        yield report_wrong("pmi", where, "srun has neither PMIx nor PMI-2")
