"""What is made of a GDS read."""

from __future__ import annotations

from hpcstack_smoke.gpu.gds import READS, judge_read


def test_a_read_that_nvidia_fs_did_not_count_is_not_direct() -> None:
    assert judge_read(0, 4, 8, 6.5).measured == "0 wrong words; 6.50 GB/s"
    assert judge_read(0, 4, 8, 6.5).status == "PASS"
    assert judge_read(0, 4, 4, 6.5).status == "WARN"
    assert judge_read(0, None, None, 6.5).status == "PASS"
    assert judge_read(3, 4, 8, 6.5).status == "FAIL"
    found = READS.search(
        "GDS Version: 1.9.1\nNVFS statistics(ver: 4.0)\nReads\t\t\t\t: n=12 ok=12 err=0 "
        "readMiB=48\nWrites: n=3"
    )
    assert found
    assert found[1] == "12"
