"""The codes of all checks, and which of them a list of codes and families names. A code is a contract."""

from __future__ import annotations

CODES = {
    "node": (
        "node.image",
        "node.torch",
        "node.driver",
        "node.gpus",
        "node.shm",
        "fabric.hcas",
        "fabric.memlock",
        "fabric.tools",
    ),
    "ranks": (
        "nccl.exact",
        "nccl.bandwidth",
        "nccl.gloo",
        "ddp.placement",
        "ddp.fp32",
        "deepspeed.zero1",
        "deepspeed.zero2",
        "deepspeed.zero3",
    ),
}


def selected(tests: str, codes: tuple[str, ...]) -> list[str]:
    """Those of CODES that TESTS names (codes or families, by comma); all where it names none."""
    wanted = [test for test in tests.split(",") if test]
    return [code for code in codes if not wanted or code in wanted or code.partition(".")[0] in wanted]
