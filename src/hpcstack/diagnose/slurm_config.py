"""What slurm.conf says that keeps a part of hpcstack from working as documented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.diagnose.advice import Finding, report_wrong

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# States in which the health check runs once, not every few minutes. Source: slurm.conf(5) of Slurm
# 25.11 (START_ONLY) and 26.05 (REBOOT_ONLY).
ONCE = ("START_ONLY", "REBOOT_ONLY")


def look_at_slurm_config(config: Mapping[str, str], where: str) -> Iterator[Finding]:
    """Judge CONFIG, which is what `scontrol show config` prints."""
    program = config.get("HealthCheckProgram", "(null)")
    when = config.get("HealthCheckNodeState", "")
    if program != "(null)" and any(state in when for state in ONCE):
        yield report_wrong("health.once", where, f"HealthCheckNodeState={when}", program=program)
